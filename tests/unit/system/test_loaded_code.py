"""Code that was loaded, and then changed on disk."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from faultline.system.hashes import LoadedCode


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one module, loaded."""
    folder = tmp_path / "slowly_edited"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "value.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("slowly_edited.value")
    yield folder  # type: ignore[misc]
    for name in [name for name in sys.modules if name.startswith("slowly_edited")]:
        del sys.modules[name]


def test_what_was_not_changed_stays_loaded(package: Path) -> None:
    assert not LoadedCode.of(["slowly_edited"]).is_stale()


@pytest.mark.parametrize("text", ["VALUE = 22\n", None])
def test_a_module_that_was_changed_or_removed_is_noticed(package: Path, text: str | None) -> None:
    loaded = LoadedCode.of(["slowly_edited"])
    file = package / "value.py"
    file.unlink() if text is None else file.write_text(text)
    assert loaded.is_stale()


def test_what_is_forgotten_is_read_again_and_nothing_else(package: Path) -> None:
    loaded = LoadedCode.of(["slowly_edited"])
    (package / "value.py").write_text("VALUE = 22\n")
    loaded.forget()
    assert importlib.import_module("slowly_edited.value").VALUE == 22
    assert "faultline.system.hashes" in sys.modules
