"""Command line of one generator.

`python -m generators --config FILE --gate FILE --histogram FILE [TOKEN]`

Events go to standard output as JSON lines: prepared, primed (preload sent), gate (start barrier open), progress (about
each second), then done or failed.
Exit codes: 0 if the schedule was sent and accounted for, 1 if it failed or was stopped, 2 if the specification or the
corpus was refused. TOKEN is ignored; it marks the process as part of a run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from generators.generator_process import run_lead, send_alone
from generators.send_progress import EventOutput, GeneratorError, InputError
from generators.spec import GeneratorSpec, read_spec
from generators.start_barrier import StopRequest
from generators.worker import serve
from generators.worker_group import Address, LocalWorkers, Workers

# Returns the workers that share the schedule of this specification, or None if this process sends alone.
WorkerFactory = Callable[[GeneratorSpec], Workers | None]


def main(arguments: Sequence[str] | None = None, make_workers: WorkerFactory | None = None) -> int:
    """Run one generator and return its exit code; `make_workers` overrides the local worker processes."""
    options = _parser().parse_args(arguments)
    journal = EventOutput(sys.stdout)
    stop = StopRequest()
    stop.install()
    if options.parent:
        stop.watch_parent(options.parent)

    def local_workers(spec: GeneratorSpec) -> Workers | None:
        if spec.processes == 1:
            return None
        command = [sys.executable, "-m", "generators", "--config", str(options.config), "--gate", str(options.gate)]
        tags = [options.token] if options.token else []
        return LocalWorkers([[*command, "--shard", str(number), *tags] for number in range(spec.processes)])

    try:
        spec = read_spec(options.config)
        if options.shard is None and options.histogram is None:
            raise InputError("--histogram: missing; expected a file for the schedule lag")
        if options.shard is not None:
            serve(spec, options.shard, Address(**json.loads(sys.stdin.readline())), options.gate, stop)
        elif (workers := (make_workers or local_workers)(spec)) is not None:
            run_lead(spec, workers, options.gate, options.histogram, journal, stop)
        else:
            send_alone(spec, options.gate, options.histogram, journal, stop)
    except GeneratorError as error:
        journal.event("failed", message=str(error))
        print(f"generator: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except Exception as error:
        # The reader of the journal must not wait for a dead process; the traceback goes to standard error.
        journal.event("failed", message=f"unexpected {type(error).__name__}: {error}")
        raise
    return 0


def _parser() -> argparse.ArgumentParser:
    """Return the command-line parser; a worker has no histogram of its own."""
    parser = argparse.ArgumentParser(prog="python -m generators", description="Send records to Kafka on a schedule.")
    parser.add_argument("--config", type=Path, required=True, help="JSON specification")
    parser.add_argument(
        "--gate", type=Path, required=True, help="start barrier: the schedule starts once this file exists"
    )
    parser.add_argument("--histogram", type=Path, help="output file for the schedule lag (HdrHistogram V2)")
    parser.add_argument(
        "--shard",
        type=int,
        help="(internal) shard to send; standard input holds the lead's address",
    )
    parser.add_argument("--parent", type=int, help="end when this process is no longer the parent")
    parser.add_argument("token", nargs="?", default="", help="token of the run (ignored)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
