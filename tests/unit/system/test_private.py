"""Folders where everybody may make some: made where nothing was, and for one user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faultline.system.errors import InfrastructureError
from faultline.system.files import find_apart, make_apart, remove_apart
from tests.support.decoys import NOBODY, only_root


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
