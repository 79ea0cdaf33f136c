"""NOTICE names the licences of all bundled data, of the packages in requirements.in, and of the jars."""

from __future__ import annotations

import pytest

from faultline.system.settings import ROOT, load_settings
from scripts.notice import HEAD, TARGET, jars, made, python_lines

FIX = "fix: run .faultline/venv/bin/python scripts/notice.py"


def test_every_package_and_every_jar_is_named_with_its_version() -> None:
    lines = TARGET.read_text().splitlines()
    assert [one for one in python_lines() if one not in lines] == [], FIX
    named = [f"- {artifact} {version}: " for _, artifact, version in jars()]
    assert [one for one in named if not any(line.startswith(one) and line != one for line in lines)] == [], FIX
    known = (*python_lines(), *named, *filter(None, HEAD.splitlines()))
    outdated = [line for line in lines if line.startswith("- ") and not line.startswith(known)]
    assert outdated == [], FIX


def test_licences_of_jars_match_the_jars() -> None:
    folder = load_settings().home / "jars"
    if not folder.is_dir():
        pytest.skip("needs the jars that ./faultline up fetches")
    assert TARGET.read_text() == made(folder), FIX


def test_all_data_is_named() -> None:
    text = TARGET.read_text()
    for folder in sorted((ROOT / "generators" / "data").iterdir()):
        assert f"generators/data/{folder.name}" in text
