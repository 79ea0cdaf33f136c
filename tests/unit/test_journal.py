"""Journals: what is written comes back, half lines never count, waiting ends for every reason."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.errors import InfrastructureError
from faultline.journal import Instant, Journal, JournalReader, read_journal, wait_for_event

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(VALUES, max_size=5))
def test_lines_come_back_with_rising_instants(tmp_path_factory: pytest.TempPathFactory, values: list[object]) -> None:
    path = tmp_path_factory.mktemp("journal") / "a.jsonl"
    with Journal(path) as journal:
        written = [journal.write("e", value=value) for value in values]
    lines = read_journal(path)
    assert [line["value"] for line in lines] == values
    assert [Instant(line["wall_ns"], line["mono_ns"]) for line in lines] == written
    assert [line["mono_ns"] for line in lines] == sorted(line["mono_ns"] for line in lines)


def test_an_instant_can_be_given(tmp_path: Path) -> None:
    at = Instant(1_000, 2_000).plus(1.5)
    with Journal(tmp_path / "a.jsonl") as journal:
        assert journal.write("e", at=at, sync=True) == at
    assert read_journal(tmp_path / "a.jsonl") == [{"wall_ns": 1_500_001_000, "mono_ns": 1_500_002_000, "event": "e"}]


@given(cut=st.integers(0, 60))
def test_a_half_written_last_line_is_left_out_and_cut_off(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("journal") / "a.jsonl"
    with Journal(path) as journal:
        journal.write("first")
        whole = path.stat().st_size
        journal.write("second", text="ünïcode " * 5)
    data = path.read_bytes()
    path.write_bytes(data[: min(whole + cut, len(data) - 1)])
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
    with pytest.raises(InfrastructureError, match=r"^generator.jsonl: line 2 is not a JSON object"):
        read_journal(path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"a.jsonl: cannot be written: No such file .*; free disk"):
        Journal(tmp_path / "missing" / "a.jsonl")


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "full.jsonl").symlink_to("/dev/full")
    with Journal(tmp_path / "full.jsonl") as journal, pytest.raises(InfrastructureError, match="No space left"):
        journal.write("e")


def test_waiting_ends_when_the_event_comes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"

    def write() -> None:
        with Journal(path) as journal:
            journal.write("prepared")
            journal.write("primed", records=3)

    thread = threading.Timer(0.05, write)
    thread.start()
    line = wait_for_event(path, "primed", 5, lambda: True, poll_s=0.01)
    thread.join()
    assert line["records"] == 3


def test_waiting_ends_with_the_writers_own_words_when_it_failed(tmp_path: Path) -> None:
    path = tmp_path / "conductor.jsonl"
    with Journal(path) as journal:
        journal.write("failed", message="kafka: no answer")
    with pytest.raises(InfrastructureError, match="^conductor: kafka: no answer$"):
        wait_for_event(path, "done", 5, lambda: True)
    assert wait_for_event(path, "failed", 5, lambda: True)["message"] == "kafka: no answer"


def test_waiting_ends_when_the_writer_died_but_not_before_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Journal(path) as journal:
        journal.write("prepared")
    assert wait_for_event(path, "prepared", 5, lambda: False)["event"] == "prepared"
    with pytest.raises(InfrastructureError, match="^a: ended without the event done"):
        wait_for_event(path, "done", 5, lambda: False)


def test_waiting_ends_in_time(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match="no event done within 0.1 s"):
        wait_for_event(tmp_path / "a.jsonl", "done", 0.1, lambda: True, poll_s=0.01)
    assert time.monotonic() - began < 2
