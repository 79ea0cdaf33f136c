"""CPU of recorder and services in measured windows, from records and journals."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.speed.recorder import figures
from faultline.experiment.attempt import Attempt
from faultline.records.record import Record, TimelineEvent
from faultline.records.work_parts import BackgroundCpuPart, WaitedPart
from faultline.system.errors import InfrastructureError
from faultline.system.journal import Journal
from tests.unit.sample_records import sample

FROM_S, UNTIL_S = 100, 120


def measured(folder: Path, *, judged: bool = True) -> tuple[Attempt, Record]:
    """A service uses a tenth of a core and gives way from the middle of the window on; two samples came late."""
    attempt = Attempt(folder)
    folder.mkdir()
    with Journal(attempt.recorder_journal) as journal:
        for second in range(FROM_S - 5, UNTIL_S + 5):
            lowered = {"lowered": True} if second >= (FROM_S + UNTIL_S) / 2 else {}
            proc = {"kind": "proc", "role": "services", "pid": 7, "create_time": 1.0, "rss_bytes": 1, "final": False}
            journal.append({**proc, "cpu_s": 0.1 * second, **lowered, "wall_ns": second * 10**9})
        for _ in range(2):
            journal.append({"kind": "overrun", "late_s": 0.1})
    record = sample()
    background = BackgroundCpuPart(processes=0.2, steal=0.0, services=0.1, recorder=0.01) if judged else None
    metrics = record.metrics.model_copy(
        update={"background_cpu": background, "waited": WaitedPart(others=0.02, stolen=0.0, worst_5s=0.1)}
    )
    timeline = [
        TimelineEvent(name=name, wall_ns=at * 10**9, mono_ns=at * 10**9, source="x")
        for name, at in (("measured_from", FROM_S), ("measured_until", UNTIL_S))
    ]
    return attempt, record.model_copy(update={"metrics": metrics, "timeline": timeline})


def test_cores_with_lowered_priority_are_separate(tmp_path: Path) -> None:
    found = figures([measured(tmp_path / name) for name in ("a", "b")])
    assert {name: (one.value, one.n) for name, one in found.items()} == {
        "recorder_cores": (0.01, 2),
        "services_cores": (0.1, 2),
        "given_way_cores": (pytest.approx(0.05), 2),
        "lost_cores": (0.02, 2),
        "recorder_late": (2.0, 2),
    }


def test_a_sweep_in_which_nothing_was_judged_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="^services: "):
        figures([measured(tmp_path / "a", judged=False)])
