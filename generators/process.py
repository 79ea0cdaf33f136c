"""What a process of a generator does: send alone, send a stripe as a member of a crew, or lead the crew."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from hdrh.histogram import HdrHistogram

from generators.crew import Crew, Members
from generators.errors import GeneratorError
from generators.gate import LoadEnd, Start, StopSwitch, await_gate
from generators.journal import Journal
from generators.lateness import new_histogram, percentiles_ms, write_log
from generators.life import Outcome, close, done_fields, prime, run_schedule
from generators.pacing import Stripe
from generators.producer import Broker, Sender, make_producer
from generators.replay import Replay
from generators.spec import GeneratorSpec
from generators.stream import Stream, make_fillers, make_nexmark, make_source

# Waits for T0; raises Stopped when it is not to come any more.
Gate = Callable[[], Start]


def send_alone(spec: GeneratorSpec, gate: Path, histogram: Path, journal: Journal, stop: StopSwitch) -> None:
    """The life of a generator that is one process."""

    def primed_gate() -> Start:
        _prime(spec, journal, broker, stop)
        # A detached process loses its first parent early, on purpose; the present one stays.
        stop.watch_present_parent()
        return await_gate(gate, stop)

    broker = Broker(spec.bootstrap)
    start, outcome = _send(spec, Stripe(), broker, journal, stop, primed_gate, LoadEnd(gate))
    _write_histogram(histogram, outcome.lateness, start)
    _close(spec)
    journal.event("done", **_account(outcome), end_offsets=broker.end_offsets(spec.topic, spec.partitions))


def send_stripe(
    spec: GeneratorSpec, index: int, gate: Gate, journal: Journal, stop: StopSwitch, load_end: LoadEnd | None = None
) -> None:
    """The life of member `index` of a crew. Its `done` carries its lateness as an encoded HdrHistogram."""
    stripe = Stripe(index, spec.processes)
    _, outcome = _send(spec, stripe, Broker(spec.bootstrap), journal, stop, gate, load_end or LoadEnd(None))
    journal.event("done", **_account(outcome), lateness=outcome.lateness.encode().decode())


def lead(
    spec: GeneratorSpec, members: Members, gate: Path, histogram: Path, journal: Journal, stop: StopSwitch
) -> None:
    """The life of the first of several processes: it primes, follows the members and adds them up."""
    broker = Broker(spec.bootstrap)
    broker.check_topic(spec.topic, spec.partitions)
    with Crew(members, stop) as crew:
        crew.await_all("prepared")
        journal.event("prepared")
        _prime(spec, journal, broker, stop)
        stop.watch_present_parent()
        start = await_gate(gate, stop)
        crew.open_gate(start)
        journal.event("gate", t0_wall_ns=start.wall_ns)
        done = crew.follow(lambda standing: journal.event("progress", **asdict(standing)))
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
    stripe: Stripe,
    broker: Broker,
    journal: Journal,
    stop: StopSwitch,
    gate: Gate,
    load_end: LoadEnd,
) -> tuple[Start, Outcome]:
    stream = Stream(make_source(spec), make_fillers(spec), spec, stripe)
    while stream.prepare():
        stop.check()
    broker.check_topic(spec.topic, spec.partitions)
    producer = make_producer(spec.bootstrap)
    journal.event("prepared")
    start = gate()
    journal.event("gate", t0_wall_ns=start.wall_ns)
    sender = Sender(producer, spec.topic, stop.check)
    outcome = run_schedule(
        spec,
        stripe,
        stream,
        sender,
        start,
        stop,
        lambda standing: journal.event("progress", **asdict(standing)),
        load_end=load_end,
    )
    return start, outcome


def _account(outcome: Outcome) -> dict[str, Any]:
    fields = done_fields(outcome.records, outcome.acked, outcome.unknown, percentiles_ms(outcome.lateness))
    return {**fields, "elapsed_s": outcome.elapsed_s, "cpu_s": outcome.cpu_s}


def _prime(spec: GeneratorSpec, journal: Journal, broker: Broker, stop: StopSwitch) -> None:
    sender = Sender(make_producer(spec.bootstrap), spec.topic, stop.check)
    records = prime(spec, make_source(spec), make_fillers(spec), sender)
    ends = broker.end_offsets(spec.topic, spec.partitions)
    journal.event("primed", records=records, end_offsets=ends, **replayed(spec))


def replayed(spec: GeneratorSpec) -> dict[str, Any]:
    """Of data that is replayed, how many records it has, how often it is gone through, and by how many ms times move
    from one cycle to the next."""
    if spec.source != "data":
        return {}
    data = spec.replayed()
    return {"data": {"records": len(data), "cycles": spec.total / len(data), "cycle_ms": data.round_ms or None}}


def _close(spec: GeneratorSpec) -> None:
    if spec.closing:
        producer: Producer = make_producer(spec.bootstrap)
        if spec.closing_ahead_s is None:
            close(spec, make_nexmark(spec).closing(spec.total), Sender(producer, spec.topic))
        else:
            source = make_source(spec)
            own = source if isinstance(source, Replay) else None
            payloads = source.primer(spec.partitions)
            close(spec, payloads, Sender(producer, spec.topic), ahead_s=spec.closing_ahead_s, own=own)


def _write_histogram(path: Path, lateness: HdrHistogram, start: Start) -> None:
    try:
        write_log(path, lateness, start.wall_ns // 1_000_000, time.time_ns() // 1_000_000)
    except OSError as error:
        raise GeneratorError(f"histogram {path}: cannot be written: {error.strerror}") from None
