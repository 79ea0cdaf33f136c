"""Validity rules: limits, reasons, and independence of the rules."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from faultline.experiment.config import parse_configuration
from faultline.records.judge.cpu import BackgroundLoad, LostCpu
from faultline.records.judge.journals import SettledFault
from faultline.records.judge.rule_inputs import RuleInputs
from faultline.records.judge.steady import Drift
from faultline.records.judge.validity import LOST_BRIEFLY, LOST_CORES, RULES, reasons
from faultline.records.work_parts import BackgroundCpuPart
from tests.unit.synthetic import Scenario

GOOD = RuleInputs(
    configuration=Scenario().configuration,
    late_share=0.01,
    recovery_lateness_ms=250.0,
    generator_died=None,
    recorder_died=None,
    scheduler_death=None,
    baseline_commits=10,
    drifts={"latency": Drift(0.01, -0.2, 0.25), "lag": Drift(0.0, -0.25, 0.1)},
    growth=(-3.0, 2.0),
    offered_rps=200.0,
    t0_backlog=0,
    spans_s=np.array([2.1] * 9 + [2.4]),
    outcomes=[SettledFault("effective", "gone")],
    losses=["executor 0 was lost"],
    undrained=0,
    chain_problems=(),
)
CONTROL = dataclasses.replace(
    GOOD, configuration=Scenario(fault=False).configuration, outcomes=(), losses=(), baseline_commits=3
)


def reasons_with(good: RuleInputs = GOOD, **changes: Any) -> list[str]:
    return reasons(dataclasses.replace(good, **changes))


def codes_with(good: RuleInputs = GOOD, **changes: Any) -> list[str]:
    return [reason.partition(":")[0] for reason in reasons_with(good, **changes)]


MOVED = {"latency": Drift(0.4, 0.3, 0.5), "lag": Drift(0.0, -0.1, 0.1)}
SLOW = Scenario(checkpoint_interval_s=5.0).configuration


@pytest.mark.parametrize(
    ("good", "changes"),
    [
        (GOOD, {}),
        (CONTROL, {}),
        (GOOD, {"configuration": SLOW, "baseline_commits": 4, "spans_s": np.full(4, 5.0)}),
        (GOOD, {"clock_jump_ms": 100.0, "late_share": 0.01}),
        (GOOD, {"clock_jump_ms": -100.0, "late_share": None, "recovery_lateness_ms": None}),
        (GOOD, {"taken": BackgroundLoad(0.3, 1.0)}),
        (GOOD, {"growth": (2.0, 9.0)}),
        (CONTROL, {"drifts": MOVED}),
    ],
    ids=["faulted", "control", "four bins of 5 s", "clock", "negative clock", "load", "growth", "control drift"],
)
def test_values_at_a_limit_are_valid(good: RuleInputs, changes: dict[str, Any]) -> None:
    assert reasons_with(good, **changes) == []


LATE = {"late_share": 0.02}
TOO_LATE = "schedule-lag: 2.0% of the records were more than 50 ms late"


@pytest.mark.parametrize(
    ("good", "changes", "expected"),
    [
        (GOOD, {**LATE, "background": BackgroundCpuPart(processes=0.014, steal=1.06)},
         [f"{TOO_LATE}; other processes used 0.01 cores; the host took 1.06 cores"]),
        (GOOD, {**LATE, "background": BackgroundCpuPart(processes=None, steal=None)},
         [TOO_LATE]),
        (GOOD, {"recovery_lateness_ms": 312.0}, ["schedule-lag: up to 312 ms > 250 ms during a recovery"]),
        (GOOD, {"outcomes": [SettledFault("effective"), SettledFault("no-effect", "gone before"), SettledFault(None)]},
         ["no-effect: fault 2 changed nothing (gone before)",
          "fault-outcome-unknown: fault 3 has an unknown outcome"]),
        (CONTROL, {"losses": ["executor 0 was lost"]}, ["fault-in-control: executor 0 was lost"]),
        (GOOD, {"drifts": MOVED},
         ["not-steady: latency moved by +40% (+30% to +50%) before the fault, and not surely within 25%"]),
        (GOOD, {"growth": (2.1, 9.4)}, ["overloaded: lag grew by 2 to 9 of 200 records/s > 1%"]),
    ],
    ids=["background CPU", "unknown CPU", "recovery", "every fault", "control", "drift", "growth"],
)  # fmt: skip
def test_reasons_name_the_findings(good: RuleInputs, changes: dict[str, Any], expected: list[str]) -> None:
    assert reasons_with(good, **changes) == expected


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("schedule-lag", {"late_share": 0.0101}),
        ("schedule-lag", {"recovery_lateness_ms": 250.1}),
        ("clock-jumped", {"clock_jump_ms": -101.0}),
        ("clock-jumped", {"clock_jump_ms": 100.1}),
        ("clock-skew", {"clock_uncertain": ("worker-1", 5.1)}),
        ("background-load", {"taken": BackgroundLoad(0.31, 0.5)}),
        ("background-load", {"taken": BackgroundLoad(0.1, 1.01)}),
        ("background-load", {"lost": LostCpu(LOST_CORES - 0.01, 0.02, 0.3)}),
        ("background-load", {"lost": LostCpu(LOST_CORES + 0.01, None, 0.3)}),
        ("background-load", {"lost": LostCpu(0.0, 0.0, LOST_BRIEFLY + 0.01)}),
        ("generator-died", {"generator_died": "killed"}),
        ("recorder-died", {"recorder_died": "killed"}),
        ("scheduler-died", {"scheduler_death": "killed"}),
        ("baseline-too-short", {"baseline_commits": 9}),
        ("not-steady", {"drifts": {"latency": Drift(0.2, 0.1, 0.26), "lag": None}}),
        ("not-steady", {"drifts": {"latency": None, "lag": Drift(-0.2, -0.3, -0.1)}}),
        ("overloaded", {"growth": (2.1, 9.0)}),
        ("overloaded", {"growth": (2.1, 9.0), "drifts": {"lag": Drift(0.9, 0.5, 1.0)}}),
        ("backlog-at-t0", {"t0_backlog": 1}),
        ("store-unverified", {"store_not_read": True}),
        ("interval-not-held", {"spans_s": np.full(10, 2.11)}),
        ("interval-not-held", {"spans_s": np.array([2.0] * 8 + [2.5, 2.5])}),
        ("interval-not-held", {"spans_s": np.array([])}),
        (
            "interval-not-held",
            {"drifts": MOVED, "baseline_commits": 6, "spans_s": np.full(6, 3.0)},
        ),  # prevents a bias towards fast runs
        ("no-effect", {"outcomes": [SettledFault("no-effect", "no task was lost")]}),
        ("missed-window", {"outcomes": [SettledFault("missed-window")]}),
        ("fault-outcome-unknown", {"outcomes": [SettledFault("unknown")]}),
        ("fault-outcome-unknown", {"outcomes": [SettledFault(None)]}),
        ("drain-incomplete", {"undrained": 3}),
        ("drain-incomplete", {"last_batch_lost": True}),
        ("timeline-incomplete", {"chain_problems": ("missing: t3, though t7 was seen",)}),
    ],
)
def test_each_rule_fires_alone(code: str, changes: dict[str, Any]) -> None:
    assert codes_with(**changes) == [code]


def test_every_rule_has_a_docstring() -> None:
    assert all(rule.condition for rule in RULES)


@pytest.mark.parametrize(
    ("config", "is_reason"),
    [
        ({"fault": "none"}, True),
        ({"fault": "none", "accept_overload": True}, False),
        ({"fault": "executor", "accept_overload": True}, True),
        ({"workload": "nexmark", "query": "q0", "fault": "none"}, False),
    ],
)
def test_overload_is_a_result_only_if_accepted(config: dict[str, Any], is_reason: bool) -> None:
    good = GOOD if config["fault"] != "none" else CONTROL
    slow = dataclasses.replace(good, configuration=parse_configuration(config), spans_s=np.full(3, 600.0))
    assert codes_with(slow) == (["interval-not-held"] if is_reason else [])
    growth = (20.0, 30.0) if slow.configuration.paced else None
    assert codes_with(slow, spans_s=np.full(3, 2.0), growth=growth) == (["overloaded"] if is_reason else [])
    assert reasons_with(slow, spans_s=np.array([])) == ["interval-not-held: no commit in the measured window"]
