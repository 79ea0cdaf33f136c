"""Detached processes: independent of their starter, in the ledger before they run, ended without side effects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from faultline.system.errors import InfrastructureError
from faultline.system.process_ledger import (
    HIGH_PRIORITY_NICENESS,
    LedgerEntry,
    append_entry,
    end_ledger,
    end_processes,
    process_of,
    processes_with_mark,
    read_ledger,
    spawn_detached,
    start_identity,
    victim_of,
)
from faultline.system.process_tags import RUN_MARK, run_token
from faultline.system.waiting import wait_until
from tests.support.decoys import OTHER_UID, decoy, only_root
from tests.support.processes import shown

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(900)"]

# Like an Airflow task: starts a detached process and exits; readers of its output wait for end of file.
STARTER = """
import sys
from pathlib import Path
from faultline.system.process_ledger import spawn_detached
folder = Path(sys.argv[1])
spawn_detached([sys.executable, "-c", "import time; time.sleep(900)"], role="generator", attempt=folder.name,
    ledger=folder / "ledger.jsonl", stdout=folder / "out", stderr=folder / "err", cwd=folder)
"""


def start(  # type: ignore[no-untyped-def]
    folder: Path, command: list[str] | None = None, *, high_priority: bool = False, **environment: str
):
    return spawn_detached(
        command or SLEEP,
        role="generator",
        attempt=folder.name,
        ledger=folder / "ledger.jsonl",
        stdout=folder / "out",
        stderr=folder / "err",
        cwd=folder,
        env=environment,
        high_priority=high_priority,
    )


def test_the_starter_ends_and_its_streams_close_while_the_process_lives(tmp_path: Path) -> None:
    # Without detachment, this call would last as long as the process.
    done = subprocess.run([sys.executable, "-c", STARTER, str(tmp_path)], capture_output=True, timeout=120, check=True)
    try:
        assert done.stdout == b""
        entry = read_ledger(tmp_path / "ledger.jsonl")[0]
        assert process_of(entry) is not None
    finally:
        end_ledger(tmp_path / "ledger.jsonl")


def test_a_detached_process_has_its_own_session_and_inherits_no_files_or_airflow_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "experiment")
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor")
    with (tmp_path / "secret").open("w") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        entry = start(tmp_path, EXTRA="1")
        try:
            process = process_of(entry)
            assert process is not None
            wait_until(lambda: "up" in (tmp_path / "out").read_text(), timeout_s=120, what="the program")
            assert os.getsid(entry.pid) != os.getsid(0)
            assert process.environ()["EXTRA"] == "1"
            assert not [key for key in process.environ() if key.startswith(("AIRFLOW_CTX", "AIRFLOW__"))]
            assert str(tmp_path / "secret") not in [file.path for file in process.open_files()]
            assert shown(entry.pid, run_token(entry.attempt))[-1] == run_token(entry.attempt)
        finally:
            end_ledger(tmp_path / "ledger.jsonl")
    assert process_of(entry) is None


def test_ending_a_ledger_spares_processes_with_a_recycled_pid(tmp_path: Path) -> None:
    unrelated = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL)
    entry = start(tmp_path)
    try:
        own = psutil.Process(unrelated.pid)
        began = own.create_time()
        for other in ({"create_time": began, "start_ticks": 1}, {"create_time": began - 5, "start_ticks": None}):
            append_entry(tmp_path / "ledger.jsonl", replace(entry, pid=unrelated.pid, **other))
        assert end_ledger(tmp_path / "ledger.jsonl") == [entry.pid]
        assert unrelated.poll() is None
        assert end_ledger(tmp_path / "ledger.jsonl") == [], "ending twice is harmless"
    finally:
        unrelated.kill()
        unrelated.wait()


def line_of(pid: int, attempt: str) -> LedgerEntry:
    """Return a correct ledger line for a process."""
    ticks, boot = start_identity(pid)
    began = psutil.Process(pid).create_time()
    return LedgerEntry(pid, began, "generator", [], attempt, run_token(attempt), start_ticks=ticks, boot=boot)


@only_root
def test_another_users_process_is_never_ended(tmp_path: Path) -> None:
    """Holds for root, and for a process that imitates the tags and is in the ledger."""
    entry, run = start(tmp_path), tmp_path.name
    with decoy(run_token(run), user=OTHER_UID, environment={RUN_MARK: run}) as other:
        append_entry(tmp_path / "ledger.jsonl", line_of(other.pid, run))
        assert process_of(line_of(other.pid, run)) is not None and victim_of(line_of(other.pid, run)) is None
        assert [process.pid for process in processes_with_mark(RUN_MARK, run)] == [entry.pid]
        assert end_processes([psutil.Process(other.pid)]) == []
        assert end_ledger(tmp_path / "ledger.jsonl") == [entry.pid]


@only_root
def test_a_child_that_changed_its_user_is_not_ended(tmp_path: Path) -> None:
    """Models a set-user-ID program."""
    program = (
        "import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', "
        f"'import os, time; os.setuid({OTHER_UID}); print(os.getpid(), flush=True); time.sleep(900)']).wait()"
    )
    entry = start(tmp_path, [sys.executable, "-c", program])
    child = int(wait_until(lambda: (tmp_path / "out").read_text(), timeout_s=120, what="the child"))
    try:
        assert end_ledger(tmp_path / "ledger.jsonl") == [entry.pid]
        assert psutil.Process(child).is_running()
    finally:
        psutil.Process(child).kill()


def test_a_program_with_the_token_as_argument_is_not_ended(tmp_path: Path) -> None:
    """`grep faultline-run=ATTEMPT` has the token as an argument, but did not inherit the tag."""
    entry, run = start(tmp_path), tmp_path.name
    # A process that has just been started shows no environment.
    wait_until(lambda: (tmp_path / "out").read_text(), timeout_s=120, what="the process")
    with decoy("-r", run_token(run), "results") as grep:
        assert [process.pid for process in processes_with_mark(RUN_MARK, run)] == [entry.pid]
        end_processes(processes_with_mark(RUN_MARK, run))
        assert grep.poll() is None
    assert process_of(entry) is None


def test_a_ledger_line_of_a_foreign_process_ends_nothing(tmp_path: Path) -> None:
    """Pid, creation time and user match; the tag is missing, or names another attempt."""
    ledger, run, other = tmp_path / "ledger.jsonl", tmp_path.name, "20261121T000000Z-fedcba"
    with decoy() as plain, decoy(run_token(other), environment={RUN_MARK: other}) as of_another:
        append_entry(ledger, line_of(plain.pid, run))
        append_entry(ledger, line_of(of_another.pid, run))
        append_entry(ledger, line_of(of_another.pid, other))
        assert end_ledger(ledger) == []


@only_root
@pytest.mark.parametrize("how", ["a link", "another user's", "a pipe"])
def test_a_planted_ledger_is_ignored(tmp_path: Path, how: str) -> None:
    entry, ledger = start(tmp_path), tmp_path / "ledger.jsonl"
    kept = tmp_path / "kept"
    ledger.rename(kept)
    if how == "a link":
        ledger.symlink_to(kept)
        with pytest.raises(OSError, match="symbolic links"):
            append_entry(ledger, entry)
    elif how == "a pipe":
        os.mkfifo(ledger)
    else:
        ledger.write_bytes(kept.read_bytes())
        os.chown(ledger, OTHER_UID, OTHER_UID)
    try:
        assert read_ledger(ledger) == [] and end_ledger(ledger) == []
        assert process_of(entry) is not None
    finally:
        ledger.unlink()
        kept.rename(ledger)
        assert end_ledger(ledger) == [entry.pid]


def test_a_process_that_changed_its_command_line_is_identified_by_its_environment(tmp_path: Path) -> None:
    entry = start(tmp_path, ["sh", "-c", "exec sleep 900"])
    process = process_of(entry)
    assert process is not None
    shown(entry.pid, lambda words: words == ["sleep", "900"])
    assert end_ledger(tmp_path / "ledger.jsonl") == [entry.pid]


def test_a_process_is_in_the_ledger_before_its_program_starts(tmp_path: Path) -> None:
    """The process blocks until its output, a FIFO, has a reader."""
    ledger = tmp_path / "ledger.jsonl"
    os.mkfifo(tmp_path / "out")
    starter = threading.Thread(target=start, args=(tmp_path,))
    starter.start()
    (entry,) = wait_until(lambda: read_ledger(ledger), timeout_s=120, what="its line")
    process = process_of(entry)
    assert process is not None
    assert shown(entry.pid, lambda words: len(words) > 2)[2] != SLEEP[2], "it has not become its program"
    assert end_ledger(ledger) == [entry.pid]
    starter.join(120)


def test_clock_steps_do_not_affect_identification(tmp_path: Path) -> None:
    entry = start(tmp_path)
    try:
        assert process_of(replace(entry, create_time=entry.create_time - 3600)) is not None
        assert process_of(replace(entry, boot="another start of the machine")) is None
    finally:
        end_ledger(tmp_path / "ledger.jsonl")


def test_children_are_ended_even_if_stopped(tmp_path: Path) -> None:
    program = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(900)']); print('up', flush=True); time.sleep(900)"  # noqa: E501
    entry = start(tmp_path, [sys.executable, "-c", program])
    process = process_of(entry)
    assert process is not None
    child = wait_until(lambda: next(iter(process.children()), None), timeout_s=120, what="the child")
    child.suspend()
    end_ledger(tmp_path / "ledger.jsonl")
    assert not psutil.pid_exists(child.pid) or child.status() == psutil.STATUS_ZOMBIE


def test_a_partial_ledger_line_is_ignored(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    entry = start(tmp_path)
    with ledger.open("a") as file:
        file.write(json.dumps({"pid": 1})[:-2])
    assert [line.pid for line in read_ledger(ledger)] == [entry.pid]
    assert end_ledger(ledger) == [entry.pid]


def test_a_missing_program_never_hangs(tmp_path: Path) -> None:
    try:
        entry = start(tmp_path, ["/nowhere/program"])
    except InfrastructureError:
        return
    wait_until(lambda: process_of(entry) is None, timeout_s=120, what="its end")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise a priority")
def test_high_priority_applies_across_sessions(tmp_path: Path) -> None:
    entry = start(tmp_path, high_priority=True)
    try:
        wait_until(
            lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_text(), timeout_s=120, what="its start"
        )
        assert os.getpriority(os.PRIO_PROCESS, entry.pid) == HIGH_PRIORITY_NICENESS
        group = Path(f"/proc/{entry.pid}/autogroup")
        if group.exists():
            assert group.read_text().split()[-2:] == ["nice", str(HIGH_PRIORITY_NICENESS)]
    finally:
        end_ledger(tmp_path / "ledger.jsonl")
