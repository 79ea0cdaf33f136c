"""`python -m generators --config FILE --gate FILE --histogram FILE [TOKEN]`: one generator.

Events go to standard output as JSON lines: prepared, primed, gate, progress (about each second), then done or
failed. Exit code 0: the schedule was kept and accounted for; 1: it failed or was stopped; 2: the
specification or the corpus was refused. TOKEN is ignored; it marks the process as part of a run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer

from generators.crew import Crew, member_commands, member_histogram
from generators.errors import GeneratorError, InputError
from generators.gate import Start, StopSwitch, await_gate
from generators.journal import Journal
from generators.lateness import new_histogram, percentiles_ms, read_log, write_log
from generators.life import Outcome, close, done_fields, prime, run_schedule
from generators.pacing import Stripe
from generators.producer import Broker, Sender, make_producer
from generators.spec import GeneratorSpec, read_spec
from generators.stream import Stream, make_fillers, make_nexmark, make_source


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one generator; returns its exit code."""
    options = _parser().parse_args(arguments)
    journal = Journal(sys.stdout)
    stop = StopSwitch()
    stop.install()
    if options.parent:
        stop.watch_parent(options.parent)
    try:
        spec = read_spec(options.config)
        if options.stripe is None and spec.processes > 1:
            _lead(spec, options, journal, stop)
        else:
            _send(spec, options, journal, stop)
    except GeneratorError as error:
        journal.event("failed", message=str(error))
        print(f"generator: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except Exception as error:
        # Whoever reads the journal must not wait for a process that is gone; the trace goes to standard error.
        journal.event("failed", message=f"unexpected {type(error).__name__}: {error}")
        raise
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m generators", description="A paced Kafka producer.")
    parser.add_argument("--config", type=Path, required=True, help="the specification, JSON")
    parser.add_argument("--gate", type=Path, required=True, help="the file whose appearance starts the schedule")
    parser.add_argument("--histogram", type=Path, required=True, help="where to write the lateness (HdrHistogram V2)")
    parser.add_argument("--stripe", type=int, help="(internal) which share of the schedule this process sends")
    parser.add_argument("--parent", type=int, help="end when the parent is no longer this process")
    parser.add_argument("token", nargs="?", default="", help="the run's token; ignored")
    return parser


def _send(spec: GeneratorSpec, options: argparse.Namespace, journal: Journal, stop: StopSwitch) -> None:
    """The life of a process that sends: alone, or as one stripe of several."""
    stripe = Stripe() if options.stripe is None else Stripe(options.stripe, spec.processes)
    fillers = make_fillers(spec)
    stream = Stream(make_source(spec), fillers, spec, stripe)
    while stream.prepare():
        stop.check()
    broker = Broker(spec.bootstrap)
    broker.check_topic(spec.topic, spec.partitions)
    producer = make_producer(spec.bootstrap)
    journal.event("prepared")
    if options.stripe is None:
        _prime(spec, journal, broker, Sender(producer, spec.topic, stop.check))
        stop.watch_parent(options.parent)
    start = await_gate(options.gate, stop)
    journal.event("gate", t0_wall_ns=start.wall_ns)
    sender = Sender(producer, spec.topic, stop.check)
    outcome = run_schedule(
        spec, stripe, stream, sender, start, stop, lambda sent, due: journal.event("progress", sent=sent, due=due)
    )
    _write_histogram(options.histogram, outcome, start)
    if options.stripe is None:
        _close(spec, producer)
    journal.event(
        "done",
        **done_fields(
            outcome.records,
            outcome.acked,
            outcome.unknown,
            percentiles_ms(outcome.lateness),
            {
                "end_offsets": broker.end_offsets(spec.topic, spec.partitions),
                "elapsed_s": outcome.elapsed_s,
                "cpu_s": outcome.cpu_s,
            },
        ),
    )


def _lead(spec: GeneratorSpec, options: argparse.Namespace, journal: Journal, stop: StopSwitch) -> None:
    """The life of the first of several processes: it primes, follows the members and adds them up."""
    commands = member_commands(
        options.config, options.gate, options.histogram, spec.processes, os.getpid(), options.token
    )
    broker = Broker(spec.bootstrap)
    broker.check_topic(spec.topic, spec.partitions)
    with Crew(commands, stop) as crew:
        crew.await_all("prepared")
        journal.event("prepared")
        _prime(spec, journal, broker, Sender(make_producer(spec.bootstrap), spec.topic, stop.check))
        stop.watch_parent(options.parent)
        start = await_gate(options.gate, stop)
        journal.event("gate", t0_wall_ns=start.wall_ns)
        done = crew.follow(lambda sent, due: journal.event("progress", sent=sent, due=due))
    _close(spec, make_producer(spec.bootstrap))
    merged = new_histogram()
    for number in range(spec.processes):
        path = member_histogram(options.histogram, number)
        merged.add(read_log(path))
        path.unlink()
    write_log(options.histogram, merged, start.wall_ns // 1_000_000, time.time_ns() // 1_000_000)
    journal.event(
        "done",
        **done_fields(
            sum(event["records"] for event in done),
            sum(event["acked"] for event in done),
            sum(event["unknown"] for event in done),
            percentiles_ms(merged),
            {
                "end_offsets": broker.end_offsets(spec.topic, spec.partitions),
                "elapsed_s": max(event["elapsed_s"] for event in done),
                "cpu_s": sum(event["cpu_s"] for event in done),
            },
        ),
    )


def _prime(spec: GeneratorSpec, journal: Journal, broker: Broker, sender: Sender) -> None:
    records = prime(spec, make_source(spec), make_fillers(spec), sender)
    journal.event("primed", records=records, end_offsets=broker.end_offsets(spec.topic, spec.partitions))


def _close(spec: GeneratorSpec, producer: Producer) -> None:
    if spec.closing:
        close(spec, make_nexmark(spec).closing(spec.total), Sender(producer, spec.topic))


def _write_histogram(path: Path, outcome: Outcome, start: Start) -> None:
    try:
        write_log(path, outcome.lateness, start.wall_ns // 1_000_000, time.time_ns() // 1_000_000)
    except OSError as error:
        raise GeneratorError(f"histogram {path}: cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
