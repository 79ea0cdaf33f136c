"""Journals: lines are read as written, incomplete lines are ignored, and waits end."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import check_output_path, find_private_folder, make_private_folder, remove_private_folder
from faultline.system.hashes import LoadedCode
from faultline.system.journal import (
    Instant,
    Journal,
    JournalReader,
    events,
    find_last,
    read_finished,
    read_journal,
    write_lines,
)
from tests.support.decoys import OTHER_UID, only_root
from tests.support.refusals import refused

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(VALUES, max_size=5))
def test_lines_come_back_with_rising_instants_or_with_one_that_was_given(
    tmp_path_factory: pytest.TempPathFactory, values: list[object]
) -> None:
    path, at = tmp_path_factory.mktemp("journal") / "a.jsonl", Instant(1_000, 2_000).plus(1.5)
    with Journal(path) as journal:
        written = [journal.write("e", value=value) for value in values]
        assert journal.write("e", at=at, sync=True) == at
    *lines, last_one = read_journal(path)
    assert [line["value"] for line in lines] == values
    assert [Instant(line["wall_ns"], line["mono_ns"]) for line in lines] == written
    assert [line["mono_ns"] for line in lines] == sorted(line["mono_ns"] for line in lines)
    assert last_one == {"wall_ns": 1_500_001_000, "mono_ns": 1_500_002_000, "event": "e"}


HALF = '{"wall_ns": 1, "event": "second", "text": "ünïcode ünïcode"}'.encode()


ZEROS = st.tuples(st.integers(1, 5000).map(bytes), st.binary(max_size=40)).map(lambda one: b'{"eve%b%b\n' % one)


@given(st.integers(0, len(HALF)).map(lambda cut: HALF[:cut]) | ZEROS)
def test_a_half_written_last_line_and_what_a_power_cut_left_are_cut_off(
    tmp_path_factory: pytest.TempPathFactory, left: bytes
) -> None:
    """Zeros, and whatever follows them."""
    path = tmp_path_factory.mktemp("journal") / "a.jsonl"
    path.write_bytes(b'{"event": "first"}\n' + left)
    if b"\0" not in left:
        assert [line["event"] for line in read_journal(path)] == ["first"]
    with Journal(path) as journal:
        journal.write("third")
    assert [line["event"] for line in read_journal(path)] == ["first", "third"]


def test_a_reader_gives_each_line_once(tmp_path: Path) -> None:
    reader = JournalReader(tmp_path / "a.jsonl")
    assert reader.poll() == []
    with Journal(reader.path) as journal:
        journal.write("one")
        assert [line["event"] for line in reader.poll()] == ["one"]
        assert reader.poll() == []
        journal.write("two")
        journal.write("three")
        assert [line["event"] for line in reader.poll()] == ["two", "three"]


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "generator.jsonl"
    path.write_text('{"event":"prepared"}\nTraceback\n')
    with pytest.raises(InfrastructureError, match=r"^generator.jsonl: line 2"):
        read_journal(path)
    # If the process has ended, an incomplete last line is ignored.
    assert read_finished(path) == ({"event": "prepared"},)
    path.write_text('{"event":"prepared"}\n\nTraceback\n{"event":"done"}')
    with pytest.raises(InfrastructureError, match=r"generator.jsonl: line 3"):
        read_finished(path)


def test_a_folder_that_cannot_be_written_and_a_full_disk_are_named(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"a.jsonl: write failed: No such file"):
        Journal(tmp_path / "missing" / "a.jsonl")
    (tmp_path / "full.jsonl").symlink_to("/dev/full")
    with Journal(tmp_path / "full.jsonl") as journal, pytest.raises(InfrastructureError, match="No space left"):
        journal.write("e")


def test_a_line_that_found_no_room_leaves_nothing_that_the_next_one_would_begin_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    with Journal(tmp_path / "a.jsonl") as journal:
        journal.write("first")
        monkeypatch.setattr("faultline.system.journal.os.write", lambda file, data: write(file, data[:9]))
        with pytest.raises(InfrastructureError, match="only 9 of"):
            journal.write("second")
        monkeypatch.undo()
        journal.write("third")
    assert [line["event"] for line in read_journal(journal.path)] == ["first", "third"]


@given(st.lists(st.dictionaries(st.sampled_from("abc"), VALUES), max_size=6))
def test_lines_that_are_written_at_once_come_back_by_either_reader(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, object]]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "a.jsonl"
    write_lines(path, lines)
    assert read_journal(path) == list(read_finished(path)) == lines


@given(st.lists(st.fixed_dictionaries({"event": st.sampled_from("xy"), "fault": st.integers(0, 2)}), max_size=8))
def test_the_last_line_is_the_last_one_whose_fields_are_as_given(lines: list[dict[str, object]]) -> None:
    lines = [{**line, "number": number} for number, line in enumerate(lines)]
    wanted = [line for line in lines if (line["event"], line["fault"]) == ("x", 1)]
    assert find_last(lines, event="x", fault=1) == (wanted[-1] if wanted else None)
    assert events(lines, "y") == [line for line in lines if line["event"] == "y"]
    assert find_last([{"kind": "start"}], event="start") is None


# ---- Code that was loaded, and then changed on disk ----


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


@pytest.mark.parametrize("text", ["VALUE = 22\n", None])
def test_a_module_that_was_changed_or_removed_is_noticed(package: Path, text: str | None) -> None:
    loaded = LoadedCode.of(["slowly_edited"])
    assert not loaded.is_stale()
    file = package / "value.py"
    file.unlink() if text is None else file.write_text(text)
    assert loaded.is_stale()


def test_only_unloaded_modules_are_read_again(package: Path) -> None:
    loaded = LoadedCode.of(["slowly_edited"])
    (package / "value.py").write_text("VALUE = 22\n")
    loaded.unload()
    assert importlib.import_module("slowly_edited.value").VALUE == 22
    assert "faultline.system.hashes" in sys.modules


# ---- Output paths of commands are checked first ----


def test_a_file_that_can_be_written_is_let_through_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "present.html").write_text("x")
    for name in ("new.html", "not/there/new.html", "present.html"):
        check_output_path(tmp_path / name, "--report")
    assert [path.name for path in tmp_path.iterdir()] == ["present.html"]


def test_what_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the system call is replaced."""
    monkeypatch.setattr("faultline.system.files.os.access", lambda path, how: False)
    (tmp_path / "file").write_text("x")
    for path, why in (
        (tmp_path / "file", "cannot be written"),
        (tmp_path / "new" / "file", "read-only folder"),
        (Path("/"), "is a folder"),
        (tmp_path, "is a folder"),
        (tmp_path / "file" / "new.html", "not a folder"),
    ):
        with pytest.raises(ConfigError, match=rf"^--plot {path}: .*{why}"):
            check_output_path(path, "--plot")


