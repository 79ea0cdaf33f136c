"""Who notices what: applications told apart, several victims, and what nobody noticed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from faultline.engines.base import Epoch, Seen, Traces
from faultline.engines.spark.driver_log import DriverEvents, LogLine
from faultline.engines.spark.traces import drivers_logged, sampled
from faultline.records.judge.timeline import FaultEvidence, detect, without_effect
from faultline.system.window import NS
from tests.unit.scenario import spark_time
from tests.unit.synthetic import Scenario, Synthetic

MADE = Synthetic(Scenario())
T0 = MADE.t0


def _evidence(
    victims: list[dict[str, Any]],
    removed: list[tuple[str, str, float | None]],
    seen: Sequence[Seen] = (),
    epochs: Sequence[Epoch] = (),
    **more: Any,
) -> FaultEvidence:
    """`removed`: application, executor, seconds after t0 of its removal; each application is sampled in turn."""
    lines = []
    for turn, (application, identity, at) in enumerate(removed):
        executor: dict[str, Any] = {"id": identity}
        if at is not None:
            executor["removeTime"] = spark_time(T0 + round(at * NS))
        wall_ns = T0 - NS if turn == 0 else T0 + 9 * NS
        lines.append({"kind": "executors", "wall_ns": wall_ns, "app_id": application, "executors": [executor]})
    traces = Traces("batch", seen=(*sampled(lines), *seen), epochs=tuple(epochs))
    return dataclasses.replace(MADE.evidence(), victims=victims, traces=traces, **more)


def _executor(identity: str, application: str | None = None) -> dict[str, Any]:
    command = ["java", "--executor-id", identity, *(["--app-id", application] if application else [])]
    return {"pid": 5, "role": "executor", "command": command}


def test_two_applications_may_both_have_an_executor_0() -> None:
    removed = [("app-1", "0", 1.0), ("app-2", "0", 0.5)]
    for victim, seconds in ((_executor("0", "app-2"), 0.5), (_executor("0", "app-1"), 1.0), (_executor("0"), 1.0)):
        found = detect(_evidence([victim], removed))
        assert found is not None and found.wall_ns == T0 + round(seconds * NS)
    assert detect(_evidence([_executor("0", "app-3")], removed)) is None


def test_of_several_victims_the_last_one_counts() -> None:
    removed = [("a", "0", 0.25), ("a", "1", 0.75), ("a", "2", None)]
    both = detect(_evidence([_executor("0", "a"), _executor("1", "a")], removed))
    assert both is not None and both.wall_ns == T0 + 3 * NS // 4
    assert detect(_evidence([_executor("0", "a"), _executor("2", "a")], removed)) is None
    worker = {"pid": 6, "role": "worker", "executors": ["0", "1"]}
    hosted = detect(_evidence([worker], removed))
    assert hosted is not None and hosted.wall_ns == T0 + 3 * NS // 4


def test_a_random_process_is_judged_by_what_it_was() -> None:
    victims = [_executor("0", "a"), {"pid": 6, "role": "worker", "executors": ["1"]}]
    found = detect(_evidence(victims, [("a", "0", 0.25), ("a", "1", 0.75)], victim="any"))
    assert found is not None and found.wall_ns == T0 + 3 * NS // 4


def test_a_new_lineage_tells_of_a_loss_that_no_sample_saw() -> None:
    epoch = Epoch(1, T0 + NS, "an executor was lost")
    found = detect(_evidence([_executor("0", "a")], [("a", "0", None)], epochs=[epoch]))
    assert found is not None and found.wall_ns == T0 + NS
    assert "lineage 1" in found.source


def test_lines_before_the_fault_and_after_the_next_one_are_not_its_own() -> None:
    lines = [LogLine(T0 + offset * NS, "driver-0.log", "TaskSetManager: Lost task") for offset in (-1, 5)]
    said = drivers_logged(DriverEvents(lost_tasks=tuple(lines)))
    victim = [{"pid": 9, "role": "python_worker"}]
    evidence = _evidence(victim, [], said)
    found = detect(evidence)
    assert found is not None and found.wall_ns == T0 + 5 * NS
    assert without_effect(evidence) is None
    earlier = dataclasses.replace(evidence, until_ns=T0 + 4 * NS)
    assert detect(earlier) is None
    assert without_effect(earlier) == "no task was lost"


def test_a_pause_that_nobody_noticed_is_no_fault_without_effect() -> None:
    undone = [{"event": "undone", "undo": "SIGCONT", "wall_ns": T0 + at * NS} for at in (3, 4)]
    evidence = _evidence([{"pid": 9, "role": "python_worker"}], [], undone=undone)
    found = detect(evidence)
    assert found is not None and found.wall_ns == T0 + 4 * NS
    assert without_effect(evidence) is None
