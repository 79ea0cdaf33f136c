"""The life of a generator process: prepare, prime, wait at the gate, keep the schedule, account for it."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hdrh.histogram import HdrHistogram

from generators.errors import GeneratorError
from generators.gate import LoadEnd, Start, StopSwitch
from generators.journal import Progress, Standing
from generators.lateness import Lateness
from generators.pacing import Clock, Stripe, pace
from generators.piecewise import NANOSECONDS
from generators.producer import CLOSING, PRIMER_KEY, Sender
from generators.replay import Replay
from generators.source import Source
from generators.spec import GeneratorSpec
from generators.state import Fillers
from generators.stream import Stream

_FILLERS_AT_ONCE = 256
# Work ahead of time only when at least this much of the schedule is free.
_SPARE_NS = 1_000_000
_FLOOD_BURST = 4096


class RealClock:
    """The monotonic clock of this machine."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""
        return time.monotonic_ns()

    def sleep_ns(self, duration_ns: int) -> None:
        """Sleeps; signals are handled meanwhile."""
        time.sleep(duration_ns / NANOSECONDS)


class Ticker:
    """Calls back about once a second, from within a loop that must not be held up."""

    def __init__(self, clock: Clock, report: Callable[[], None], period_ns: int = NANOSECONDS) -> None:
        self._clock, self._report, self._period = clock, report, period_ns
        self._next = clock.now_ns() + period_ns

    def tick(self) -> None:
        """Reports when a period has passed."""
        now = self._clock.now_ns()
        if now >= self._next:
            self._next = max(self._next + self._period, now)
            self._report()


@dataclass(frozen=True)
class Outcome:
    """What one process did after the gate."""

    records: int
    unknown: int
    elapsed_s: float  # from T0 until the last acknowledgement
    cpu_s: float  # user and system time of this process in that span
    lateness: HdrHistogram

    @property
    def acked(self) -> int:
        """Records that the broker acknowledged."""
        return self.records - self.unknown


def prime(spec: GeneratorSpec, source: Source, fillers: Fillers, sender: Sender) -> int:
    """Sends the primer, all acknowledged, and returns how many records it had.

    One record to each partition, every filler word, and `primer_lines` primer records of the source, with
    which the engine can warm up before the gate.

    Raises GeneratorError when one was not acknowledged: the state would not be what was asked for.
    """
    own = source if isinstance(source, Replay) else None
    opener = PRIMER_KEY.encode() if own is None else next(own.primer(1))
    for partition in range(spec.partitions):
        sender.send_primer(opener, partition, partition, **_keyed(own, 0))
    number = spec.partitions
    for first in range(0, fillers.count, _FILLERS_AT_ONCE):
        last = min(fillers.count, first + _FILLERS_AT_ONCE)
        for word in fillers.words(np.arange(first, last, dtype=np.uint64)):
            sender.send_primer(word, number, number % spec.partitions)
            number += 1
    for line in source.primer(spec.primer_lines):
        sender.send_primer(line, number, number % spec.partitions, **_keyed(own, number - spec.partitions))
        number += 1
    missing = sender.flush()
    if missing:
        raise GeneratorError(f"topic {spec.topic}: {missing} primer records unacknowledged {sender.last_error}".strip())
    return number


def _keyed(own: Replay | None, number: int) -> dict[str, Any]:
    """How a record beside the schedule is keyed: whoever reads a user's data finds nothing else among it."""
    return {} if own is None else {"key": own.primer_key(number), "keyed": False}


def close(
    spec: GeneratorSpec,
    payloads: Iterable[bytes | None],
    sender: Sender,
    *,
    ahead_s: float = 0.0,
    own: Replay | None = None,
) -> None:
    """Sends what closes windows after the schedule, `ahead_s` later by its timestamp. `own`: the data of the user's
    that it is of.

    Raises GeneratorError when one record was not acknowledged.
    """
    for number, payload in enumerate(payloads):
        place = number % spec.partitions
        sender.send_primer(payload, number, place, CLOSING, ahead_s=ahead_s, **_keyed(own, number))
    missing = sender.flush()
    if missing:
        raise GeneratorError(
            f"topic {spec.topic}: {missing} closing records unacknowledged {sender.last_error}".strip()
        )


def run_schedule(
    spec: GeneratorSpec,
    stripe: Stripe,
    stream: Stream,
    sender: Sender,
    start: Start,
    stop: StopSwitch,
    progress: Progress,
    clock: Clock | None = None,
    load_end: LoadEnd | None = None,
) -> Outcome:
    """Sends this stripe's records from T0 on, flushes, and accounts for them.

    `sender` is fresh (nothing sent). `progress` is called about once a second.
    Raises Stopped when asked to stop.
    """
    clock = RealClock() if clock is None else clock
    lateness = Lateness()
    schedule = spec.schedule
    load_end = LoadEnd(None) if load_end is None else load_end

    def due_now() -> int:
        if schedule is None:
            return stream.total
        return stripe.share(schedule.due_count(clock.now_ns() - start.mono_ns))

    def standing() -> Standing:
        return Standing(sender.sent, due_now(), lateness.number_late(), lateness.take_largest_ms())

    ticker = Ticker(clock, lambda: progress(standing()))
    # The objects of the preparation are not looked at again: no pause of the collector in the loop.
    gc.collect()
    gc.freeze()
    cpu_before = _cpu_s()

    def send(first: int, last: int) -> None:
        while first < last:
            chunk = stream.take(last - first)
            stamps = ((chunk.due_ns + start.wall_ns) // 1_000_000).tolist()
            sender.send(chunk.payloads, chunk.partitions, stamps, chunk.headers, chunk.keys)
            lateness.record(clock.now_ns(), chunk.due_ns + start.mono_ns)
            first += len(chunk.payloads)
        ticker.tick()

    def idle(spare_ns: int) -> None:
        if spare_ns > _SPARE_NS:
            stream.prepare()
        sender.release()
        ticker.tick()

    if schedule is not None:
        pace(schedule, stripe, start.mono_ns, clock, send, idle, stop.pulled, load_end.at_ns)
    else:
        _flood(stream, sender, start, stop, ticker, clock)
    stop.check()
    still_queued_or_failed = sender.flush()
    end_ns = clock.now_ns()
    return Outcome(
        records=sender.sent,
        unknown=still_queued_or_failed,
        elapsed_s=(end_ns - start.mono_ns) / NANOSECONDS,
        cpu_s=_cpu_s() - cpu_before,
        lateness=lateness.histogram(),
    )


def _flood(stream: Stream, sender: Sender, start: Start, stop: StopSwitch, ticker: Ticker, clock: Clock) -> None:
    """Sends everything as fast as the producer takes it; the timestamp is the time of the hand-over."""
    wait_ns = start.mono_ns - clock.now_ns()
    if wait_ns > 0:
        clock.sleep_ns(wait_ns)
    while sender.sent < stream.total and not stop.pulled():
        chunk = stream.take(_FLOOD_BURST)
        stamp = (start.wall_ns + clock.now_ns() - start.mono_ns) // 1_000_000
        sender.send(chunk.payloads, chunk.partitions, [stamp] * len(chunk.payloads), chunk.headers, chunk.keys)
        ticker.tick()


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def done_fields(records: int, acked: int, unknown: int, lag: dict[str, float]) -> dict[str, Any]:
    """The fields of the `done` event that tell of records, the same from one process and from several."""
    return {"records": records, "acked": acked, "unknown": unknown, "schedule_lag_ms": lag}
