"""Links between documents lead to existing files and headings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from faultline.system.settings import ROOT

NAMES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "tests/CAPABILITIES.md")
DOCUMENTS = [*(ROOT / name for name in NAMES), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub generates them."""
    text = re.sub(r"(?ms)^```.*?^```", "", document.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        assert file.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors(file), f"{target}: no such heading"


@pytest.mark.parametrize("file", sorted((ROOT / "tests" / "mutation").glob("*.toml")), ids=lambda path: path.stem)
def test_mutation_testing_names_existing_files(file: Path) -> None:
    """Pytest fails for a missing file, and cosmic-ray would count each mutant as killed."""
    settings = tomllib.loads(file.read_text())["cosmic-ray"]
    tests = [word for word in settings["test-command"].split() if word.startswith("tests/")]
    missing = [path for path in (*tests, *settings["module-path"]) if not (ROOT / path).exists()]
    assert tests and not missing, missing
