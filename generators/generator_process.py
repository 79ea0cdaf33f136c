"""Process of a generator: send alone, send one shard as a worker, or lead the workers.

Phases: prepare, preload, wait at the start barrier, send on schedule, report.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Producer
from hdrh.histogram import HdrHistogram

from generators.curve import NANOSECONDS
from generators.pacing import Clock, Shard, pace
from generators.producer import CLOSING, PRIMER_KEY, BrokerClient, RecordSender, make_producer
from generators.schedule_lag import ScheduleLag, new_histogram, percentiles_ms, write_log
from generators.send_progress import EventOutput, GeneratorError, Progress, SendProgress
from generators.source import Source
from generators.spec import GeneratorSpec
from generators.start_barrier import LoadEnd, StartInstant, StopRequest, await_barrier
from generators.state_preload import StateKeys
from generators.stream import Replay, Stream, make_nexmark, make_source, make_state_keys
from generators.worker_group import WorkerGroup, Workers

# Waits for T0; raises Stopped on a stop request.
AwaitStart = Callable[[], StartInstant]


def send_alone(spec: GeneratorSpec, barrier: Path, histogram: Path, journal: EventOutput, stop: StopRequest) -> None:
    """Run a generator of one process."""

    def preload_and_wait() -> StartInstant:
        _preload(spec, journal, broker, stop)
        # A detached process intentionally loses its first parent early; the current one stays.
        stop.watch_current_parent()
        return await_barrier(barrier, stop)

    broker = BrokerClient(spec.bootstrap)
    start, result = _send(spec, Shard(), broker, journal, stop, preload_and_wait, LoadEnd(barrier))
    _write_histogram(histogram, result.schedule_lag, start)
    _close(spec)
    journal.event("done", **_result_fields(result), end_offsets=broker.end_offsets(spec.topic, spec.partitions))


def send_shard(
    spec: GeneratorSpec, index: int, await_start: AwaitStart, journal: EventOutput, stop: StopRequest, load_end: LoadEnd
) -> None:
    """Run worker `index`; its `done` event carries the schedule lag as an encoded HdrHistogram."""
    shard = Shard(index, spec.processes)
    _, result = _send(spec, shard, BrokerClient(spec.bootstrap), journal, stop, await_start, load_end)
    journal.event("done", **_result_fields(result), lateness=result.schedule_lag.encode().decode())


def run_lead(
    spec: GeneratorSpec, workers: Workers, barrier: Path, histogram: Path, journal: EventOutput, stop: StopRequest
) -> None:
    """Run the lead of several processes: send the preload, follow the workers and merge their results."""
    broker = BrokerClient(spec.bootstrap)
    broker.check_topic(spec.topic, spec.partitions)
    with WorkerGroup(workers, spec.processes, stop) as group:
        group.await_all("prepared")
        journal.event("prepared")
        _preload(spec, journal, broker, stop)
        stop.watch_current_parent()
        start = await_barrier(barrier, stop)
        group.send_start(start)
        journal.event("gate", t0_wall_ns=start.wall_ns)
        done = group.follow(lambda current: journal.event("progress", **asdict(current)))
    _close(spec)
    merged = new_histogram()
    for event in done:
        merged.decode_and_add(event["lateness"])
    _write_histogram(histogram, merged, start)
    sums = {name: sum(event[name] for event in done) for name in ("records", "acked", "unknown", "cpu_s")}
    longest = max(event["elapsed_s"] for event in done)
    fields = done_fields(sums["records"], sums["acked"], sums["unknown"], percentiles_ms(merged))
    end_offsets = broker.end_offsets(spec.topic, spec.partitions)
    journal.event("done", **fields, elapsed_s=longest, cpu_s=sums["cpu_s"], end_offsets=end_offsets)


def _send(
    spec: GeneratorSpec,
    shard: Shard,
    broker: BrokerClient,
    journal: EventOutput,
    stop: StopRequest,
    await_start: AwaitStart,
    load_end: LoadEnd,
) -> tuple[StartInstant, SendResult]:
    stream = Stream(make_source(spec), make_state_keys(spec), spec, shard)
    while stream.prepare():
        stop.check()
    broker.check_topic(spec.topic, spec.partitions)
    producer = make_producer(spec.bootstrap)
    journal.event("prepared")
    start = await_start()
    journal.event("gate", t0_wall_ns=start.wall_ns)
    sender = RecordSender(producer, spec.topic, stop.check)
    result = run_schedule(
        spec,
        shard,
        stream,
        sender,
        start,
        stop,
        lambda current: journal.event("progress", **asdict(current)),
        load_end=load_end,
    )
    return start, result


def _result_fields(result: SendResult) -> dict[str, Any]:
    fields = done_fields(result.records, result.acked, result.unknown, percentiles_ms(result.schedule_lag))
    return {**fields, "elapsed_s": result.elapsed_s, "cpu_s": result.cpu_s}


def _preload(spec: GeneratorSpec, journal: EventOutput, broker: BrokerClient, stop: StopRequest) -> None:
    sender = RecordSender(make_producer(spec.bootstrap), spec.topic, stop.check)
    records = send_preload(spec, make_source(spec), make_state_keys(spec), sender)
    ends = broker.end_offsets(spec.topic, spec.partitions)
    journal.event("primed", records=records, end_offsets=ends, **replay_fields(spec))


def replay_fields(spec: GeneratorSpec) -> dict[str, Any]:
    """Return record count, cycles and time shift per cycle (ms) of replayed data; empty for other sources."""
    if spec.source != "data":
        return {}
    data = spec.load_data()
    return {"data": {"records": len(data), "cycles": spec.total / len(data), "cycle_ms": data.round_ms or None}}


def _close(spec: GeneratorSpec) -> None:
    if spec.closing:
        producer: Producer = make_producer(spec.bootstrap)
        if spec.closing_ahead_s is None:
            send_closing(spec, make_nexmark(spec).closing(spec.total), RecordSender(producer, spec.topic))
        else:
            source = make_source(spec)
            replay = source if isinstance(source, Replay) else None
            payloads = source.preload(spec.partitions)
            send_closing(
                spec, payloads, RecordSender(producer, spec.topic), ahead_s=spec.closing_ahead_s, replay=replay
            )


def _write_histogram(path: Path, histogram: HdrHistogram, start: StartInstant) -> None:
    try:
        write_log(path, histogram, start.wall_ns // 1_000_000, time.time_ns() // 1_000_000)
    except OSError as error:
        raise GeneratorError(f"histogram: writing {path} failed: {error.strerror}") from None


_STATE_KEYS_PER_CHUNK = 256
# Records are prepared ahead only if at least this time remains before the next one is due, in ns.
_SPARE_NS = 1_000_000
_UNPACED_BURST = 4096


class RealClock:
    """Monotonic clock of this machine."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds."""
        return time.monotonic_ns()

    def sleep_ns(self, duration_ns: int) -> None:
        """Sleep; signals are handled meanwhile."""
        time.sleep(duration_ns / NANOSECONDS)


