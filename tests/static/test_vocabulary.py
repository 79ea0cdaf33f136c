"""The project's language: no banned word in names, docstrings, comments, messages and documents."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Final, NamedTuple

import pytest

from tests.static.vocabulary import ROOT, Hit, files, hits_of, text_hits


class Allowed(NamedTuple):
    """An exception with its reason. `text`: part of the line with the banned word."""

    file: str
    text: str
    reason: str


ALLOWED: Final[tuple[Allowed, ...]] = (
    Allowed("include/faultline/records/judge/timeline.py", "no output tells of which", "text of golden records"),
    Allowed("include/faultline/records/renames.py", "cannot tell", "verdict of schema 2, which readers accept"),
    Allowed("include/faultline/reports/notes.py", "night: str", "key of the webhook's JSON and of notifier templates"),
    Allowed("tests/unit/reports/test_pages_live.py", "faultline_night_valid_records", "public Prometheus metric"),
)


@pytest.fixture(scope="module")
def hits() -> list[Hit]:
    return [hit for file in files() for hit in hits_of(file)]


def test_no_banned_word_is_used(hits: list[Hit]) -> None:
    left = [str(hit) for hit in hits if not any(hit.file == a.file and a.text in hit.text for a in ALLOWED)]
    assert left == []


def test_every_exception_is_needed(hits: list[Hit]) -> None:
    unused = [a for a in ALLOWED if not any(hit.file == a.file and a.text in hit.text for hit in hits)]
    assert unused == []


def test_a_class_name_is_used_in_one_room() -> None:
    """Check all classes outside tests and benchmarks."""
    rooms: dict[str, set[str]] = {}
    for file in files():
        if file.endswith(".py") and not file.startswith(("tests/", "benchmarks/")):
            room = "/".join(file.split("/")[:3]) if file.startswith("include/") else file.split("/")[0]
            for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    rooms.setdefault(node.name, set()).add(room)
    assert {name: sorted(where) for name, where in rooms.items() if len(where) > 1} == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The user is told so.", ["told"]),
        ("Nobody starts it anew.", ["nobody", "anew"]),
        ("It is no HOST:PORT; there is no file.", ["is no"]),
        ("There is no longer a file; it is no longer there.", []),
        ("As many as so many that fit.", []),
        ("Of course. Of each file the first line.", ["of"]),
        ("A steal of guest time, in `nobody`.", []),
    ],
)
def test_the_scanner_finds_banned_words(text: str, words: list[str]) -> None:
    assert Counter(hit.word for hit in text_hits("x.md", 1, "document", text)) == Counter(words)
