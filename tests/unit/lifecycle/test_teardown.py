"""Closing of attempts, by the state their engine left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault.action import UndoSpec
from fault.handler import Handler
from fault.identity import EXECUTOR
from faultline.engines.spark import shared_storage as throwaway
from faultline.engines.spark.collect import keep_logs
from faultline.engines.spark.shared_storage import make_ephemeral_checkpoint
from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.attempt_plan import read_plan
from faultline.experiment.run import Run, run_of
from faultline.lifecycle.ending import drain_limit
from faultline.lifecycle.ending.drain_limit import StallDetector, drain_limit_s, is_idle
from faultline.lifecycle.ending.undo_replay import undo_fields
from faultline.lifecycle.teardown import close_attempt, note_failure, refuse_unfinished
from faultline.records.store import Store
from faultline.system.errors import InfrastructureError
from faultline.system.journal import Journal, write_lines
from faultline.system.process_ledger import LedgerEntry, append_entry, boot_id, is_marked
from faultline.system.process_tags import RUN_MARK
from faultline.system.settings import Settings
from faultline.system.waiting import wait_until
from tests.support.attempts import ID, prepared
from tests.unit.sleepers import PROGRAM, only

APPLICATION = "app-1"
TOPICS = [f"{ID}-{role}" for role in ("input", "output", "warmup")]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, tmp_path / "home", tmp_path / "results")


def left(settings: Settings, values: dict[str, Any] | None = None) -> tuple[Run, Attempt, Path]:
    """Return a complete attempt with a checkpoint and a Spark worker's folder."""
    attempt = prepared(settings.attempts / ID, values)
    (attempt.checkpoint / "commits").mkdir(parents=True)
    attempt.scratch.mkdir()
    attempt.logs.mkdir()
    write_json(attempt.folder / "end.json", {})
    write_lines(attempt.recorder_journal, [{"kind": "executors", "app_id": APPLICATION, "wall_ns": 1}])
    worker = settings.spark_work / "worker-1" / APPLICATION
    worker.mkdir(parents=True)
    return run_of(attempt, settings), attempt, worker


def test_what_spark_left_is_removed_once_it_is_harvested(settings: Settings) -> None:
    run, attempt, worker = left(settings)
    attempt.harvest.mkdir()
    (attempt.harvest / "counts.parquet").touch()
    write_lines(attempt.generator_journal, [{"event": "application", "app_id": "app-2"}])
    sending = settings.spark_work / "worker-2" / "app-2" / "0"
    sending.mkdir(parents=True)
    (sending / "stderr").write_text("reported by a generator process")
    kept = attempt.folder / "checkpoint.kept"  # of a teardown that was killed while it kept the logs
    kept.mkdir()
    deleted: list[str] = []
    assert close_attempt(run, deleted.extend) == {"ended": [], "topics": TOPICS}
    assert deleted == TOPICS
    assert not attempt.checkpoint.exists() and not attempt.scratch.exists() and not worker.exists()
    assert not kept.exists() and not sending.parent.exists()
    assert (attempt.logs / "generator-0.err").read_text() == "reported by a generator process"
    (record,) = Store(settings.results).query()
    assert (record.attempt, record.status) == (attempt.id, "failed")


def test_what_frees_space_comes_first_and_the_record_also_when_the_broker_is_away(settings: Settings) -> None:
    run, attempt, worker = left(settings)
    (attempt.folder / "end.json").unlink()

    def refuse(topics: list[str]) -> None:
        assert not attempt.checkpoint.exists() and not worker.exists()
        assert Store(settings.results).query() == [], "on a full disk there was no room for it before"
        raise InfrastructureError("kafka: away")

    with pytest.raises(InfrastructureError, match="away"):
        close_attempt(run, refuse)
    assert [one.status for one in Store(settings.results).query()] == ["failed"] and not attempt.closed.exists()
    close_attempt(run, lambda topics: None)
    assert attempt.closed.exists() and len(Store(settings.results).query()) == 1


def test_a_reason_that_cannot_be_noted_hides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "failures.jsonl").symlink_to("/dev/full")
    note_failure(tmp_path, "heal", InfrastructureError("healing: broker"))
    assert "heal: noting the failure failed: " in capsys.readouterr().out


def test_what_is_not_harvested_yet_stays_but_for_what_lies_in_memory(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throwaway, "RAM_DISK", tmp_path)
    run, attempt, worker = left(settings, {"commit_mode": "none"})
    lineage = make_ephemeral_checkpoint(attempt) / "lineage-0"
    attempt.checkpoint.rename(lineage)
    attempt.checkpoint.symlink_to(lineage)
    assert close_attempt(run, lambda topics: None)["topics"] == []
    assert (attempt.checkpoint / "commits").is_dir() and not attempt.checkpoint.is_symlink()
    assert worker.exists() and not lineage.parent.exists()


