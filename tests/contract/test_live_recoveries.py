"""Live reports of recoveries match those that the judge finds afterwards in the same raw files."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from faultline.cli.sweep_progress import ProgressLine, SweepProgress
from faultline.engines.batches import read_batches
from faultline.experiment.attempt import Attempt
from faultline.experiment.run import run_of
from faultline.lifecycle.live_recovery import GRACE_S, LiveRecovery, RecoveryWatch
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.system.journal import log_instant_ns
from faultline.system.settings import ROOT, Settings
from tests.support.attempts import unpacked

NS = 10**9
GOLDEN = Path(__file__).with_name("golden")
# Attempts with one completed recovery. During a run, state epochs of commit mode `none` are in another folder.
RECOVERED = ("wc-executor-kill", "wc-changelog-executor", "wc-driver", "wc-worker", "wcp-python", "wc-kafka-kill",
             "wc-executor-pause", "gb-executor")  # fmt: skip


class Replay:
    """A golden attempt as it was on disk at an instant of its run: journals, logs and checkpoint."""

    def __init__(self, name: str, folder: Path) -> None:
        self.whole = unpacked(GOLDEN / f"{name}.tar.xz", folder / "whole")
        self.record: dict[str, Any] = json.loads((folder / "whole" / "record.json").read_text())
        self.settings = Settings(root=ROOT, home=folder / "home", results=folder / "results")
        self.attempt = Attempt(self.settings.attempts / self.whole.name)
        self.attempt.folder.mkdir(parents=True)
        self.attempt.engine_logs.mkdir()
        for file in ("attempt.json", "plan.json"):
            (self.attempt.folder / file).write_bytes((self.whole / file).read_bytes())
        self.commits = read_batches(self.whole)[1] if (self.whole / "batches.json").exists() else ()

    def at(self, wall_ns: int) -> None:
        """Write everything that the run had written by an instant."""
        for journal in self.whole.glob("*.jsonl"):
            lines = [line for line in journal.read_text().splitlines() if json.loads(line)["wall_ns"] <= wall_ns]
            if any('"settled"' in line for line in lines):
                # After the last injection, the fault scheduler writes the end of the window in advance.
                end = {"event": "measured_until", "wall_ns": self.instant("measured_until")}
                lines.append(json.dumps(end))
            (self.attempt.folder / journal.name).write_text("".join(f"{line}\n" for line in lines))
        for log in self.whole.glob("spark-logs/*/*/stderr"):
            target = self.settings.spark_work / "worker-1" / log.relative_to(self.whole / "spark-logs")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_until(log.read_text(errors="replace"), wall_ns))
        for log in self.whole.glob("spark-logs/driver-*.log"):
            (self.attempt.engine_logs / log.name).write_text(_until(log.read_text(errors="replace"), wall_ns))
        for commit in self.commits:
            if commit.committed_ns <= wall_ns:
                for kind, at_ns in (("offsets", commit.planned_ns or 0), ("commits", commit.committed_ns)):
                    path = self.attempt.checkpoint / kind / str(commit.number)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(f"v1\n{{}}\n{json.dumps({'t': commit.ends})}")
                    os.utime(path, ns=(at_ns, at_ns))

    def instant(self, name: str) -> int:
        return next(int(event["wall_ns"]) for event in self.record["timeline"] if event["name"] == name)


def _until(text: str, wall_ns: int) -> str:
    """Return the lines of a log up to an instant; lines without a time belong to their predecessor."""
    kept: list[str] = []
    for line in text.splitlines(keepends=True):
        try:
            datetime.fromisoformat(line[:24].replace("Z", "+00:00"))
        except ValueError:
            kept.append(line)
            continue
        if log_instant_ns(line[:24]) > wall_ns:
            break
        kept.append(line)
    return "".join(kept)


def judged(replay: Replay) -> tuple[float, float, float]:
    """Return the seconds from the signal to t2, t4 and t5 in the record."""
    recovery = replay.record["metrics"]["recovery"]
    reload_s = float(recovery["reload_s"])
    return float(recovery["detection_s"]), reload_s, reload_s + float(recovery["replay_s"])


@pytest.mark.parametrize("name", RECOVERED)
def test_live_reports_match_the_judge(name: str, tmp_path: Path) -> None:
    replay = Replay(name, tmp_path)
    now_ns = replay.instant("t5") + round((GRACE_S + 0.1) * NS)
    replay.at(now_ns)
    (found,) = RecoveryWatch(run_of(replay.attempt, replay.settings)).poll(now_ns)
    assert found.is_over and not found.outcome
    assert found.detected_s is not None and found.ready_s is not None and found.caught_up_s is not None
    assert (found.detected_s, found.ready_s, found.caught_up_s) == pytest.approx(judged(replay), abs=0.011)


def test_each_recovery_is_reported_once_and_never_early(tmp_path: Path) -> None:
    replay = Replay("wc-executor-kill", tmp_path)
    watch = RecoveryWatch(run_of(replay.attempt, replay.settings))
    t0_ns, begun_ns = replay.instant("t0"), replay.instant("t0") - 2 * NS
    detected, _, caught_up = judged(replay)
    over: list[LiveRecovery] = []
    for second in range(16):
        now_ns = begun_ns + second * NS
        replay.at(now_ns)
        looks = watch.poll(now_ns)
        elapsed_s = (now_ns - t0_ns) / NS
        assert not looks or elapsed_s >= 0, "before the signal"
        for found in looks:
            assert found.text.startswith("killed executor 1") and "nothing" not in found.text
            assert found.detected_s is None or elapsed_s >= detected
            assert (found.caught_up_s is None) == (elapsed_s < caught_up)
            assert found.ready_s is None or found.caught_up_s is not None, "another load may follow"
        over += [one for one in looks if one.is_over]
    assert [one.text for one in over] == [
        "killed executor 1; detected after 0.3 s; state loaded after 1.3 s; caught up after 4.0 s"
    ]


def test_unobservable_events_are_omitted(tmp_path: Path) -> None:
    replay = Replay("wc-executor-kill", tmp_path)
    now_ns = replay.instant("t5") + round((GRACE_S + 0.1) * NS)
    replay.at(now_ns)
    replay.attempt.recorder_journal.unlink()
    (found,) = RecoveryWatch(run_of(replay.attempt, replay.settings)).poll(now_ns)
    assert found.is_over and found.text == "killed executor 1; caught up after 4.0 s"


def test_a_fault_without_effect_is_reported_at_once(tmp_path: Path) -> None:
    replay = Replay("wc-executor-kill", tmp_path)
    now_ns = replay.instant("t0") + NS
    replay.at(now_ns)
    journal = replay.attempt.conductor_journal
    journal.write_text(journal.read_text().replace('"outcome":"effective"', '"outcome":"no-effect"'))
    (found,) = RecoveryWatch(run_of(replay.attempt, replay.settings)).poll(now_ns)
    assert found.is_over and found.text.startswith("killed executor 1: no-effect: ")


def test_sweep_progress_shows_recoveries_and_then_judged_results(tmp_path: Path) -> None:
    replay = Replay("wc-executor-kill", tmp_path)
    lines: list[str] = []
    sweep = str(replay.attempt.read()["sweep_id"])
    course = SweepProgress(replay.settings, sweep, [], ProgressLine(lines.append), budget_s=60.0)
    replay.at(replay.instant("t0") - NS)
    course.show(1, 0)
    assert "killed" not in lines[-1] and course.first_recovery_s is None
    replay.at(replay.instant("t5") + NS)
    course.show(1, 0)
    reported = [line for line in lines if "killed executor 1; detected after 0.3 s" in line]
    assert len(reported) == 1 and "caught up after 4.0 s" in reported[0]
    assert course.first_recovery_s is not None
    record = Record.model_validate(replay.record)
    Store(replay.settings.results).write(record)
    replay.attempt.closed.write_text("{}")
    course.show(1, 0)
    assert len([line for line in lines if "killed executor 1; detected" in line]) == 1, "each once"
    (judged,) = (line for line in lines if "measured: " in line)
    assert judged.endswith("state loaded after 1.3 s; caught up after 4.0 s; recovered after 21.0 s")


def test_a_completed_attempt_is_not_watched(tmp_path: Path) -> None:
    replay = Replay("wc-executor-kill", tmp_path)
    lines: list[str] = []
    replay.at(replay.instant("t5") + NS)
    replay.attempt.closed.write_text("{}")
    sweep = str(replay.attempt.read()["sweep_id"])
    SweepProgress(replay.settings, sweep, [], ProgressLine(lines.append), budget_s=60.0).show(1, 0)
    assert not [line for line in lines if "killed" in line.partition("):")[2]]
