"""`python -m generators --config FILE --gate FILE --histogram FILE [TOKEN]`: one generator.

Events go to standard output as JSON lines: prepared, primed, gate, progress (about each second), then done or
failed. Exit code 0: the schedule was kept and accounted for; 1: it failed or was stopped; 2: the
specification or the corpus was refused. TOKEN is ignored; it marks the process as part of a run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from generators.generator_process import lead, send_alone
from generators.send_progress import EventOutput, GeneratorError, InputError
from generators.spec import GeneratorSpec, read_spec
from generators.start_barrier import StopSwitch
from generators.worker import serve
from generators.worker_group import Address, LocalWorkers, Workers

# The members that a lead gets, by its specification; None: it sends by itself.
Hire = Callable[[GeneratorSpec], Workers | None]


def main(arguments: Sequence[str] | None = None, hire: Hire | None = None) -> int:
    """Runs one generator; returns its exit code. `hire`: where the members come from; by default, this machine."""
    options = _parser().parse_args(arguments)
    journal = EventOutput(sys.stdout)
    stop = StopSwitch()
    stop.install()
    if options.parent:
        stop.watch_parent(options.parent)

    def local_members(spec: GeneratorSpec) -> Workers | None:
        if spec.processes == 1:
            return None
        command = [sys.executable, "-m", "generators", "--config", str(options.config), "--gate", str(options.gate)]
        marks = [options.token] if options.token else []  # by which each of them can be found
        return LocalWorkers([[*command, "--stripe", str(number), *marks] for number in range(spec.processes)])

    try:
        spec = read_spec(options.config)
        if options.stripe is None and options.histogram is None:
            raise InputError("--histogram: give the file for the lateness")
        if options.stripe is not None:
            serve(spec, options.stripe, Address(**json.loads(sys.stdin.readline())), options.gate, stop)
        elif (members := (hire or local_members)(spec)) is not None:
            lead(spec, members, options.gate, options.histogram, journal, stop)
        else:
            send_alone(spec, options.gate, options.histogram, journal, stop)
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
    """The command line; a member has no histogram of its own."""
    made = argparse.ArgumentParser(prog="python -m generators", description="A paced Kafka producer.")
    made.add_argument("--config", type=Path, required=True, help="the specification, JSON")
    made.add_argument("--gate", type=Path, required=True, help="the file whose appearance starts the schedule")
    made.add_argument("--histogram", type=Path, help="where to write the lateness (HdrHistogram V2)")
    made.add_argument(
        "--stripe",
        type=int,
        help="(internal) the share that this member sends; standard input: its lead",
    )
    made.add_argument("--parent", type=int, help="end when the parent is no longer this process")
    made.add_argument("token", nargs="?", default="", help="the run's token; ignored")
    return made


if __name__ == "__main__":
    sys.exit(main())
