"""Linter, formatter and type checker report no problem."""

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
def test_checkers_pass(command: str) -> None:
    # The cache limits the check to changed files.
    cache = ["--cache-dir", str(load_settings().home / "caches" / command.split()[0])]
    program = [sys.executable, "-m", *command.split(), *cache]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


# Import roots of the project's packages.
SOURCES = {"faultline": ROOT / "include", "generators": ROOT, "fault": ROOT, "tests": ROOT, "benchmarks": ROOT}


def source_of(module: str) -> Path | None:
    """Return the file of a project module; None for other modules and for packages without code."""
    where = SOURCES.get(module.split(".")[0])
    if where is None:
        return None
    path = where / module.replace(".", "/")
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def defined_names(file: Path) -> frozenset[str]:
    """Return every name that a module defines or imports, at any depth; for a package, also its modules."""
    names = {one.stem for one in file.parent.iterdir()} if file.name == "__init__.py" else set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.alias():
                names.add((node.asname or node.name).split(".")[0])
    return frozenset(names)


def test_tests_and_scripts_import_existing_names() -> None:
    """Without this test, a wrong import fails only when a thorough or late test is collected."""
    missing = [
        f"{file.relative_to(ROOT)}: {node.module}.{name.name}"
        for folder in ("tests", "scripts", "dags", "plugins", "spark_jobs", "examples")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and (source := source_of(node.module))
        for name in node.names
        if name.name not in defined_names(source)
    ]
    assert missing == []
