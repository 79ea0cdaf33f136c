"""The results as files: every link leads to one, nothing asks a server, and nobody's folder is overwritten."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.cli.publishing import MARK, PREFIX, file_of, publish
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT, Settings
from tests.unit.night_records import night_records
from tests.unit.pages_store import put, record
from tests.unit.sample_records import RECOVERED


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    put(
        made.results,
        record("a1", recovery=RECOVERED),
        record("a2", sweep="s2", matrix="m 2/ü", state_mb=8.0),
        record("a3", sweep=None, matrix=None),
        *night_records(1, 100),
    )
    return made


def test_every_link_leads_to_a_file_and_none_to_a_server(settings: Settings, tmp_path: Path) -> None:
    said: list[str] = []
    first = publish(settings, tmp_path / "site", said.append)
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert first in pages and len(pages) >= 8 and said[0].startswith(f"{len(pages)} pages in ")
    for page in pages:
        text = page.read_text()
        assert PREFIX not in text and "data-refresh" not in text
        for address in re.findall(r"""(?:href|src)=["'](.*?)["']""", text):
            named = unquote(unescape(address).partition("#")[0])
            if named and not named.startswith("data:"):
                assert (page.parent / named).resolve().is_file(), (page, address)
    names = {str(page.relative_to(tmp_path / "site")) for page in pages}
    assert {"index.html", "sweeps/s1.html", "matrices/m.html", "nights.html", "unswept.html"} <= names
    assert (tmp_path / "site" / "static" / "plotly.min.js").is_file()


def test_a_second_call_replaces_the_site_and_nothing_else_is_ever_replaced(settings: Settings, tmp_path: Path) -> None:
    target = tmp_path / "site"
    publish(settings, target, lambda text: None)
    (target / "old.html").write_text("x")
    publish(settings, target, lambda text: None)
    assert not (target / "old.html").exists() and (target / MARK).exists()
    assert {path.name for path in tmp_path.iterdir()} == {"home", "results", "site"}, "nothing half-made is left"
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="mine: holds something else; name an empty folder"):
        publish(settings, mine, lambda text: None)
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]
    with pytest.raises(ConfigError, match="is a file; name a folder"):
        publish(settings, mine / "thesis.txt", lambda text: None)


@given(st.lists(st.text(min_size=1, max_size=30), min_size=2, max_size=2, unique=True))
def test_addresses_become_files_inside_the_folder_and_stay_apart(names: list[str]) -> None:
    from urllib.parse import quote

    one, other = (file_of(f"{PREFIX}/sweeps/{quote(name, safe='')}") for name in names)
    assert one != other
    for path in (one, other):
        assert path.endswith(".html") and not path.startswith("/") and ".." not in path.split("/")