# ---- Private folders in shared directories ----


def test_a_private_folder_is_made_once_under_a_random_name(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert find_private_folder(one) is None
    made = make_private_folder(one, tmp_path)
    assert (made.parent, made.stat().st_mode & 0o777) == (tmp_path, 0o700)
    (made / "kept").touch()
    assert make_private_folder(one, Path("/nowhere")) == find_private_folder(one) == made and (made / "kept").exists()
    assert make_private_folder(other, tmp_path) != made
    assert len(made.name) > len("faultline-") + 16
    (made / "kept").unlink()
    made.rmdir()  # as at a start of the machine
    assert find_private_folder(one) is None
    assert make_private_folder(one, tmp_path) == made and made.is_dir()


def test_a_file_in_the_place_of_a_private_folder_is_refused(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "precious"
    target.mkdir(0o700)
    made = make_private_folder(link, tmp_path)
    for plant in (lambda: made.symlink_to(target), made.touch, lambda: made.mkdir(0o755)):
        made.rmdir() if made.is_dir() and not made.is_symlink() else made.unlink()
        plant()
        for act in (lambda: make_private_folder(link, tmp_path), lambda: find_private_folder(link)):
            with refused(f"{made}: ", f"delete {link}", kind=InfrastructureError):
                act()


@only_root
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    made = make_private_folder(tmp_path / "link", tmp_path)
    os.chown(made, OTHER_UID, OTHER_UID)
    with pytest.raises(InfrastructureError, match="not a private folder"):
        find_private_folder(tmp_path / "link")


def test_a_private_folder_is_removed_with_its_link_and_no_other_file(tmp_path: Path) -> None:
    link = tmp_path / "link"
    (make_private_folder(link, tmp_path) / "kept").touch()
    for _ in range(2):
        remove_private_folder(link)
        assert list(tmp_path.iterdir()) == []
    theirs = tmp_path / "theirs"
    theirs.mkdir(0o755)
    theirs.chmod(0o755)
    link.symlink_to(theirs)
    with pytest.raises(InfrastructureError, match="not a private folder"):
        remove_private_folder(link)
    assert theirs.is_dir() and link.is_symlink()
