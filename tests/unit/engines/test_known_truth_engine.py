"""Ground-truth engine on a simulated clock: it follows its timeline and survives kills."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.ground_truth.process_run import Arrival, Incarnation
from faultline.engines.ground_truth.scripted_run import MS, NS, RunSpec, ScriptedTimeline, build_timeline
from faultline.engines.ground_truth.traces import Ends, RestoredState
from faultline.experiment.workloads.known_truth_script import Script
from faultline.system.errors import InfrastructureError

T0 = 7 * NS
PRIMER = 3
RUN = RunSpec(rate=50.0, warmup_s=5.0, duration_s=20.0, checkpoint_interval_s=1.0, partitions=2, fault_at_s=8.4)
SCRIPT = Script(spread_ms=40.0, redeploy_s=2.0, load_s=0.5, replay_s=0.7, catchup_bins=1, slow_bins=0)
MISTREATED = dataclasses.replace(SCRIPT, overcounted=9, reemitted=8)


class Killed(BaseException):
    """Stand-in for SIGKILL."""


class World:
    """Simulated broker, clock and disk that survive a kill."""

    def __init__(self, timeline: ScriptedTimeline, partitions: int) -> None:
        self.now = 0
        self.kill_at: int | None = None
        self.partitions = partitions
        # (instant, partition, offset, primer), in order of time; the network takes 2 ms.
        primer = [(NS, p, o, True) for o in range(PRIMER) for p in range(partitions)]
        self.input = primer + [
            (T0 + int(due) + 2 * MS, k % partitions, PRIMER + k // partitions, False)
            for k, due in enumerate(timeline.due_ns)
        ]
        self.output: list[tuple[int, bytes, bytes]] = []
        self.plans: dict[int, tuple[int, Ends, Ends | None]] = {}
        self.commits: dict[int, tuple[int, Ends]] = {}
        self.tasks: list[tuple[int, str, int]] = []

    def now_ns(self) -> int:
        return self.now

    def sleep_ns(self, duration_ns: int) -> None:
        assert duration_ns > 0
        self.now += duration_ns + MS // 5
        if self.kill_at is not None and self.now >= self.kill_at:
            raise Killed

    def emit(self, key: bytes, value: bytes) -> None:
        self.output.append((self.now, key, value))

    def flush(self) -> None:
        self.now += MS

    def emitted(self) -> Mapping[bytes, int]:
        return Counter(key for _, key, _ in self.output)

    def plan(self, batch: int, ends: Ends, base: Ends | None) -> None:
        self.plans[batch] = (self.now, dict(ends), base)

    def commit(self, batch: int, starts: Ends, ends: Ends) -> None:
        assert self.plans[batch][1] == ends
        self.commits[batch] = (self.now, dict(ends))

    def launch(self, batch: int) -> None:
        self.tasks.append((self.now, "launch", batch))

    def load(self, batch: int, partition: int) -> None:
        self.tasks.append((self.now, f"load {partition}", batch))

    def log(self, message: str) -> None:
        pass

    def restored(self) -> RestoredState:
        if not self.commits:
            return RestoredState()
        batch = max(self.commits)
        return RestoredState(batch, self.commits[batch][1], self.plans[batch][2])


class Reader:
    """Input topic as read by one incarnation."""

    def __init__(self, world: World, restored: RestoredState) -> None:
        self._world = world
        self._from = {p: (restored.ends or {}).get(p, 0) for p in range(world.partitions)}
        self._next = 0
        self.emit, self.flush, self.emitted = world.emit, world.flush, world.emitted

    def poll(self) -> Iterable[Arrival]:
        while self._next < len(self._world.input) and self._world.input[self._next][0] <= self._world.now:
            at, partition, offset, primer = self._world.input[self._next]
            self._next += 1
            if offset >= self._from[partition]:
                yield Arrival(partition, offset, at // MS, primer)


def incarnate(
    world: World, script: Script, run: RunSpec, kills: Sequence[int], *, until: int, load_end: int | None = None
) -> None:
    """Run one incarnation until its kill or `until`; `load_end` is known 0.3 s before."""
    restored = world.restored()
    engine = Incarnation(run.partitions, Reader(world, restored), world, world, lambda: world.now >= until, restored)
    t0 = engine.await_start(lambda: T0 if world.now >= 5 * NS else None)
    assert t0 == T0

    def ends() -> int | None:
        return load_end if load_end is not None and world.now >= load_end - 300 * MS else None

    build = partial(build_timeline, script, run, kills)
    engine.follow(build, T0, ends, stateless=script.nothing_to_load, restarted=bool(kills))


def live(
    script: Script, run: RunSpec, *kills_ns: int, restart_ns: int = NS, end_ns: int | None = None
) -> tuple[World, ScriptedTimeline]:
    """Run the engine with all kills and restarts; the load ends at `end_ns` after T0, or with the schedule."""
    timeline = build_timeline(script, run, kills_ns, end_ns)
    world = World(timeline, run.partitions)
    until = T0 + max(int(timeline.emit_ns.max()), timeline.rows[-1].commit_ns) + NS
    load_end = None if end_ns is None else T0 + end_ns
    for number, kill_ns in enumerate([*kills_ns, None]):
        world.kill_at = None if kill_ns is None else T0 + kill_ns
        with nullcontext() if kill_ns is None else pytest.raises(Killed):
            incarnate(world, script, run, kills_ns[:number], until=until, load_end=load_end)
        world.now = world.now if kill_ns is None else T0 + kill_ns + restart_ns
    return world, timeline


def assert_counts(world: World, script: Script, run: RunSpec, timeline: ScriptedTimeline) -> None:
    """Every record is emitted as often as planted, and as the count planted."""
    found: dict[bytes, list[bytes]] = {}
    for _, key, value in world.output:
        found.setdefault(key, []).append(value)
    for number in range(len(timeline.due_ns)):
        treatment = timeline.treatment(number)
        key = f"{number % run.partitions}:{PRIMER + number // run.partitions}".encode()
        assert found.pop(key, []) == [str(treatment.counted).encode()] * treatment.copies, key
    assert found == {f"{p}:{o}".encode(): [b"1"] for p in range(run.partitions) for o in range(PRIMER)}


def assert_survived(world: World, script: Script, run: RunSpec, timeline: ScriptedTimeline) -> None:
    """Check exact counts, planned replay commits, and that all input is committed."""
    assert_counts(world, script, run, timeline)
    for outage in timeline.outages:
        held = timeline.due(outage.t0_ns - 10 * MS) + PRIMER * run.partitions
        later = [at for at, ends in world.commits.values() if at > T0 + outage.t0_ns and sum(ends.values()) >= held]
        assert 0 <= min(later) - T0 - timeline.covering(outage).commit_ns <= 15 * MS
    assert sum(world.commits[max(world.commits)][1].values()) == len(timeline.due_ns) + PRIMER * run.partitions


@pytest.mark.parametrize("style", ["batch", "record"])
@pytest.mark.parametrize("fault", [True, False])
def test_the_engine_follows_its_timeline(style: str, fault: bool) -> None:
    script = dataclasses.replace(MISTREATED, style=style)
    run = RUN if fault else dataclasses.replace(RUN, fault_at_s=None)
    world, timeline = live(script, run, *([] if run.fault_at_ns is None else [run.fault_at_ns]))
    assert_counts(world, script, run, timeline)
    after_start = [commit for commit in world.commits.values() if commit[0] > T0]
    assert len(after_start) == len(timeline.rows)
    for (at, ends), row in zip(after_start, timeline.rows, strict=True):
        assert 0 <= at - T0 - row.commit_ns <= 15 * MS
        assert sum(ends.values()) == row.record_end + PRIMER * run.partitions
    first: dict[bytes, int] = {}
    for at, key, _ in world.output:
        first.setdefault(key, at)
    for number, emit in enumerate(timeline.emit_ns.tolist()):
        at = first[f"{number % run.partitions}:{PRIMER + number // run.partitions}".encode()]
        assert 0 <= at - T0 - emit <= 15 * MS
    if fault:
        (outage,) = timeline.outages
        wanted = [(outage.launch_ns, "launch"), (outage.launch_ns + NS // 4, "load 0"), (outage.loaded_ns, "load 1")]
        done = [(at - T0, name) for at, name, _ in world.tasks if at > T0 + outage.t0_ns][:3]
        for (at, name), (planned, expected) in zip(done, wanted, strict=True):
            assert name == expected and 0 <= at - planned <= 15 * MS


@given(st.sampled_from(["batch", "record"]), st.integers(20 * MS, 20 * NS), st.booleans(), st.integers(0, 2**20))
def test_counts_are_exact_for_any_kill_time(style: str, kill_ns: int, stateless: bool, seed: int) -> None:
    kept = {"load_s": 0.0 if stateless else 0.5, "lost": 5 if style == "batch" else 0}
    script = dataclasses.replace(MISTREATED, style=style, nothing_to_load=stateless, seed=seed, **kept)
    world, timeline = live(script, RUN, kill_ns)
    assert_survived(world, script, RUN, timeline)


@given(
    st.sampled_from(["batch", "record"]),
    st.lists(st.integers(8 * NS, 16 * NS), min_size=2, max_size=3),
    st.integers(12 * NS, 20 * NS),
)
def test_counts_are_exact_with_several_kills_and_an_early_load_end(
    style: str, apart_ns: list[int], after_ns: int
) -> None:
    script = dataclasses.replace(MISTREATED, style=style)
    run = dataclasses.replace(RUN, duration_s=40.0, schedule_s=120.0)
    kills = [8 * NS + 400 * MS + sum(apart_ns[:number]) for number in range(len(apart_ns))]
    end_ns = kills[-1] + after_ns
    world, timeline = live(script, run, *kills, end_ns=end_ns)
    assert max(timeline.due_ns) <= end_ns < max(build_timeline(script, run, kills).due_ns)
    assert len(timeline.outages) == len(kills)
    assert_survived(world, script, run, timeline)


def test_a_late_restart_performs_all_actions() -> None:
    world, timeline = live(SCRIPT, RUN, round(8.4 * NS), restart_ns=6 * NS)
    assert_counts(world, SCRIPT, RUN, timeline)


def test_a_late_generator_only_delays_the_engine() -> None:
    timeline = build_timeline(SCRIPT, dataclasses.replace(RUN, fault_at_s=None), [])
    world = World(timeline, RUN.partitions)
    stall, end = T0 + 6 * NS, T0 + 9 * NS
    world.input = [(end if stall <= at < end else at, p, o, primer) for at, p, o, primer in world.input]
    incarnate(world, SCRIPT, RUN, [], until=T0 + 28 * NS)
    assert_counts(world, SCRIPT, RUN, timeline)
    arrived = {f"{p}:{o}".encode(): at for at, p, o, _ in world.input}
    assert all(at >= arrived[key] for at, key, _ in world.output)


def test_a_preload_record_after_t0_is_an_error() -> None:
    world = World(build_timeline(SCRIPT, RUN, []), RUN.partitions)
    world.input.insert(2 * PRIMER, (6 * NS, 0, PRIMER, True))
    with pytest.raises(InfrastructureError, match="preload: .*0:3"):
        incarnate(world, SCRIPT, RUN, [], until=30 * NS)


def test_a_stop_request_before_t0_is_honoured() -> None:
    world = World(build_timeline(SCRIPT, RUN, []), RUN.partitions)
    engine = Incarnation(2, Reader(world, RestoredState()), world, world, lambda: world.now > 3 * NS, RestoredState())
    assert engine.await_start(lambda: None) is None
    assert world.commits[0][1] == {0: PRIMER, 1: PRIMER}
