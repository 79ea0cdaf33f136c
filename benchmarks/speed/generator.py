"""Throughput of one generator process, compared with the JVM's `ProducerPerformance` on the same broker.

Both send alternately to fresh topics of the same shape with the same settings (idempotent, acks=all, linger 5 ms,
batches of 128 KiB, no compression), the same number of records of the same size. The batch size is set on both sides
because it determines the rate: with its default of 16 KiB the JVM is about half as fast, which would bias the ratio. In
the Zipf comparison the generator draws its lines while sending, and the JVM picks from prepared lines; both send 99
bytes. The rate is records ÷ time from the first record to the last acknowledgement, without start-up; for the JVM it is
the steady part after its warm-up records, the better of its two numbers. Each figure is the median over the
repetitions; `low` and `high` are their minimum and maximum.

Schedule lag is measured with Zipf's lines as well: at steady rates, along a curve, and at half of the highest measured
rate.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import generators
from benchmarks.figure import BenchmarkFigure, summarise
from benchmarks.synthetic_topics import fresh_topics
from faultline.cli.service_control import bring_up, require
from faultline.installation.jars import classpath
from faultline.system.errors import InfrastructureError
from faultline.system.settings import load_settings
from faultline.system.text import Progress
from generators.producer import BATCH_BYTES, LINGER_MS
from generators.spec import GeneratorSpec
from generators.stream import make_source

PARTITIONS = 2
RECORD_BYTES = 100
# Lines of the JVM in the Zipf comparison, all in memory.
_PAYLOAD_LINES = 100_000
_TIMEOUT_S = 300.0
_T0_AHEAD_NS = 300_000_000
_JVM_RATE = re.compile(r"records sent, ([0-9.]+) records/sec")


@dataclass(frozen=True)
class LoadPlan:
    """Numbers and durations of the measurements."""

    repetitions: int
    records: int
    warmup_records: int
    punctual_repetitions: int
    steady_s: float
    paced_s: float


FULL = LoadPlan(9, records=3_000_000, warmup_records=500_000, punctual_repetitions=2, steady_s=60.0, paced_s=20.0)
QUICK = LoadPlan(5, records=1_000_000, warmup_records=300_000, punctual_repetitions=5, steady_s=5.0, paced_s=5.0)
# Steady rates in records/s, by their names in figures.
STEADY = {"1e3": 1_000.0, "1e4": 10_000.0, "1e5": 100_000.0}
# Rate along a sine: between a half and one and a half, with a period of 10 s.
CURVE_RATE = 20_000.0
CURVE = {"kind": "sine", "period_s": 10.0, "amplitude": 10_000.0}


def parse_jvm_rate(output: str) -> float:
    """Return records per second from the last summary line of ProducerPerformance.

    Raises InfrastructureError without one.
    """
    rates = _JVM_RATE.findall(output)
    if not rates:
        raise InfrastructureError(f"ProducerPerformance printed no rate; output: {output.strip()[-300:]!r}")
    return float(rates[-1])


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Measure all figures of the benchmark `generator`.

    Starts a broker; creates topics and deletes them. Raises InfrastructureError if a part fails.
    """
    java = require(load_settings())
    settings = bring_up(progress, airflow=False)
    jars = [*classpath(settings.home, "kafka"), *classpath(settings.home, "kafka-tools")]
    with tempfile.TemporaryDirectory(prefix="faultline-bench-") as folder:
        connection = (settings.endpoints.kafka, os.pathsep.join(map(str, jars)), str(java.executable))
        return _Bench(*connection, QUICK if quick else FULL, Path(folder)).measure()