@pytest.mark.parametrize("harvested", [False, True])
def test_of_a_machine_that_went_down_nothing_is_kept_or_judged(settings: Settings, harvested: bool) -> None:
    run, attempt, _ = left(settings)
    if harvested:
        attempt.harvest.mkdir()
        (attempt.harvest / "counts.parquet").touch()
    entry = LedgerEntry(1, 1.0, "recorder", ["x"], attempt.id, "t", start_ticks=1)
    for boot in ("", boot_id()):
        append_entry(attempt.ledger, replace(entry, boot=boot))
        refuse_unfinished(attempt)
    append_entry(attempt.ledger, replace(entry, boot="before"))
    with pytest.raises(InfrastructureError, match=f"{attempt.id}: machine rebooted"):
        refuse_unfinished(attempt)
    assert close_attempt(run, lambda topics: None)["topics"] == TOPICS
    refuse_unfinished(attempt)  # a closed attempt has its own refusal


def test_ground_truth_leaves_only_its_raw_files(settings: Settings) -> None:
    run, attempt, worker = left(settings, {"workload": "known_truth", "fault": "driver"})
    (attempt.folder / "end.json").unlink()
    attempt.traces.touch()
    close_attempt(run, lambda topics: None)
    assert worker.exists() and attempt.traces.exists() and not attempt.scratch.exists()
    assert json.loads(attempt.closed.read_text())["topics"] == TOPICS


def test_a_process_that_would_not_end_keeps_nothing_from_being_healed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, attempt, _ = left(settings)
    attempt.conductor_journal.touch()
    healed: list[Attempt] = []
    monkeypatch.setattr("faultline.lifecycle.ending.undo_replay.replay_undos", healed.append)

    def refuse(ledger: Path) -> list[int]:
        raise InfrastructureError("process 7 (generator): still there after SIGKILL")

    monkeypatch.setattr("faultline.lifecycle.teardown.end_ledger", refuse)
    with pytest.raises(InfrastructureError, match="still there"):
        close_attempt(run, lambda topics: None)
    assert healed == [attempt] and not attempt.closed.exists()


def test_who_a_killed_conductor_left_paused_is_continued(settings: Settings) -> None:
    name = f"20261121T061500Z-{uuid.uuid4().hex[:6]}"
    attempt = prepared(settings.attempts / name)
    words = [f"-Dfaultline.run={name}", EXECUTOR.main, "--executor-id", "0"]
    with subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
            victim = only(name)
            with Journal(attempt.conductor_journal) as journal:
                journal.write("undo_registered", **undo_fields(UndoSpec("pause", "SIGCONT to it", victim.as_json()), 0))
            process.send_signal(signal.SIGSTOP)
            watched = Handler()
            wait_until(lambda: watched.ask("probe", victim=victim) == "stopped", timeout_s=120, what="the pause")
            assert close_attempt(run_of(attempt, settings), lambda topics: None)["ended"] == []
            wait_until(lambda: watched.ask("probe", victim=victim) == "alive", timeout_s=120, what="its end")
            assert attempt.closed.exists() and not attempt.unhealed.exists()
        finally:
            process.kill()


def test_what_a_killed_supervisor_had_started_is_ended_without_the_token(settings: Settings) -> None:
    """They are found by the inherited process tag; a pid in a journal is not enough."""
    run, attempt, _ = left(settings)
    inherited = {**os.environ, RUN_MARK: attempt.id}
    with subprocess.Popen(["sleep", "60"], env=inherited) as workload, subprocess.Popen(["sleep", "60"]) as other:
        try:
            began = psutil.Process(other.pid).create_time()
            write_lines(
                attempt.supervisor_journal,
                [{"event": "start", "incarnation": 0, "pid": other.pid, "create_time": began}],
            )
            wait_until(lambda: is_marked(psutil.Process(workload.pid), RUN_MARK, attempt.id), timeout_s=120, what="it")
            assert close_attempt(run, lambda topics: None)["ended"] == [workload.pid]
            assert other.poll() is None
        finally:
            workload.kill()
            other.kill()


@pytest.mark.parametrize("name", ["../../precious", "..", "*"])
def test_an_application_by_the_name_of_a_path_removes_nothing(settings: Settings, name: str) -> None:
    """The name comes from the process that replied at the driver's port."""
    run, attempt, worker = left(settings)
    precious = settings.spark_work / "precious" / "kept"
    precious.mkdir(parents=True)
    write_lines(attempt.recorder_journal, [{"kind": "executors", "app_id": name, "wall_ns": 1}])
    write_lines(attempt.generator_journal, [{"event": "application", "app_id": name}])
    (attempt.folder / "end.json").unlink()
    close_attempt(run, lambda topics: None)
    assert precious.is_dir() and worker.is_dir()


