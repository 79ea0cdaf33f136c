"""What a command is told to write is looked at before it works."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultline.system.errors import ConfigError
from faultline.system.files import check_target


def test_a_file_that_can_be_written_is_let_through_and_nothing_is_made(tmp_path: Path) -> None:
    check_target(tmp_path / "new.html", "--report")
    check_target(tmp_path / "not" / "there" / "new.html", "--report")
    present = tmp_path / "present.html"
    present.write_text("x")
    check_target(present, "--report")
    assert [path.name for path in tmp_path.iterdir()] == ["present.html"]


def test_what_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is root may write anywhere, so the system's answer is given here."""
    monkeypatch.setattr("faultline.system.files.os.access", lambda path, how: False)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="file: cannot be written; name a file"):
        check_target(tmp_path / "file", "--page")
    with pytest.raises(ConfigError, match="cannot be written to; name a file"):
        check_target(tmp_path / "new" / "file", "--page")


def test_folders_and_what_lies_below_a_file_are_refused_by_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, why in (
        (Path("/"), "is a folder"),
        (tmp_path, "is a folder"),
        (tmp_path / "file" / "new.html", "file is no folder"),
    ):
        with pytest.raises(ConfigError, match=rf"^--plot {path}: .*{why}; name a file"):
            check_target(path, "--plot")