class _Bench:
    """One run of the benchmark against one broker."""

    def __init__(self, bootstrap: str, classpath: str, java: str, plan: LoadPlan, folder: Path) -> None:
        self._bootstrap, self._classpath, self._java = bootstrap, classpath, java
        self._plan, self._folder = plan, folder

    def measure(self) -> dict[str, BenchmarkFigure]:
        """Return all figures by name."""
        constant, zipf = self._spec(source="constant", payload_bytes=RECORD_BYTES), self._spec(source="zipf")
        lines = self._folder / "lines.txt"
        records = np.arange(_PAYLOAD_LINES, dtype=np.uint64)
        lines.write_bytes(b"\n".join(make_source(zipf).payloads(records)))
        self._generate(constant)  # warm-up of the broker, discarded
        ratios: dict[str, list[float]] = {"constant": [], "zipf": []}
        rates, cpu_rates, two, highest = [], [], [], []
        for _ in range(self._plan.repetitions):
            own = self._generate(constant)
            ratios["constant"].append(_rate(own) / self._jvm("--record-size", str(RECORD_BYTES)))
            rates.append(_rate(own))
            cpu_rates.append(own["records"] / own["cpu_s"])
            drawn = _rate(self._generate(zipf))
            highest.append(drawn)
            ratios["zipf"].append(drawn / self._jvm("--payload-file", str(lines)))
            pair = self._generate(zipf.model_copy(update={"processes": 2, "records": 2 * self._plan.records}))
            two.append(_rate(pair) / (2 * drawn))
        return {
            "ratio_constant": summarise(ratios["constant"], "1"),
            "ratio_zipf": summarise(ratios["zipf"], "1"),
            "records_per_s": summarise(rates, "records/s"),
            "records_per_cpu_s": summarise(cpu_rates, "records/cpu-s"),
            "efficiency_2_processes": summarise(two, "1"),
            **self._punctuality(summarise(highest, "records/s").value / 2),
        }

    def _punctuality(self, half: float) -> dict[str, BenchmarkFigure]:
        """Return relative rate errors, schedule lag at the rate `half`, and cores."""
        found: dict[str, list[float]] = {}
        for _ in range(self._plan.punctual_repetitions):
            for name, rate in STEADY.items():
                done = self._paced(rate, self._plan.steady_s)[-1]
                found.setdefault(f"rate_error_{name}", []).append(abs(done["elapsed_s"] / self._plan.steady_s - 1))
                if name == "1e3":
                    found.setdefault("cores_1e3", []).append(done["cpu_s"] / done["elapsed_s"])
            course = self._paced(CURVE_RATE, self._plan.paced_s, rate_curve=CURVE)
            found.setdefault("curve_error", []).append(curve_error(course))
            late = self._paced(round(half), self._plan.paced_s)[-1]["schedule_lag_ms"]["p99"]
            found.setdefault("schedule_lag_p99_ms", []).append(float(late))
        units = {"cores_1e3": "cores", "schedule_lag_p99_ms": "ms"}
        return {name: summarise(values, units.get(name, "1")) for name, values in found.items()}

    def _paced(self, rate: float, seconds: float, **values: Any) -> list[dict[str, Any]]:
        """Return the events of one process that sends Zipf's lines by a schedule."""
        return self._follow(self._spec(source="zipf", rate=rate, seconds=seconds, records=None, **values))

    def _spec(self, **values: Any) -> GeneratorSpec:
        defaults = {"rate": None, "records": self._plan.records, "partitions": PARTITIONS, "topic": "none yet"}
        return GeneratorSpec.model_validate({"bootstrap": self._bootstrap, **defaults, **values})

    def _generate(self, spec: GeneratorSpec) -> dict[str, Any]:
        """Run one generator to its end; return its `done` event."""
        return self._follow(spec)[-1]

    def _follow(self, spec: GeneratorSpec) -> list[dict[str, Any]]:
        """Run one generator to its end; return its events, the last of which is `done`."""
        with fresh_topics(self._bootstrap, PARTITIONS, 1) as (topic,):
            folder = self._folder / topic
            folder.mkdir()
            config = folder / "generator.json"
            config.write_text(spec.model_copy(update={"topic": topic}).model_dump_json(), encoding="utf-8")
            command = [sys.executable, "-m", "generators", "--config", str(config)]
            command += ["--gate", str(folder / "gate.json"), "--histogram", str(folder / "lag.hlog")]
            root = str(Path(generators.__file__).parent.parent)
            path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
            environment = {**os.environ, "PYTHONPATH": path}
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
            try:
                return _follow(process, folder / "gate.json", spec.total)
            finally:
                process.terminate()
                process.wait(10)

    def _jvm(self, *payload: str) -> float:
        """Return records per second of one ProducerPerformance run."""
        with fresh_topics(self._bootstrap, PARTITIONS, 1) as (topic,):
            command = [self._java, "-cp", self._classpath, "org.apache.kafka.tools.ProducerPerformance"]
            command += ["--bootstrap-server", self._bootstrap, "--topic", topic, "--throughput", "-1"]
            command += ["--num-records", str(self._plan.records + self._plan.warmup_records)]
            command += ["--warmup-records", str(self._plan.warmup_records), *payload]
            command += ["--command-property", "acks=all", "enable.idempotence=true"]
            command += [f"linger.ms={LINGER_MS}", f"batch.size={BATCH_BYTES}"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise InfrastructureError(f"ProducerPerformance did not run: {error}") from None
            if done.returncode != 0:
                raise InfrastructureError(f"ProducerPerformance failed: {(done.stderr or done.stdout).strip()[-300:]}")
            return parse_jvm_rate(done.stdout)


def _rate(done: dict[str, Any]) -> float:
    """Return acknowledged records per second of a `done` event."""
    return float(done["acked"] / done["elapsed_s"])


def curve_error(events: Sequence[Mapping[str, Any]]) -> float:
    """Return the largest relative difference of sent and due records between two progress events."""
    seen = [(int(event["sent"]), int(event["due"])) for event in events if event["event"] == "progress"]
    steps = [(later[0] - earlier[0], later[1] - earlier[1]) for earlier, later in pairwise(seen)]
    return max(abs(sent / due - 1) for sent, due in steps if due)


def _follow(process: subprocess.Popen[str], gate: Path, expected: int) -> list[dict[str, Any]]:
    """Open the start barrier after the preload; return the generator's events, with every record acknowledged."""
    events: list[dict[str, Any]] = []
    for line in process.stdout or ():
        events.append(json.loads(line))
        if events[-1]["event"] == "primed":
            t0 = {
                "t0_wall_ns": time.time_ns() + _T0_AHEAD_NS,
                "t0_mono_ns": time.monotonic_ns() + _T0_AHEAD_NS,
            }
            ready = gate.with_suffix(".tmp")
            ready.write_text(json.dumps(t0), encoding="utf-8")
            ready.rename(gate)
    if not events or events[-1]["event"] != "done":
        message = events[-1].get("message", "ended without a message") if events else "no output"
        raise InfrastructureError(f"generator: failed: {message}")
    if events[-1]["acked"] != expected:
        raise InfrastructureError(f"broker: acknowledged {events[-1]['acked']} of {expected} records")
    return events
