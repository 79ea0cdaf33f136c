"""What Linux says of processes, held against real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import psutil
import pytest

from fault.errors import VictimRefused
from fault.procfs import all_pids, line_of, read_process, start_ticks
from tests.support.processes import shown


def test_a_process_is_read_as_psutil_reads_it() -> None:
    arguments = ["-Dfaultline.instance=0123456789abcdef", "two\nlines", "é", "", "-x y"]
    with subprocess.Popen(["sh", "-c", "read x", *arguments], stdin=subprocess.PIPE) as process:
        try:
            known = psutil.Process(process.pid)
            # It has its name before it has its arguments.
            words = shown(process.pid, lambda words: words[:1] == ["sh"])
            live = read_process(process.pid)
            assert live is not None
            assert list(live.command) == words == ["sh", "-c", "read x", *arguments]
            assert (live.parent_pid, live.stopped, live.foreign) == (os.getpid(), False, False)
            assert live.create_time == pytest.approx(known.create_time(), abs=0.02)
            assert live.start_ticks == start_ticks(process.pid)
            assert process.pid in all_pids()
            assert {process.pid, os.getpid(), os.getppid()} <= line_of(process.pid)
            process.send_signal(signal.SIGSTOP)
            while known.status() != psutil.STATUS_STOPPED:
                time.sleep(0.001)
            seen = read_process(process.pid)
            assert seen is not None and seen.stopped
        finally:
            process.kill()
        while known.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.001)
        assert read_process(process.pid) is None, "nobody has buried it yet"
    assert read_process(process.pid) is None
    assert line_of(process.pid) == {process.pid}


def test_a_title_that_a_process_gave_itself_is_read_as_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, words in ((b"a b\0", ("a b",)), (b"a b", ("a", "b")), (b"a\0\0", ("a", "")), (b"", ())):
        monkeypatch.setattr("pathlib.Path.read_bytes", lambda path, text=text: text)
        from fault.procfs import command_of

        assert command_of(1) == words


def test_what_may_not_be_read_is_refused_and_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> None:
        raise PermissionError("no")

    monkeypatch.setattr("fault.procfs.stat_of", refuse)
    with pytest.raises(VictimRefused, match="^pid: process 4000 belongs to another user and cannot be read"):
        read_process(4000)


@pytest.mark.parametrize("error", [FileNotFoundError(), ProcessLookupError()])
def test_what_ended_meanwhile_is_gone(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(pid: int) -> None:
        raise error

    monkeypatch.setattr("fault.procfs.stat_of", gone)
    assert read_process(4000) is None
