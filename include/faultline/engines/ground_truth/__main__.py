"""Program of the workload `known_truth`, started and restarted by the workload supervisor.

    python -m faultline.engines.ground_truth --config FILE faultline-run=<attempt>

FILE is the attempt's workload_config.json. Exit codes: 0 the stop file appeared and all output was emitted; 1 Kafka or
a file failed; 2 the configuration is invalid.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faultline.engines.ground_truth.harvest import KafkaTransport
from faultline.engines.ground_truth.process_run import Incarnation
from faultline.engines.ground_truth.scripted_run import RunSpec, ScriptedTimeline, build_timeline
from faultline.engines.ground_truth.traces import TraceJournal, restore
from faultline.experiment.workloads.known_truth_script import parse_script
from faultline.system.errors import ConfigError, FaultlineError
from faultline.system.journal import events, find_last, read_journal


class MonotonicClock:
    """Monotonic clock, shared by all processes of a host."""

    def now_ns(self) -> int:
        """Return the current time."""
        return time.monotonic_ns()

    def sleep_ns(self, duration_ns: int) -> None:
        """Sleep for a duration; return at once if it is negative."""
        time.sleep(max(0, duration_ns) / 1e9)


def main(arguments: list[str] | None = None) -> int:
    """Run one incarnation (one start of the process) and return its exit code."""
    parser = argparse.ArgumentParser(prog="faultline.engines.ground_truth", description="Ground-truth engine.")
    parser.add_argument("--config", type=Path, required=True, help="workload_config.json of the attempt")
    parser.add_argument("token", nargs="?", help="process tag of the run: faultline-run=<attempt>")
    options = parser.parse_args(arguments)
    try:
        run_incarnation(json.loads(options.config.read_text(encoding="utf-8")))
    except ConfigError as error:
        print(f"known_truth: ConfigError: {error}", file=sys.stderr)
        return 2
    except FaultlineError as error:
        print(f"known_truth: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def run_incarnation(config: dict[str, Any]) -> None:
    """Run one incarnation from its start until the stop file appears."""
    script, run = parse_script(config["truth"] or {}), RunSpec.from_mapping(config)
    starts = events(read_journal(Path(config["supervisor_journal"])), "start")
    incarnation = max(0, len(starts) - 1)
    journal, stop_file = Path(config["traces"]), Path(config["stop_file"])
    restored = restore(journal)
    traces = TraceJournal(journal, incarnation=incarnation, style=script.style)
    traces.log(f"incarnation {incarnation} continues after batch {restored.batch}")
    begin = {partition: (restored.ends or {}).get(partition, 0) for partition in range(run.partitions)}
    transport = KafkaTransport(config["bootstrap"], config["input_topic"], config["output_topic"], begin)
    engine = Incarnation(run.partitions, transport, traces, MonotonicClock(), stop_file.exists, restored)
    t0_mono_ns = engine.await_start(_start_reader(Path(config["gate"])))
    if t0_mono_ns is not None:
        kills_ns = _kill_times_ns(config, run, t0_mono_ns) if incarnation else []
        for killed_ns in kills_ns[-1:]:
            traces.log(
                f"was killed {killed_ns / 1e9:.3f} s after T0; now it is {_seconds_since(t0_mono_ns):.3f} s after T0"
            )

        def timeline(until_ns: int | None) -> ScriptedTimeline:
            return build_timeline(script, run, kills_ns, until_ns)

        # Freezing the prepared objects avoids garbage-collection pauses at scripted instants.
        gc.collect()
        gc.freeze()
        engine.follow(
            timeline, t0_mono_ns, _load_end_reader(config), stateless=script.nothing_to_load, restarted=incarnation > 0
        )
    transport.close()
    traces.end()
    traces.log("stopped")


def _start_reader(path: Path) -> Callable[[], int | None]:
    return lambda: _read_instant(path, "t0_mono_ns")


def _load_end_reader(config: dict[str, Any]) -> Callable[[], int | None]:
    """Return a function that reads when the load ends, on the monotonic clock; it returns None while unknown."""
    path = config.get("load_end")
    return (lambda: None) if path is None else (lambda: _read_instant(Path(path), "end_mono_ns"))


def _read_instant(path: Path, name: str) -> int | None:
    """Return an instant from a file that is created atomically; None while it is missing."""
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))[name])
    except FileNotFoundError:
        return None


def _kill_times_ns(config: dict[str, Any], run: RunSpec, t0_mono_ns: int) -> list[int]:
    """Return when kills were delivered, in ns after T0: by the fault scheduler's journal, else as planned.

    For an unplanned exit, the time of the exit in the supervisor's journal counts. Empty if it happened before T0.
    """
    first: dict[int, int] = {}
    for line in events(read_journal(Path(config["conductor_journal"])), "delivered"):
        first.setdefault(int(line.get("fault", 0)), int(line["mono_ns"]) - t0_mono_ns)
    if first:
        return sorted(first.values())
    if run.fault_at_ns is not None and run.fault_at_ns <= time.monotonic_ns() - t0_mono_ns:
        return [run.fault_at_ns]
    ended = find_last(read_journal(Path(config["supervisor_journal"])), event="exit")
    after_ns = int(ended["mono_ns"]) - t0_mono_ns if ended else -1
    return [after_ns] if after_ns > 0 else []


def _seconds_since(t0_mono_ns: int) -> float:
    return (time.monotonic_ns() - t0_mono_ns) / 1e9


if __name__ == "__main__":
    sys.exit(main())