class ProgressTicker:
    """Caller of `report` about once a second, for a loop that must not block."""

    def __init__(self, clock: Clock, report: Callable[[], None]) -> None:
        self._clock, self._report = clock, report
        self._next = clock.now_ns() + NANOSECONDS

    def tick(self) -> None:
        """Call `report` if a second has passed."""
        now = self._clock.now_ns()
        if now >= self._next:
            self._next = max(self._next + NANOSECONDS, now)
            self._report()


@dataclass(frozen=True)
class SendResult:
    """Result of one process after T0."""

    records: int
    unknown: int
    elapsed_s: float  # from T0 to the last acknowledgement
    cpu_s: float  # user and system time in that span
    schedule_lag: HdrHistogram

    @property
    def acked(self) -> int:
        """Number of acknowledged records."""
        return self.records - self.unknown


def send_preload(spec: GeneratorSpec, source: Source, state_keys: StateKeys, sender: RecordSender) -> int:
    """Send the preload, wait for all acknowledgements, and return its number of records.

    The preload consists of one record per partition, every state key, and `primer_lines` records of the source that
    warm up the engine. Raises GeneratorError if a record was not acknowledged, since the state would be incomplete.
    """
    replay = source if isinstance(source, Replay) else None
    first_value = PRIMER_KEY.encode() if replay is None else next(replay.preload(1))
    for partition in range(spec.partitions):
        sender.send_preload_record(first_value, partition, partition, **_key_arguments(replay, 0))
    number = spec.partitions
    for first in range(0, state_keys.count, _STATE_KEYS_PER_CHUNK):
        last = min(state_keys.count, first + _STATE_KEYS_PER_CHUNK)
        for word in state_keys.words(np.arange(first, last, dtype=np.uint64)):
            sender.send_preload_record(word, number, number % spec.partitions)
            number += 1
    for line in source.preload(spec.primer_lines):
        sender.send_preload_record(
            line, number, number % spec.partitions, **_key_arguments(replay, number - spec.partitions)
        )
        number += 1
    _flush(sender, spec, "primer")
    return number


