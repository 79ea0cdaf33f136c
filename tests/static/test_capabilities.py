"""Each row of SECURITY.md and of the checklist of capabilities names existing tests or benchmarks."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks.catalogue import BENCHMARKS
from faultline.system.settings import ROOT

SECURITY, CHECKLIST = ROOT / "SECURITY.md", ROOT / "tests" / "CAPABILITIES.md"
NAMED = re.compile(r"`(?P<file>tests/[\w/]+\.py)(?:::(?P<test>\w+))?`(?P<thorough> \(thorough\))?")
BENCH = re.compile(r"`bench ([a-z_]+)`")
# Maximum number of capabilities without a test. Lower it, never raise it.
MOST_WITHOUT_A_TEST = 8


@cache
def defined_tests(file: Path) -> dict[str, bool]:
    """Return, by test of a file, whether it runs only with --thorough; empty if the file is missing."""
    if not file.is_file():
        return {}
    tree = ast.parse(file.read_text())
    marks = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    all_thorough = any(text.startswith("pytestmark") and "mark.thorough" in text for text in marks)
    return {
        node.name: all_thorough or any("mark.thorough" in ast.unparse(mark) for mark in node.decorator_list)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def rows(document: Path, after: str) -> list[list[str]]:
    """Return the rows of the document's tables after this text, without table heads, as lists of cells."""
    lines = document.read_text().partition(after)[2].splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0] not in ("asset", "capability", "---")]


@pytest.mark.parametrize("document", [SECURITY, CHECKLIST], ids=lambda path: path.name)
def test_every_named_test_exists(document: Path) -> None:
    missing = []
    for found in NAMED.finditer(document.read_text()):
        known = defined_tests(ROOT / found["file"])
        if not known or (found["test"] and found["test"] not in known):
            missing.append(found[0])
    assert missing == []


def test_the_checklist_marks_exactly_the_thorough_tests() -> None:
    wrong = []
    for found in NAMED.finditer(CHECKLIST.read_text()):
        known = defined_tests(ROOT / found["file"])
        thorough = known.get(found["test"], False) if found["test"] else all(known.values())
        if thorough != bool(found["thorough"]):
            wrong.append(found[0])
    assert wrong == []


def test_every_named_benchmark_exists() -> None:
    named = set(BENCH.findall(CHECKLIST.read_text()))
    assert named and named <= BENCHMARKS.keys()


def test_every_asset_names_a_test() -> None:
    table = rows(SECURITY, "## By adversary")
    assert len(table) > 25
    assert [cells[0] for cells in table if len(cells) != 3 or not NAMED.search(cells[2])] == []


def test_every_capability_links_its_documentation_and_a_test_or_none() -> None:
    table = rows(CHECKLIST, "# Capabilities")
    assert len(table) > 150 and len({cells[0] for cells in table}) == len(table)
    assert [cells for cells in table if len(cells) != 3 or "](../" not in cells[1]] == []
    bare = [cells[0] for cells in table if cells[2] == "none"]
    assert [
        cells[0] for cells in table if cells[2] != "none" and not (NAMED.search(cells[2]) or BENCH.search(cells[2]))
    ] == []
    assert len(bare) <= MOST_WITHOUT_A_TEST, bare
