"""Recovery parts and impact figures compared with planted values and direct counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from faultline.engines.protocol import Commit, EngineEvent, ProcessRun, StateEpoch, Traces
from faultline.engines.spark.driver_log import DriverEvents, LogLine
from faultline.engines.spark.traces import events_of_driver_logs, events_of_samples
from faultline.records.judge.parts import (
    PARTS,
    dip_depth,
    lag_area_of_bins,
    largest_schedule_lag_ms,
    last_level_start_ns,
    measure,
    phase_at,
)
from faultline.records.judge.signals import TopicSchedule
from faultline.records.judge.timeline import (
    CHAIN,
    EvidenceEvent,
    FaultEvidence,
    detect,
    first_loads,
    longest_silence,
    no_effect_reason,
    other_events,
    read_timeline,
)
from faultline.records.record import RecoveryPart
from faultline.system.measured_window import NS
from tests.unit.scenario import spark_time
from tests.unit.synthetic import Scenario, Synthetic

SEEDS = 320
SYNTHETIC = Synthetic(Scenario())
EVIDENCE, T0 = SYNTHETIC.evidence(), SYNTHETIC.t0
MS = 1_000_000


def _scenario(seed: int) -> Scenario:
    random = np.random.default_rng(seed)
    interval = float(random.choice([1.0, 2.0, 5.0]))
    return Scenario(
        checkpoint_interval_s=interval,
        rate=float(random.choice([100, 250])) * 2 / interval,
        phase=float(random.uniform(0.02, 0.25)),
        detection_s=float(random.uniform(0, 2)),
        redeploy_s=float(random.uniform(0, 4)),
        load_s=float(random.uniform(0.01, 6)),
        replay_s=float(random.uniform(0.9, 2.5)) * interval,
        catch=int(random.integers(0, 5)),
        slow=int(random.integers(0, 3)),
        recovers=bool(random.random() > 0.1),
        nothing_to_load=bool(random.random() < 0.1),
    )


def check_planted(synthetic: Synthetic, number: int = 0) -> RecoveryPart:
    """Check and return the recovery against the planted instants.

    Logs have millisecond resolution. The last part has cells of one second; the first may hold tuples of two batches
    if the interval is below 2 s.
    """
    timeline = read_timeline(synthetic.evidence(number))
    assert timeline["t0"].wall_ns == synthetic.hits[number].t0
    recovery, problems = measure(timeline)
    assert problems == (), synthetic.s
    assert recovery.recovered is synthetic.s.recovers, synthetic.s
    interval_s = synthetic.s.checkpoint_interval_s
    synthetic.assert_given_back(recovery, number, 0.002, interval_s if interval_s < 2 else 0)
    return recovery


@pytest.mark.parametrize("block", range(8))
def test_planted_instants_are_recovered(block: int, share: int) -> None:
    for seed in range(block, SEEDS, 8 if share == 1 else 32):
        synthetic = Synthetic(_scenario(seed))
        recovery = check_planted(synthetic)
        if synthetic.s.recovers:
            assert recovery.macro_s is not None and recovery.reload_s is not None
            assert recovery.macro_s >= recovery.reload_s
            assert recovery.censored_at_s is None
            # The last violation bounds the resolution.
            assert recovery.resolution_s is not None and 0 < recovery.resolution_s <= recovery.macro_s
        else:
            # The lag exceeds its threshold at every observed commit, except perhaps the last.
            watched = max(
                row.committed for row in synthetic.batches if row.committed <= synthetic.window.watched_until_ns
            )
            within_s = synthetic.s.checkpoint_interval_s + 0.001
            assert recovery.censored_at_s == pytest.approx((watched - synthetic.t0) / NS, abs=within_s)
            assert recovery.resolution_s is None


NONE = {"commit_mode": "none"}


@pytest.mark.parametrize(
    ("victims", "changes", "seen"),
    [
        ("worker", {}, {"service_up"}),
        ("driver", {}, {"driver_restarted"}),
        ("python_worker", {}, set()),
        ("kafka", {}, {"service_up"}),
        ("executor driver worker", {"action": "pause"}, {"fault_undone"}),
        ("kafka", {"action": "delay"}, {"fault_undone"}),
        ("executor", NONE, {"state_epoch"}),
        ("driver", NONE, {"state_epoch", "driver_restarted"}),
    ],
)
def test_planted_instants_are_recovered_for_every_victim(
    victims: str, changes: dict[str, Any], seen: set[str], share: int
) -> None:
    """Each seed uses the next victim."""
    for seed in range(12 if share == 1 else 3):
        victim = victims.split()[seed % len(victims.split())]
        lasts = {"detection_s": 3.0 + seed} if "action" in changes else {}
        synthetic = Synthetic(dataclasses.replace(_scenario(1_000 + seed), victims=(victim,), **changes, **lasts))
        check_planted(synthetic)
        assert {event.name for event in other_events(synthetic.evidence())} == seen


@pytest.mark.parametrize("victims", [("executor", "executor"), ("driver", "executor"), ("kafka", "driver", "worker")])
def test_each_of_several_faults_has_its_own_timeline(victims: tuple[str, ...], share: int) -> None:
    for seed in range(4 if share == 1 else 2):
        synthetic = Synthetic(dataclasses.replace(_scenario(2_000 + seed), victims=victims, recovers=True))
        for number in range(len(victims)):
            check_planted(synthetic, number)


def test_fault_is_observed_until_the_next_one() -> None:
    for name, instant in {"t2": SYNTHETIC.t2, "t5": SYNTHETIC.t5, "t6": SYNTHETIC.t6, "t7": SYNTHETIC.t7}.items():
        timeline = read_timeline(dataclasses.replace(EVIDENCE, until_ns=instant))
        known = CHAIN[: CHAIN.index(name)]
        # No stability window fits before the next fault.
        assert set(timeline) & set(CHAIN) <= set(known), name
        recovery, _ = measure(timeline)
        assert recovery.recovered is False
        assert recovery.censored_at_s is not None
        assert 0 <= recovery.censored_at_s <= (instant - SYNTHETIC.t0) / NS + SYNTHETIC.s.checkpoint_interval_s


def test_only_the_last_start_before_t5_is_the_recovery() -> None:
    synthetic = Synthetic(Scenario(victims=("driver",), redeploy_s=6.0))
    evidence = synthetic.evidence()
    traces = evidence.traces
    first = next(load for load in traces.events_of("state_loaded") if load.wall_ns == synthetic.t4)
    # This process started in between, loaded the state, and died.
    failed_load = dataclasses.replace(first, wall_ns=synthetic.t2 + NS, process="app-9/0")
    runs = (traces.process_runs[0], ProcessRun(1, synthetic.t2 + NS // 2, None), *traces.process_runs[1:])
    changed = dataclasses.replace(
        evidence, traces=dataclasses.replace(traces, events=(failed_load, *traces.events), process_runs=runs)
    )
    timeline = read_timeline(changed)
    assert timeline["t4"].wall_ns == synthetic.t4
    assert [event.name for event in other_events(changed)] == ["driver_restarted"] * 2


@pytest.mark.parametrize("victim", ["kafka", "executor"])
@pytest.mark.parametrize("later_s", [0.3, None])
def test_batch_resumed_after_a_broker_fault_has_no_launch(victim: str, later_s: float | None) -> None:
    synthetic = Synthetic(Scenario(victims=(victim,)))
    evidence = synthetic.evidence()
    t5 = read_timeline(evidence)["t5"]
    kept = [one for one in evidence.traces.events if one.kind != "state_loaded" or one.wall_ns < synthetic.t0]
    tasks = [one for one in kept if one.kind == "task_started"]
    seen = [one for one in kept if one.kind != "task_started"]
    if later_s is not None:
        seen += [dataclasses.replace(tasks[-1], wall_ns=t5.wall_ns + round(later_s * NS))]
    changed = dataclasses.replace(evidence, traces=dataclasses.replace(evidence.traces, events=tuple(seen)))
    timeline = read_timeline(changed)
    recovery, problems = measure(timeline)
    if victim == "kafka":
        assert problems == () and timeline["t3"].wall_ns == timeline["t4"].wall_ns == t5.wall_ns
        assert recovery.load_s == recovery.replay_s == 0 and "went on" in timeline["t3"].source
    else:
        assert problems, "a lost executor implies a launch"


@pytest.mark.parametrize(
    ("emitted_s", "until_s", "t5_s"),
    [(0.4, None, 0.4), (-9.0, None, 0.0), (None, None, None), (0.4, 0.3, None)],
    ids=["waiting", "nothing missing", "never processed", "after the next fault"],
)
def test_input_is_processed_at_its_last_output_if_outputs_do_not_wait(
    emitted_s: float | None, until_s: float | None, t5_s: float | None
) -> None:
    """Seconds after t4. The commit that covers the input comes later, or never; it bounds no load then."""
    t4 = SYNTHETIC.t4
    at_ns, until_ns, t5_ns = (None if one is None else t4 + round(one * NS) for one in (emitted_s, until_s, t5_s))
    seen = dataclasses.replace(EVIDENCE, emits_at_once=True, emitted_ns=at_ns, until_ns=until_ns)
    for traces in (EVIDENCE.traces, dataclasses.replace(EVIDENCE.traces, commits=())):
        timeline = read_timeline(dataclasses.replace(seen, traces=traces))
        assert measure(timeline)[1] == () and timeline["t4"].wall_ns == t4
        instants = {name: event.wall_ns for name, event in timeline.items()}
        assert instants.get("t5") == t5_ns
        assert instants.get("durable") == (SYNTHETIC.t5 if traces.commits and until_ns is None else None)


def undone(wall_ns: int) -> list[dict[str, Any]]:
    return [{"event": "undone", "undo": "SIGCONT", "wall_ns": wall_ns}]


@pytest.mark.parametrize(("after_ns", "is_undetected"), [(NS, False), (-NS // 10, True)])
def test_t2_is_a_detection_before_the_undo_or_the_undo(after_ns: int, is_undetected: bool) -> None:
    at = SYNTHETIC.t2 + after_ns
    timeline = read_timeline(dataclasses.replace(EVIDENCE, undo_lines=undone(at)))
    assert timeline["t2"].wall_ns == (at if is_undetected else SYNTHETIC.t2)
    assert ("nothing was noticed before" in timeline["t2"].source) is is_undetected
    assert (timeline["t3"].wall_ns, timeline["t4"].wall_ns) == (SYNTHETIC.t3, SYNTHETIC.t4)


def test_commits_during_an_injection_do_not_end_the_recovery() -> None:
    without_losses = tuple(one for one in EVIDENCE.traces.events if one.kind != "lost")
    traces = dataclasses.replace(EVIDENCE.traces, events=without_losses)
    timeline = read_timeline(dataclasses.replace(EVIDENCE, undo_lines=undone(SYNTHETIC.t6), traces=traces))
    recovery, problems = measure(timeline)
    assert problems == ()
    assert timeline["t2"].wall_ns == timeline["t4"].wall_ns == SYNTHETIC.t6 <= timeline["t5"].wall_ns
    assert recovery.load_s == 0


def test_silence_starts_with_the_last_output_before_the_gap() -> None:
    timeline = read_timeline(EVIDENCE)
    before = SYNTHETIC.batches[SYNTHETIC.hit - 1][1] // 1_000_000 - 20
    assert timeline["t1"].wall_ns == before * 1_000_000


def _timeline(steps_ms: list[int], missing: set[str]) -> dict[str, EvidenceEvent]:
    instants = np.cumsum([1_795_241_700_000, *steps_ms])
    return {
        name: EvidenceEvent(name, int(at) * 1_000_000, "test")
        for name, at in zip(CHAIN, instants, strict=True)
        if name not in missing
    }


STEPS = st.lists(st.integers(0, 60_000), min_size=6, max_size=6)


@given(STEPS)
def test_recovery_parts_add_up(steps: list[int]) -> None:
    r, problems = measure(_timeline(steps, set()))
    assert problems == ()
    parts = {part: getattr(r, part) for part in PARTS}
    assert parts["reload_s"] == pytest.approx(parts["detection_s"] + parts["redeploy_s"] + parts["load_s"])
    to_t6 = parts["reload_s"] + parts["replay_s"] + parts["catchup_s"]
    assert to_t6 == pytest.approx(sum(steps[:5]) / 1000)
    assert to_t6 <= parts["macro_s"] + 1e-9


@given(STEPS, st.sets(st.sampled_from(CHAIN[1:])))
def test_missing_tail_is_censored_and_gap_is_a_problem(steps: list[int], missing: set[str]) -> None:
    recovery, problems = measure(_timeline(steps, missing))
    present = [name for name in CHAIN if name not in missing]
    gaps = [name for name in CHAIN[: CHAIN.index(present[-1])] if name in missing]
    assert len(problems) == len(gaps)
    assert recovery.recovered is ("t7" not in missing)
    assert (recovery.censored_at_s is None) is ("t7" not in missing)
    for part, (begin, end) in PARTS.items():
        assert (getattr(recovery, part) is None) is (begin in missing or end in missing)


@given(st.integers(0, 5), st.integers(1, 20) | st.integers(1, 5_000))
@example(3, 10)
@example(3, 11)
def test_negative_part_within_clock_resolution_is_zero(at: int, back_ms: int) -> None:
    steps = [1_000] * 6
    steps[at] = -back_ms
    recovery, problems = measure(_timeline(steps, set()))
    if back_ms <= 10:
        assert problems == ()
        assert min(getattr(recovery, part) for part in PARTS) >= 0
    else:
        assert len(problems) >= 1
        assert problems[0].startswith("negative:")


@given(st.integers(0, 10_000))
def test_only_the_first_load_of_a_store_is_a_reload(seed: int) -> None:
    real = Synthetic(_scenario(seed)).evidence().traces.events_of("state_loaded")
    moved = dataclasses.replace(real[-1], wall_ns=real[-1].wall_ns + NS)
    found = first_loads([*real, moved], 0, None)
    assert len(found) == len({load.store for load in real})
    assert moved not in found


def test_victim_without_removal_leaves_a_gap() -> None:
    """Without an executor ID in the command, the first removal after t0 counts."""
    without_id = {"pid": 200, "role": "executor", "command": ["java"]}
    assert read_timeline(dataclasses.replace(EVIDENCE, victims=[without_id]))["t2"].wall_ns == SYNTHETIC.t2
    other = {"pid": 200, "command": ["java", "--executor-id", "1"]}
    timeline = read_timeline(dataclasses.replace(EVIDENCE, victims=[other]))
    assert "t2" not in timeline
    assert "missing: t2, though t7 was seen" in measure(timeline)[1]


def _bins(ends_s: list[float], rates: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"end_ns": [int(end * NS) for end in ends_s], "throughput_rps": rates})


@given(st.lists(st.floats(0, 500), min_size=1, max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_dip_depth_is_that_of_the_lowest_bin(rates: list[float], first: int, more: int) -> None:
    ends = [float(index + 1) for index in range(len(rates))]
    until = first + more
    found = dip_depth(_bins(ends, rates), 200.0, 1.0, first * NS, until * NS)
    inside = [rate for end, rate in zip(ends, rates, strict=True) if first < end <= until]
    earlier = [end for end in ends if end <= until]
    if until - (earlier[-1] if earlier else first) >= 10:
        inside.append(0.0)
    if inside:
        assert found == pytest.approx(min(1.0, max(0.0, 1 - min(inside) / 200)))
        assert 0 <= found <= 1
    else:
        assert found is None


def test_engine_without_further_commits_dips_to_zero() -> None:
    bins = _bins([1, 2, 3], [200, 190, 210])
    assert dip_depth(bins, 200.0, 1.0, 3 * NS, 60 * NS) == 1.0
    assert dip_depth(bins, 200.0, 1.0, 2 * NS, 8 * NS) == 0.0
    assert dip_depth(bins, 0.0, 1.0, 2 * NS, 8 * NS) is None


@given(st.sets(st.integers(0, 300), max_size=20), st.integers(0, 300), st.integers(1, 200))
def test_longest_silence_is_the_longest_gap(outputs: set[int], t0: int, length: int) -> None:
    until = t0 + length
    known = sorted(outputs)
    edges = [*known, until] if known and known[-1] < until else known
    gaps = [(a, b) for a, b in zip(edges, edges[1:], strict=False) if b > t0 and a < until]
    found = longest_silence(np.array(known, dtype=np.int64), t0 * MS, until * MS)
    if not gaps:
        assert found is None
    else:
        assert found is not None
        assert found[1] - found[0] == max(b - a for a, b in gaps) * MS
        assert (found[0] // MS, found[1] // MS) in gaps


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 8)), max_size=8),
    st.integers(0, 300),
    st.integers(1, 150),
)
def test_lag_area_is_the_sum_over_milliseconds(
    due_ms: list[int], steps: list[tuple[int, int]], start: int, length: int
) -> None:
    due_ms = sorted(due_ms)
    records = pd.DataFrame(
        {"partition": 0, "offset": range(len(due_ms)), "timestamp_ms": due_ms, "primer": False},
    )
    commits, offset = [], 0
    for number, (at, more) in enumerate(sorted(steps)):
        offset = min(len(due_ms), offset + more)
        commits.append(Commit(0, number, None, at * MS, {"0": offset}))
    end = start + length
    by_hand = 0
    for at in range(start, end):
        committed = [commit.ends["0"] for commit in commits if commit.committed_ns <= at * MS]
        by_hand += sum(due <= at for due in due_ms) - (committed[-1] if committed else 0)
    assert TopicSchedule(records).lag_area(commits, start * MS, end * MS) == pytest.approx(by_hand / 1000)


def test_lag_area_of_bins_uses_trapezoids() -> None:
    bins = pd.DataFrame({"end_ns": [1 * NS, 2 * NS, 4 * NS], "lag": [10, 30, 10]})
    assert lag_area_of_bins(bins, 1 * NS, 4 * NS) == pytest.approx(20 + 40)
    assert lag_area_of_bins(bins, round(1.5 * NS), 2 * NS) == pytest.approx(12.5)
    assert lag_area_of_bins(bins[:0], 0, NS) is None
    # The lag is 20 at 1.5 s, 30 at 2 s and 20 at 3 s; the rest is outside.
    assert lag_area_of_bins(bins, round(1.5 * NS), 3 * NS) == pytest.approx(12.5 + 25)


def _latencies(values: list[float], step_s: float = 2.0) -> pd.DataFrame:
    ends = [round((number + 1) * step_s * NS) for number in range(len(values))]
    return pd.DataFrame({"end_ns": ends, "latency_ms": values})


def test_latency_settles_at_the_start_of_its_last_level() -> None:
    outage, catching_up, after = [9_000.0, 9_500.0, 8_800.0], [6_000.0, 6_100.0, 5_900.0, 6_050.0], [2_400.0, 2_410.0]
    bins = _latencies([2_000.0] * 5 + outage + catching_up + after * 4)
    t0_ns = 10 * NS
    settled = last_level_start_ns(bins, t0_ns, 1_000 * NS)
    assert settled == int(bins["end_ns"].iloc[5 + 3 + 4]), "settled at a slower level"
    assert last_level_start_ns(_latencies([2_000.0, 2_010.0] * 10), t0_ns, 1_000 * NS) == t0_ns
    assert last_level_start_ns(bins, t0_ns, 20 * NS) is None, "five bins are too few"


@given(st.floats(0, 5), st.floats(0.1, 4))
def test_phase_is_the_share_of_a_cycle_since_the_last_commit(since_s: float, checkpoint_interval_s: float) -> None:
    bins = _latencies([1.0, 1.0, 1.0])
    phase = phase_at(bins, round((6 + since_s) * NS), checkpoint_interval_s)
    assert phase == pytest.approx(min(1.0, since_s / checkpoint_interval_s), abs=1e-6)
    assert phase_at(bins, NS, checkpoint_interval_s) is None


def test_largest_schedule_lag_covers_the_recovery() -> None:
    latest = [(number * NS, ms) for number, ms in enumerate([900.0, 3.0, 400.0, 5.0, 700.0])]
    assert largest_schedule_lag_ms(latest, round(0.5 * NS), round(2.1 * NS)) == 400.0
    assert largest_schedule_lag_ms(latest, 3 * NS, 3 * NS) == 700.0, "a second is reported at its end"
    assert largest_schedule_lag_ms(latest, 8 * NS, 9 * NS) is None


def _evidence(
    victims: list[dict[str, Any]],
    removals: list[tuple[str, str, float | None]],
    seen: Sequence[EngineEvent] = (),
    epochs: Sequence[StateEpoch] = (),
    **more: Any,
) -> FaultEvidence:
    """Return evidence with sampled removals: application, executor, seconds after t0 (None if not removed)."""
    lines = []
    for turn, (application, identity, at) in enumerate(removals):
        executor: dict[str, Any] = {"id": identity}
        if at is not None:
            executor["removeTime"] = spark_time(T0 + round(at * NS))
        wall_ns = T0 - NS if turn == 0 else T0 + 9 * NS
        lines.append({"kind": "executors", "wall_ns": wall_ns, "app_id": application, "executors": [executor]})
    traces = Traces("batch", events=(*events_of_samples(lines), *seen), epochs=tuple(epochs))
    return dataclasses.replace(EVIDENCE, victims=victims, traces=traces, **more)


def _executor(identity: str, application: str | None = None) -> dict[str, Any]:
    command = ["java", "--executor-id", identity, *(["--app-id", application] if application else [])]
    return {"pid": 5, "role": "executor", "command": command}


def test_executors_are_identified_by_application() -> None:
    removals = [("app-1", "0", 1.0), ("app-2", "0", 0.5)]
    for victim, seconds in ((_executor("0", "app-2"), 0.5), (_executor("0", "app-1"), 1.0), (_executor("0"), 1.0)):
        found = detect(_evidence([victim], removals))
        assert found is not None and found.wall_ns == T0 + round(seconds * NS)
    assert detect(_evidence([_executor("0", "app-3")], removals)) is None


def test_last_of_several_victims_sets_t2() -> None:
    removals = [("a", "0", 0.25), ("a", "1", 0.75), ("a", "2", None)]
    both = detect(_evidence([_executor("0", "a"), _executor("1", "a")], removals))
    assert both is not None and both.wall_ns == T0 + 3 * NS // 4
    assert detect(_evidence([_executor("0", "a"), _executor("2", "a")], removals)) is None
    worker = {"pid": 6, "role": "worker", "executors": ["0", "1"]}
    hosted = detect(_evidence([worker], removals))
    assert hosted is not None and hosted.wall_ns == T0 + 3 * NS // 4


def test_random_victim_is_judged_by_its_role() -> None:
    victims = [_executor("0", "a"), {"pid": 6, "role": "worker", "executors": ["1"]}]
    found = detect(_evidence(victims, [("a", "0", 0.25), ("a", "1", 0.75)], victim="any"))
    assert found is not None and found.wall_ns == T0 + 3 * NS // 4


def test_new_state_epoch_reveals_an_unsampled_loss() -> None:
    epoch = StateEpoch(1, T0 + NS, "an executor was lost")
    found = detect(_evidence([_executor("0", "a")], [("a", "0", None)], epochs=[epoch]))
    assert found is not None and found.wall_ns == T0 + NS
    assert "lineage 1" in found.source


def test_log_lines_outside_the_fault_interval_are_ignored() -> None:
    lines = [LogLine(T0 + offset * NS, "driver-0.log", "TaskSetManager: Lost task") for offset in (-1, 5)]
    lost_tasks = events_of_driver_logs(DriverEvents(lost_tasks=tuple(lines)))
    victim = [{"pid": 9, "role": "python_worker"}]
    evidence = _evidence(victim, [], lost_tasks)
    found = detect(evidence)
    assert found is not None and found.wall_ns == T0 + 5 * NS
    assert no_effect_reason(evidence) is None
    earlier = dataclasses.replace(evidence, until_ns=T0 + 4 * NS)
    assert detect(earlier) is None
    assert no_effect_reason(earlier) == "no task was lost"


def test_undetected_pause_still_has_an_effect() -> None:
    undone = [{"event": "undone", "undo": "SIGCONT", "wall_ns": T0 + at * NS} for at in (3, 4)]
    evidence = _evidence([{"pid": 9, "role": "python_worker"}], [], undo_lines=undone)
    found = detect(evidence)
    assert found is not None and found.wall_ns == T0 + 4 * NS
    assert no_effect_reason(evidence) is None
