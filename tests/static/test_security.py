"""What SECURITY.md says is shown by a test is shown by a test that is there."""

from __future__ import annotations

import ast
import re

from faultline.system.settings import ROOT

NAMED = re.compile(r"`(?P<file>tests/[\w/]+\.py)(?:::(?P<test>\w+))?`")


def rows() -> list[list[str]]:
    """The cells of the tables by asset."""
    text = (ROOT / "SECURITY.md").read_text().partition("## By asset")[2]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [cells for cells in lines if cells[0] not in ("asset", "---")]


def test_every_test_that_is_named_is_there() -> None:
    missing = []
    for found in NAMED.finditer((ROOT / "SECURITY.md").read_text()):
        file = ROOT / found["file"]
        names = {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)} \
            if file.is_file() else set()  # fmt: skip
        if not names or (found["test"] and found["test"] not in names):
            missing.append(found[0])
    assert missing == []


def test_every_asset_names_what_shows_it() -> None:
    table = rows()
    assert len(table) > 25
    bare = [cells[0] for cells in table if len(cells) < 4 or not NAMED.search(cells[3])]
    assert bare == []