def _key_arguments(replay: Replay | None, number: int) -> dict[str, Any]:
    """Return the key arguments of a record outside the schedule; user data keeps its own keys."""
    return {} if replay is None else {"key": replay.preload_key(number), "keyed": False}


def send_closing(
    spec: GeneratorSpec,
    payloads: Iterable[bytes | None],
    sender: RecordSender,
    *,
    ahead_s: float = 0.0,
    replay: Replay | None = None,
) -> None:
    """Send the records after the schedule that close all event-time windows, with timestamps `ahead_s` in the future.

    `replay`: the source, if it is user data. Raises GeneratorError if a record was not acknowledged.
    """
    for number, payload in enumerate(payloads):
        keys = _key_arguments(replay, number)
        sender.send_preload_record(payload, number, number % spec.partitions, CLOSING, ahead_s=ahead_s, **keys)
    _flush(sender, spec, "closing")


def _flush(sender: RecordSender, spec: GeneratorSpec, kind: str) -> None:
    if missing := sender.flush():
        raise GeneratorError(f"topic {spec.topic}: {missing} {kind} records unacknowledged {sender.last_error}".strip())


def run_schedule(
    spec: GeneratorSpec,
    shard: Shard,
    stream: Stream,
    sender: RecordSender,
    start: StartInstant,
    stop: StopRequest,
    progress: Progress,
    clock: Clock | None = None,
    load_end: LoadEnd | None = None,
) -> SendResult:
    """Send this shard's records from T0 on, flush, and return the result.

    `sender` must be new. `progress` is called about once a second. Raises Stopped on a stop request.
    """
    clock = RealClock() if clock is None else clock
    lag = ScheduleLag()
    schedule = spec.schedule
    load_end = LoadEnd(None) if load_end is None else load_end

    def due_now() -> int:
        if schedule is None:
            return stream.total
        return shard.share(schedule.due_count(clock.now_ns() - start.mono_ns))

    def progress_now() -> SendProgress:
        return SendProgress(sender.sent, due_now(), lag.count_late(), lag.take_largest_ms())

    ticker = ProgressTicker(clock, lambda: progress(progress_now()))
    # Exclude the prepared objects from garbage collection, to avoid pauses in the loop.
    gc.collect()
    gc.freeze()
    cpu_before = _cpu_s()

    def send(first: int, last: int) -> None:
        while first < last:
            chunk = stream.take(last - first)
            stamps = ((chunk.due_ns + start.wall_ns) // 1_000_000).tolist()
            sender.send(chunk.payloads, chunk.partitions, stamps, chunk.headers, chunk.keys)
            lag.record(clock.now_ns(), chunk.due_ns + start.mono_ns)
            first += len(chunk.payloads)
        ticker.tick()

    def idle(spare_ns: int) -> None:
        if spare_ns > _SPARE_NS:
            stream.prepare()
        sender.send_waiting()
        ticker.tick()

    if schedule is not None:
        pace(schedule, shard, start.mono_ns, clock, send, idle, stop.is_set, load_end.at_ns)
    else:
        _send_unpaced(stream, sender, start, stop, ticker, clock)
    stop.check()
    unacknowledged = sender.flush()
    end_ns = clock.now_ns()
    return SendResult(
        records=sender.sent,
        unknown=unacknowledged,
        elapsed_s=(end_ns - start.mono_ns) / NANOSECONDS,
        cpu_s=_cpu_s() - cpu_before,
        schedule_lag=lag.histogram(),
    )


def _send_unpaced(
    stream: Stream, sender: RecordSender, start: StartInstant, stop: StopRequest, ticker: ProgressTicker, clock: Clock
) -> None:
    """Send everything as fast as the producer accepts it, with the current time as timestamp."""
    wait_ns = start.mono_ns - clock.now_ns()
    if wait_ns > 0:
        clock.sleep_ns(wait_ns)
    while sender.sent < stream.total and not stop.is_set():
        chunk = stream.take(_UNPACED_BURST)
        stamp = (start.wall_ns + clock.now_ns() - start.mono_ns) // 1_000_000
        sender.send(chunk.payloads, chunk.partitions, [stamp] * len(chunk.payloads), chunk.headers, chunk.keys)
        ticker.tick()


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def done_fields(records: int, acked: int, unknown: int, lag: dict[str, float]) -> dict[str, Any]:
    """Return the record fields of the `done` event, the same for one process and for several."""
    return {"records": records, "acked": acked, "unknown": unknown, "schedule_lag_ms": lag}
