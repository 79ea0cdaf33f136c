"""Detached processes: free of their starter, in the ledger before they run, and ended without harm to others."""

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
from tests.support.decoys import NOBODY, decoy, only_root
from tests.support.processes import shown

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(900)"]

# What an Airflow task does: it starts a detached process and ends; whoever reads its output waits for the end of it.
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
    # Without the detachment it would last as long as the process.
    done = subprocess.run([sys.executable, "-c", STARTER, str(tmp_path)], capture_output=True, timeout=120, check=True)
    try:
        assert done.stdout == b""
        entry = read_ledger(tmp_path / "ledger.jsonl")[0]
        assert process_of(entry) is not None
    finally:
        end_ledger(tmp_path / "ledger.jsonl")


def test_it_has_its_own_session_no_inherited_files_and_none_of_airflows_variables(
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


def test_ending_a_ledger_spares_whoever_has_the_pid_now(tmp_path: Path) -> None:
    """The same pid with another creation time is a stranger: a recycled number."""
    stranger = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL)
    entry = start(tmp_path)
    try:
        own = psutil.Process(stranger.pid)
        began = own.create_time()
        for other in ({"create_time": began, "start_ticks": 1}, {"create_time": began - 5, "start_ticks": None}):
            append_entry(tmp_path / "ledger.jsonl", replace(entry, pid=stranger.pid, **other))
        assert end_ledger(tmp_path / "ledger.jsonl") == [entry.pid]
        assert stranger.poll() is None
        assert end_ledger(tmp_path / "ledger.jsonl") == [], "ending twice is harmless"
    finally:
        stranger.kill()
        stranger.wait()


def line_of(pid: int, attempt: str) -> LedgerEntry:
    """What a ledger would say of a process, true in all that it says."""
    ticks, boot = start_identity(pid)
    began = psutil.Process(pid).create_time()
    return LedgerEntry(pid, began, "generator", [], attempt, run_token(attempt), start_ticks=ticks, boot=boot)


@only_root
def test_another_users_process_is_never_ended_whatever_it_calls_itself(tmp_path: Path) -> None:
    """Also by root, who could, and when the ledger names it."""
    entry, run = start(tmp_path), tmp_path.name
    with decoy(run_token(run), user=NOBODY, environment={RUN_MARK: run}) as other:
        append_entry(tmp_path / "ledger.jsonl", line_of(other.pid, run))
        assert process_of(line_of(other.pid, run)) is not None and victim_of(line_of(other.pid, run)) is None
        assert [process.pid for process in processes_with_mark(RUN_MARK, run)] == [entry.pid]
        assert end_processes([psutil.Process(other.pid)]) == []
        assert end_ledger(tmp_path / "ledger.jsonl") == [entry.pid]


@only_root
def test_a_child_that_became_another_users_is_none_of_ours(tmp_path: Path) -> None:
    """As of a program with a set user bit."""
    program = (
        "import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', "
        f"'import os, time; os.setuid({NOBODY}); print(os.getpid(), flush=True); time.sleep(900)']).wait()"
    )
    entry = start(tmp_path, [sys.executable, "-c", program])
    child = int(wait_until(lambda: (tmp_path / "out").read_text(), timeout_s=120, what="the child"))
    try:
        assert end_ledger(tmp_path / "ledger.jsonl") == [entry.pid]
        assert psutil.Process(child).is_running()
    finally:
        psutil.Process(child).kill()


def test_a_persons_program_that_names_the_token_lives(tmp_path: Path) -> None:
    """`grep faultline-run=ATTEMPT` bears the token as one whole argument; it has inherited nothing."""
    entry, run = start(tmp_path), tmp_path.name
    with decoy("-r", run_token(run), "results") as grep:
        assert [process.pid for process in processes_with_mark(RUN_MARK, run)] == [entry.pid]
        end_processes(processes_with_mark(RUN_MARK, run))
        assert grep.poll() is None
    assert process_of(entry) is None


def test_a_line_that_names_somebody_elses_process_ends_nobody(tmp_path: Path) -> None:
    """Its pid and its birth are right, and the user is the same; what lacks is the mark, or the attempt is another."""
    ledger, run, other = tmp_path / "ledger.jsonl", tmp_path.name, "20261121T000000Z-fedcba"
    with decoy() as plain, decoy(run_token(other), environment={RUN_MARK: other}) as of_another:
        append_entry(ledger, line_of(plain.pid, run))
        append_entry(ledger, line_of(of_another.pid, run))
        append_entry(ledger, line_of(of_another.pid, other))
        assert end_ledger(ledger) == []


@only_root
@pytest.mark.parametrize("how", ["a link", "another user's", "a pipe"])
def test_a_ledger_that_was_planted_names_nobody(tmp_path: Path, how: str) -> None:
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
        os.chown(ledger, NOBODY, NOBODY)
    try:
        assert read_ledger(ledger) == [] and end_ledger(ledger) == []
        assert process_of(entry) is not None
    finally:
        ledger.unlink()
        kept.rename(ledger)
        assert end_ledger(ledger) == [entry.pid]


def test_a_process_that_shows_another_command_line_is_known_by_what_it_inherited(tmp_path: Path) -> None:
    entry = start(tmp_path, ["sh", "-c", "exec sleep 900"])
    process = process_of(entry)
    assert process is not None
    shown(entry.pid, lambda words: words == ["sleep", "900"])
    assert end_ledger(tmp_path / "ledger.jsonl") == [entry.pid]


def test_it_is_of_the_attempt_before_its_program_has_begun(tmp_path: Path) -> None:
    """It is in the ledger, and waits for somebody who reads what it is going to say."""
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


def test_a_process_is_known_whatever_the_clock_was_set_to(tmp_path: Path) -> None:
    """What the wall clock says of its creation moves with each step of the clock."""
    entry = start(tmp_path)
    try:
        assert process_of(replace(entry, create_time=entry.create_time - 3600)) is not None
        assert process_of(replace(entry, boot="another start of the machine")) is None
    finally:
        end_ledger(tmp_path / "ledger.jsonl")


def test_children_are_ended_too_and_a_stopped_one_as_well(tmp_path: Path) -> None:
    program = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(900)']); print('up', flush=True); time.sleep(900)"  # noqa: E501
    entry = start(tmp_path, [sys.executable, "-c", program])
    process = process_of(entry)
    assert process is not None
    child = wait_until(lambda: next(iter(process.children()), None), timeout_s=120, what="the child")
    child.suspend()
    end_ledger(tmp_path / "ledger.jsonl")
    assert not psutil.pid_exists(child.pid) or child.status() == psutil.STATUS_ZOMBIE


def test_a_half_written_ledger_line_is_passed_over(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    entry = start(tmp_path)
    with ledger.open("a") as file:
        file.write(json.dumps({"pid": 1})[:-2])
    assert [line.pid for line in read_ledger(ledger)] == [entry.pid]
    assert end_ledger(ledger) == [entry.pid]


def test_a_program_that_is_not_there_is_an_error_or_a_dead_process_never_a_hang(tmp_path: Path) -> None:
    try:
        entry = start(tmp_path, ["/nowhere/program"])
    except InfrastructureError:
        return
    wait_until(lambda: process_of(entry) is None, timeout_s=120, what="its end")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise a priority")
def test_a_punctual_process_goes_before_other_sessions_and_not_only_within_its_own(tmp_path: Path) -> None:
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