@pytest.mark.parametrize("killed", ["before", "while it copied", "before the folder was there", "before it was done"])
def test_keeping_the_logs_goes_on_where_it_was_killed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    monkeypatch.setattr(throwaway, "RAM_DISK", tmp_path)
    _, attempt, _ = left(settings, {"commit_mode": "none"})
    lineage, kept = make_ephemeral_checkpoint(attempt) / "lineage-0", attempt.folder / "checkpoint.kept"
    (attempt.checkpoint / "commits" / "7").write_text("v1")
    attempt.checkpoint.rename(lineage)
    attempt.checkpoint.symlink_to(lineage)
    if killed == "while it copied":
        (kept / "offsets").mkdir(parents=True)
    elif killed != "before":
        shutil.copytree(lineage, kept)
        attempt.checkpoint.unlink()
        if killed == "before it was done":
            kept.rename(attempt.checkpoint)
    for _ in range(2):
        keep_logs(attempt)
        assert not attempt.checkpoint.is_symlink() and not kept.exists() and not lineage.parent.exists()
        assert (attempt.checkpoint / "commits" / "7").read_text() == "v1"


@pytest.mark.parametrize(
    ("kinds", "status", "reason"),
    [
        (["InvalidMeasurement", "InfrastructureError"], "invalid", "schedule-lag: late"),
        (["InfrastructureError", "InvalidMeasurement"], "failed", "InfrastructureError: await_end: schedule-lag: late"),
        (["InvalidMeasurement", "Cancelled"], "cancelled", "InvalidMeasurement: await_end: schedule-lag: late"),
    ],
)
def test_a_step_that_finds_out_that_nothing_can_be_measured_makes_the_record_invalid(
    settings: Settings, kinds: list[str], status: str, reason: str
) -> None:
    run, attempt, _ = left(settings)
    lines = [{"event": "failed", "step": "await_end", "kind": kind, "message": "schedule-lag: late"} for kind in kinds]
    write_lines(attempt.folder / "failures.jsonl", lines)
    close_attempt(run, lambda topics: None)
    (record,) = Store(settings.results).query()
    assert (record.status, record.reasons[0]) == (status, reason)


# --- how long the drain may take, and that it lasts while there is progress


NS = 10**9


@dataclass(frozen=True)
class Again:
    """Engine with a first commit after the fault; None: without one."""

    committed_ns: int | None

    def await_cycle(self, cycle: str, not_before_ns: int, until_mono_ns: int) -> int | None:
        return self.committed_ns


def limit_s(attempt: Attempt, committed_ns: int | None) -> float:
    engine: Any = Again(committed_ns)
    return drain_limit_s(attempt, read_plan(attempt), engine)


def test_it_is_a_minute_and_three_intervals_or_three_restarts_when_that_is_more(tmp_path: Path) -> None:
    attempt = prepared(tmp_path, {"checkpoint_interval_s": 4.0})
    assert limit_s(attempt, None) == 72.0, "without a fault"
    hit_ns = time.time_ns() - 50 * NS
    lines = [{"event": "delivered", "wall_ns": hit_ns - 90 * NS}, {"event": "delivered", "wall_ns": hit_ns}]
    attempt.conductor_journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert limit_s(attempt, hit_ns + 5 * NS) == 72.0
    assert limit_s(attempt, hit_ns + 40 * NS) == pytest.approx(120.0), "from the last fault on"
    assert limit_s(attempt, None) == pytest.approx(150.0, abs=15), "and it is not back yet"


@given(st.lists(st.tuples(st.floats(0.1, 30), st.integers(0, 3)), min_size=1), st.floats(10, 100))
def test_it_ends_only_where_nothing_more_was_committed_for_as_long_as_the_limit(
    looks: list[tuple[float, int]], limit_s: float
) -> None:
    """A new state epoch may start before committed offsets; that is not progress."""
    now = grown = 0.0
    committed = {"0": 5, "1": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drain_limit.time, "monotonic", lambda: now)
        advance = StallDetector(limit_s)
        assert advance.stall_message(committed) is None
        for waited, more in looks:
            now += waited
            committed["1"] += more
            grown = now if more else grown
            assert (advance.stall_message(committed) is None) == (now - grown < limit_s)
            assert (advance.stall_message({"0": 1}) is None) == (now - grown < limit_s)


def test_a_query_without_a_watermark_has_settled_when_no_batch_comes_any_more() -> None:
    def settled(ago_s: float) -> bool:
        engine: Any = SimpleNamespace(last_commit_ns=lambda: time.time_ns() - round(ago_s * NS))
        return is_idle(engine, 2.0)

    assert settled(37.0) and not settled(30.0) and not settled(0.0)
