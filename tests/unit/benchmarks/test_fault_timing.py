"""Benchmark of fault timing: the scheduler accepts its plan, and its figures include every fault."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import fault_timing
from benchmarks.fault_timing import EVERY_S, FIRST_S, FULL, QUICK, errors_ms, figures, percentile, prepare
from fault.identity import Tokens
from fault.victims import find_victims
from faultline.experiment.attempt import Attempt
from faultline.lifecycle.scheduler_input import read_scheduler_input
from faultline.system.errors import InfrastructureError
from tests.support.attempts import ENDPOINTS

ATTEMPT = "20261121T061500Z-fa9c1b"


@pytest.mark.parametrize("faults", [2, QUICK[1], FULL[1]])
def test_the_plan_is_one_that_the_conductor_takes(tmp_path: Path, faults: int) -> None:
    prepare(Attempt(tmp_path), ENDPOINTS, "t", faults)
    planned = read_scheduler_input(tmp_path).planned
    assert [one.earliest_s for one in planned] == pytest.approx([FIRST_S + k * EVERY_S for k in range(faults)])
    assert {(one.fault.victim, one.fault.action) for one in planned} == {("executor", "kill")}


def test_the_scales_hold_what_is_promised() -> None:
    assert (math.prod(FULL), math.prod(QUICK)) == (200, 40)


def line(fault: int, late_ns: int, **more: Any) -> dict[str, Any]:
    base = {"event": "delivered", "fault": fault, "planned_mono_ns": 10**9, "mono_ns": 10**9 + late_ns}
    return {**base, "acknowledged": True, **more}


def test_errors_are_absolute_and_in_order_of_faults() -> None:
    assert errors_ms([{"event": "gate"}, line(1, -2_000_000), line(0, 500_000)], 2) == [0.5, 2.0]


@pytest.mark.parametrize("missing", [{"acknowledged": False}, {"event": "invoked"}])
def test_a_fault_that_was_not_delivered_is_never_left_out(missing: dict[str, Any]) -> None:
    lines = [line(0, 1), line(1, 1, **missing)]
    with pytest.raises(InfrastructureError, match="fault 1 of 2 was not delivered: the fault scheduler has no outcome"):
        errors_ms(lines, 2)
    settled = {"event": "settled", "fault": 1, "outcome": "missed-window", "detail": "the act came 3 s late"}
    with pytest.raises(InfrastructureError, match="missed-window: the act came 3 s late"):
        errors_ms([*lines, settled], 2)


def test_figures_are_over_all_faults_with_the_range_of_the_runs() -> None:
    idle, loaded = [float(n) for n in range(1, 101)], [2.0] * 99 + [500.0]
    found = figures([idle, loaded])
    assert (found["error_p99_ms"].value, found["error_p99_ms"].low, found["error_p99_ms"].high) == (99.0, 2.0, 99.0)
    assert found["error_max_ms"].value == 500.0
    assert found["error_p50_ms"].low == 2.0
    assert (found["loaded_error_p99_ms"].value, found["loaded_error_p99_ms"].n) == (2.0, 1)
    assert (found["faults"].value, found["faults"].n) == (200, 2)
    assert [percentile([3.0, 1.0, 2.0], percent) for percent in (0, 50, 99, 100)] == [1.0, 2.0, 3.0, 3.0]


def test_victims_are_found_replaced_and_ended() -> None:
    tokens = Tokens(ATTEMPT)
    with fault_timing._Victims(ATTEMPT) as victims:
        first = find_victims("executor", tokens)
        assert [victim.number for victim in first] == [0, 1]
        dead = psutil.Process(first[0].pid)
        dead.kill()
        while dead.is_running() and dead.status() != psutil.STATUS_ZOMBIE:
            pass
        victims.replace_dead()
        assert [victim.number for victim in find_victims("executor", tokens)] == [1, 2]
    assert find_victims("executor", tokens) == ()
