"""The linter, the formatter and the type checker find nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from faultline.system.settings import ROOT, load_settings


@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", ["ruff check .", "ruff format --check .", "mypy"])
def test_nothing_to_complain_about(command: str) -> None:
    # What did not change since the last time is not looked at again.
    cache = ["--cache-dir", str(load_settings().home / "caches" / command.split()[0])]
    whole = [sys.executable, "-m", *command.split(), *cache]
    done = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


# Where the names of a package of ours are written down.
SOURCES = {"faultline": ROOT / "include", "generators": ROOT, "fault": ROOT, "tests": ROOT, "benchmarks": ROOT}


def source_of(module: str) -> Path | None:
    """Return the file of a module of ours; None for a package without code of its own, and for others' modules."""
    where = SOURCES.get(module.split(".")[0])
    if where is None:
        return None
    there = where / module.replace(".", "/")
    return next((one for one in (there.with_suffix(".py"), there / "__init__.py") if one.is_file()), None)


@cache
def bound(file: Path) -> frozenset[str]:
    """Return every name that a module binds, at whatever depth, and the modules beside it."""
    beside = {one.stem for one in file.parent.iterdir()} if file.name == "__init__.py" else set()
    names: set[str] = beside
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.alias():
                names.add((node.asname or node.name).split(".")[0])
    return frozenset(names)


def test_tests_and_scripts_import_only_names_that_are_there() -> None:
    """A thorough or late test is collected long after the edit that took its import away."""
    lacking = [
        f"{file.relative_to(ROOT)}: {node.module}.{name.name}"
        for folder in ("tests", "scripts", "dags", "plugins", "spark_jobs", "examples")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and (there := source_of(node.module))
        for name in node.names
        if name.name not in bound(there)
    ]
    assert lacking == []
