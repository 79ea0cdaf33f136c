"""What a command is told to write is looked at before it works."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import check_target, find_apart, make_apart, remove_apart
from tests.support.decoys import NOBODY, only_root


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


# ---- Folders where everybody may make some ----


def test_it_is_made_once_for_this_user_alone_under_a_name_that_nobody_foresees(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert find_apart(one) is None
    made = make_apart(one, tmp_path)
    assert (made.parent, made.stat().st_mode & 0o777) == (tmp_path, 0o700)
    (made / "kept").touch()
    assert make_apart(one, Path("/nowhere")) == find_apart(one) == made and (made / "kept").exists()
    assert make_apart(other, tmp_path) != made
    assert len(made.name) > len("faultline-") + 16


def test_what_a_start_of_the_machine_took_is_made_again(tmp_path: Path) -> None:
    made = make_apart(tmp_path / "link", tmp_path)
    made.rmdir()
    assert find_apart(tmp_path / "link") is None
    assert make_apart(tmp_path / "link", tmp_path) == made and made.is_dir()


def test_what_somebody_laid_in_its_place_is_refused(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "precious"
    target.mkdir(0o700)
    made = make_apart(link, tmp_path)
    for plant in (lambda: made.symlink_to(target), made.touch, lambda: made.mkdir(0o755)):
        made.rmdir() if made.is_dir() and not made.is_symlink() else made.unlink()
        plant()
        for act in (lambda: make_apart(link, tmp_path), lambda: find_apart(link)):
            with pytest.raises(
                InfrastructureError, match=f"^{made}: is no folder .*; delete {link}, and another is made"
            ):
                act()


@only_root
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    made = make_apart(tmp_path / "link", tmp_path)
    os.chown(made, NOBODY, NOBODY)
    with pytest.raises(InfrastructureError, match="is no folder that this user has for himself"):
        find_apart(tmp_path / "link")


def test_what_was_made_apart_goes_with_its_link_and_nothing_that_is_anothers(tmp_path: Path) -> None:
    link = tmp_path / "link"
    (make_apart(link, tmp_path) / "kept").touch()
    for _ in range(2):
        remove_apart(link)
        assert list(tmp_path.iterdir()) == []
    theirs = tmp_path / "theirs"
    theirs.mkdir(0o755)
    theirs.chmod(0o755)
    link.symlink_to(theirs)
    with pytest.raises(InfrastructureError, match="is no folder that this user has for himself"):
        remove_apart(link)
    assert theirs.is_dir() and link.is_symlink()
