"""A complete attempt made up from planted truth, in the formats that the real processes write.

A small model of a micro-batch engine: batch i is planned at T0 + i·interval and committed `DELAY` of an
interval later. The fault holds one batch back until the state is loaded again; some batches run late
(`catch`), and some more are late only in their outputs (`slow`). Every instant is known beforehand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from faultline.bands import band
from faultline.bins import Schedule, between, bins_of_batches
from faultline.config import Configuration
from faultline.executor_log import ExecutorEvents, parse_executor_log
from faultline.latency import TUPLE_COLUMNS, fold
from faultline.raw import Commit, _recorder
from faultline.timeline import Evidence
from faultline.window import NS, Window

DELAY = 0.3
T0_NS = 1_795_241_700_250_000_000
MONO_NS = 5_000_000_000_000
PRIMER = 4
ATTEMPT = "20261121T061500Z-3fa9c1"
CORES = {"driver": 0.25, "executors": 0.4, "kafka": 0.1, "generator": 0.05, "python_workers": 0.0}
_KEY = "w" * 10


@dataclass(frozen=True)
class Scenario:
    """What is planted. Seconds; `catch` and `slow` count batches; `recovers` False means censored."""

    interval_s: float = 2.0
    rate: float = 200.0
    warmup_s: float = 6.0
    fault: bool = True
    phase: float = 0.1
    detection_s: float = 0.35
    redeploy_s: float = 3.2
    load_s: float = 0.4
    replay_s: float = 3.0
    catch: int = 2
    slow: int = 1
    recovers: bool = True
    nothing_to_load: bool = False
    lost: int = 0

    @property
    def configuration(self) -> Configuration:
        """The configuration that such a run would have had."""
        values: dict[str, Any] = {
            "rate": self.rate,
            "warmup_s": self.warmup_s,
            "duration_s": self.duration_s,
            "checkpoint_interval_s": self.interval_s,
            "fault": "executor" if self.fault else "none",
        }
        return Configuration.model_validate(values)

    @property
    def duration_s(self) -> float:
        """Long enough for baseline, planted recovery and hold, in whole intervals."""
        bins = 4 if self.interval_s >= 5 else 10
        late = self.detection_s + self.redeploy_s + self.load_s + self.replay_s
        after = max(32.0, late + (self.catch + self.slow + 4) * self.interval_s + 12.0)
        return self.interval_s * np.ceil(((bins + 2) * self.interval_s + after) / self.interval_s)


class Synthetic:
    """The attempt of a scenario: in memory (`evidence`) or on disk (`write`)."""

    def __init__(self, scenario: Scenario) -> None:
        self.s = scenario
        c = scenario.configuration
        self.window = Window.of(T0_NS, c.warmup_s, c.duration_s, c.checkpoint_interval_s)
        bins = 4 if c.checkpoint_interval_s >= 5 else 10
        base = scenario.warmup_s + (bins + 1) * scenario.interval_s
        self.hit = int(np.ceil(base / scenario.interval_s))
        at = self.hit * scenario.interval_s + scenario.phase * scenario.interval_s
        self.t0 = _grain(T0_NS + at * NS)
        self.t2 = _grain(self.t0 + scenario.detection_s * NS)
        self.t3 = _grain(self.t2 + scenario.redeploy_s * NS)
        self.t4 = self.t3 if scenario.nothing_to_load else _grain(self.t3 + scenario.load_s * NS)
        self.t5 = _grain(self.t4 + scenario.replay_s * NS)
        self.t6 = self.t5 + _ns((scenario.catch + 1) * scenario.interval_s)
        self.t7 = self.t6 + _ns((scenario.slow + 1) * scenario.interval_s)
        self.end_offsets = self._offsets(self.t0)

    @property
    def truth(self) -> dict[str, float]:
        """The planted parts in seconds."""
        t = [self.t0, self.t2, self.t3, self.t4, self.t5, self.t6, self.t7]
        names = ["detection_s", "redeploy_s", "load_s", "replay_s", "catchup_s"]
        parts = {name: (after - before) / NS for name, before, after in zip(names, t, t[1:], strict=False)}
        return {**parts, "reload_s": (t[3] - t[0]) / NS, "macro_s": (t[6] - t[0]) / NS}

    @cached_property
    def batches(self) -> list[tuple[int, int, int]]:
        """(planned, committed, extra delay of the outputs) of each batch, primer first; ns."""
        s, step = self.s, _ns(self.s.interval_s)
        rows = [(T0_NS - 2 * step, T0_NS - step, 0)]
        last = self.window.end_ns + 2 * step
        planned = T0_NS + step
        stop = self.t0 if s.fault else last
        while planned <= stop:
            # alternating, so that the baseline has a spread but no trend
            wobble = _ns((0.004 if len(rows) % 2 else -0.004) * s.interval_s)
            rows.append((planned, planned + _ns(DELAY * s.interval_s) + wobble, 0))
            planned += step
        if s.fault:
            rows = [row for row in rows if row[0] <= self.t0]
            held = self.t4 + (self.t5 - self.t4) // 2
            rows[-1] = (rows[-1][0], held, 0)
            rows.append((held, self.t5, 0))
            committed, number = self.t5 + step, 1
            while committed <= last:
                late = number <= s.catch or not s.recovers
                slow = s.catch < number <= s.catch + 1 + s.slow
                rows.append(
                    (committed - _ns((2 if late else 1) * DELAY * s.interval_s), committed, 2 * step if slow else 0)
                )
                committed, number = committed + step, number + 1
        rows.append((rows[-1][1], rows[-1][1] + step, 0))
        return rows

    @cached_property
    def due(self) -> np.ndarray:
        """Intended instants of the schedule in ms, record k in partition k mod 2."""
        n = int(self.s.rate * (self.s.warmup_s + self.s.duration_s))
        return T0_NS // 1_000_000 + np.floor(np.arange(n) * 1000 / self.s.rate).astype(np.int64)

    def _offsets(self, wall_ns: int) -> dict[str, int]:
        n = int(np.searchsorted(self.due, wall_ns // 1_000_000, side="right"))
        return {"0": PRIMER + (n + 1) // 2, "1": PRIMER + n // 2}

    @cached_property
    def commits(self) -> list[Commit]:
        """What `batches.json` holds."""
        return [
            Commit(0, number, planned, committed, self._offsets(planned) if number else {"0": PRIMER, "1": PRIMER})
            for number, (planned, committed, _) in enumerate(self.batches)
        ]

    @cached_property
    def records(self) -> pd.DataFrame:
        """The input topic."""
        n = len(self.due)
        schedule = pd.DataFrame(
            {
                "partition": np.arange(n) % 2,
                "offset": PRIMER + np.arange(n) // 2,
                "timestamp_ms": self.due,
                "primer": False,
                "batch": self._batch_of(),
                "lineage": 0,
            }
        )
        primer = pd.DataFrame(
            [(p, o, T0_NS // 1_000_000 - 9000, True, 0, 0) for p in (0, 1) for o in range(PRIMER)],
            columns=schedule.columns,
        )
        return pd.concat([primer, schedule], ignore_index=True)

    def _batch_of(self) -> np.ndarray:
        planned = np.array([row[0] for row in self.batches]) // 1_000_000
        planned[0] = 0
        return np.searchsorted(planned, self.due, side="left")

    @cached_property
    def tuples(self) -> pd.DataFrame:
        """Two tuples of each record, emitted 20 ms before the commit of its batch."""
        batch = self._batch_of()
        emitted = np.array([(row[1] + row[2]) // 1_000_000 - 20 for row in self.batches])
        schedule = pd.DataFrame(
            {
                "lineage": 0,
                "batch": batch,
                "produced_ms": self.due,
                "emitted_ms": emitted[batch],
                "primer": False,
                "n": 2,
            },
            columns=TUPLE_COLUMNS,
        )
        primer = pd.DataFrame([(0, 0, T0_NS // 10**6 - 9000, int(emitted[0]), True, 99)], columns=TUPLE_COLUMNS)
        return pd.concat([primer, schedule], ignore_index=True)

    @cached_property
    def recorder(self) -> list[dict[str, Any]]:
        """One sample a second of every process and of Spark's executors."""
        lines: list[dict[str, Any]] = [{"kind": "start", "wall_ns": T0_NS - 12 * NS}]
        for wall in range(T0_NS - 12 * NS, self.window.end_ns + 4 * NS, NS):
            lines += [self._process(wall, *row) for row in self._living(wall)]
            lines.append({"kind": "executors", "app_id": "app-1", "wall_ns": wall, "executors": self._rest(wall)})
        return [*lines, {"kind": "stop", "wall_ns": self.window.end_ns + 4 * NS}]

    def _living(self, wall: int) -> list[tuple[str, int, int]]:
        """(role, pid, born) of the processes alive at an instant."""
        born = T0_NS - 30 * NS
        living = [(role, 100 + index, born) for index, role in enumerate(CORES) if role != "python_workers"]
        if not self.s.fault or wall < self.t0:
            living.append(("executors", 200, born))
        elif wall > self.t2 + NS:
            living.append(("executors", 300, self.t2 + NS))
        return living

    def _process(self, wall: int, role: str, pid: int, born: int) -> dict[str, Any]:
        share = CORES[role] / (2 if role == "executors" else 1)
        return {
            "kind": "proc",
            "wall_ns": wall,
            "role": role,
            "pid": pid,
            "create_time": born / NS,
            "cpu_s": share * (wall - born) / NS,
            "rss_bytes": 100_000_000,
            "final": False,
        }

    def _rest(self, wall: int) -> list[dict[str, Any]]:
        gc = max(0.0, (wall - T0_NS) / NS) * 10
        executors = [
            {"id": name, "addTime": spark_time(T0_NS - 20 * NS), "totalGCTime": gc} for name in ("driver", "0", "1")
        ]
        if self.s.fault and wall > self.t2:
            executors[1]["removeTime"] = spark_time(self.t2)
            executors[1]["totalGCTime"] = (self.t0 - T0_NS) / NS * 10
            executors.append({"id": "2", "addTime": spark_time(self.t2 + 3 * NS), "totalGCTime": 0})
        return executors

    @cached_property
    def logs(self) -> dict[str, list[str]]:
        """Log lines of each executor: state of partition 0 on executor 0, of partition 1 on executor 1."""
        lines: dict[str, list[str]] = {"0": [], "1": [], "2": []}
        for number, (planned, committed, _) in enumerate(self.batches):
            for partition in (0, 1):
                moved = self.s.fault and committed > self.t0 and partition == 0
                executor = ("1" if self.s.nothing_to_load else "2") if moved else str(partition)
                if moved and self.s.nothing_to_load:
                    continue
                tid = 10 * number + partition
                first = number == 0
                if moved and number == self.hit:
                    lines[executor] += task_lines(tid, partition, number, self.t3, self.t4, real=True)
                else:
                    at = planned + (committed - planned) // 4
                    if self.s.fault and self.t0 <= committed and at <= self.t5 and partition == 1:
                        at = self.t0 - NS // 100 if number == self.hit else at
                    lines[executor] += task_lines(tid, partition, number, at, at + 2_000_000, real=first)
        if self.s.fault and self.s.nothing_to_load:
            lines["1"] += task_lines(999, 1, self.hit, self.t3, None, real=False)
        return lines

    def evidence(self) -> Evidence:
        """The timeline's evidence without a file in between."""
        tuples = fold([self.tuples], self.window)
        bins = bins_of_batches(self.commits, Schedule(self.records), tuples, self.window)
        reference = between(bins, self.window.start_ns, self.t0)
        parsed = [parse_executor_log(lines, f"app-1/{name}") for name, lines in self.logs.items()]
        log = ExecutorEvents(
            tuple(sorted((x for one in parsed for x in one.launches), key=lambda x: x.wall_ns)),
            tuple(sorted((x for one in parsed for x in one.loads), key=lambda x: x.wall_ns)),
            tuple(sorted((x for one in parsed for x in one.snapshots), key=lambda x: x.wall_ns)),
        )
        samples = [line for line in self.recorder if line["kind"] == "executors"][-1:]
        return Evidence(
            t0_ns=self.t0,
            victim="executor",
            victims=[self.victim],
            end_offsets=self.end_offsets,
            commits=self.commits,
            bins=bins,
            lag=band(reference["lag"].to_numpy(dtype=float)),
            throughput=band(reference["throughput_rps"].to_numpy(dtype=float)),
            latency=band(reference["latency_ms"].to_numpy(dtype=float)),
            executors=_recorder(tuple(samples))[1],
            log=log,
            emissions_ms=tuples.emissions_ms,
            window=self.window,
        )

    @property
    def victim(self) -> dict[str, Any]:
        """The conductor's line about executor 0."""
        command = ["java", "CoarseGrainedExecutorBackend", "--executor-id", "0", "--app-id", "app-1"]
        return {"pid": 200, "create_time": T0_NS / NS - 30, "role": "executors", "command": command}

    def write(self, results: Path) -> Path:
        """Writes the attempt under `results`/attempts and returns its directory."""
        directory = results / "attempts" / ATTEMPT
        (directory / "harvest").mkdir(parents=True)
        _write_json(directory / "attempt.json", self._attempt())
        _write_json(directory / "gate.json", {"t0_wall_ns": T0_NS, "t0_mono_ns": MONO_NS})
        batches = [
            {
                "lineage": c.lineage,
                "batch": c.batch,
                "planned_wall_ns": c.planned_wall_ns,
                "committed_wall_ns": c.committed_wall_ns,
                "end_offsets": dict(c.end_offsets),
            }
            for c in self.commits
        ]
        _write_json(directory / "batches.json", {"method": "batch", "batches": batches})
        write_lines(directory / "recorder.jsonl", self.recorder)
        write_lines(directory / "generator.jsonl", self._generator())
        write_lines(directory / "conductor.jsonl", self._conductor())
        write_lines(directory / "supervisor.jsonl", [{"event": "start", "incarnation": 1, "pid": 100}])
        progress = {"event": "progress", "batch": 9, "state": {"rows": 3, "memory_bytes": 1, "rows_updated": 1}}
        write_lines(directory / "listener.jsonl", [{"event": "started"}, progress, {"event": "terminated"}])
        _write_json(directory / "checkpoint.json", {"snapshot_bytes": 1000, "changelog_bytes": 24})
        self.records.to_parquet(directory / "harvest" / "records.parquet")
        self.tuples.to_parquet(directory / "harvest" / "tuples.parquet")
        n = 2 * len(self.due)
        counts = pd.DataFrame({"key": [_KEY, "wörtlich"], "expected": [n, 5], "final": [n - self.s.lost, 5]})
        counts.assign(outputs=1, reemitted=[7, 0], unreadable=0).to_parquet(directory / "harvest" / "counts.parquet")
        for name, lines in self.logs.items():
            folder = directory / "spark-logs" / "app-1" / name
            folder.mkdir(parents=True)
            (folder / "stderr").write_text("Spark Executor Command: java\n" + "\n".join(lines) + "\n")
        return directory

    def _attempt(self) -> dict[str, Any]:
        c = self.s.configuration
        return {
            "schema": 1,
            "attempt": ATTEMPT,
            "config": c.model_dump(mode="json"),
            "config_id": c.config_id,
            "repetition": 0,
            "series": "b1",
            "build": "b1",
            "matrix": "m",
            "sweep_id": "s1",
            "parent_run_id": None,
            "logical_date": None,
            "prepared_wall_ns": T0_NS - 60 * NS,
            "kafka": {"bootstrap": "127.0.0.1:9092"},
            "topics": {"input": "i", "output": "o"},
            "spark": {"master": "spark://127.0.0.1:7077"},
            "environment": {
                "host": "h",
                "cores": 2,
                "memory_mb": 8000,
                "oversubscribed": True,
                "versions": {"spark": "4.2.0"},
                "git_commit": None,
                "spark_conf": {},
                "kafka_conf": {},
            },
        }

    def _generator(self) -> list[dict[str, Any]]:
        n = len(self.due)
        lag = {"p50": 0.2, "p99": 3.5, "max": 9.0}
        ends = self._offsets(self.window.end_ns + NS)
        primed = {"event": "primed", "records": 2 * PRIMER, "end_offsets": {"0": PRIMER, "1": PRIMER}}
        done = {"event": "done", "records": n, "acked": n, "unknown": 0, "schedule_lag_ms": lag, "end_offsets": ends}
        return [{"event": "prepared"}, primed, {"event": "gate", "t0_wall_ns": T0_NS}, done]

    def _conductor(self) -> list[dict[str, Any]]:
        gate = {"event": "gate", "t0_wall_ns": T0_NS, "t0_mono_ns": MONO_NS, "wall_ns": T0_NS}
        if not self.s.fault:
            return [gate, {"event": "done"}]
        return [
            {"event": "victims", "victims": [self.victim]},
            gate,
            {"event": "end_offsets", "offsets": self.end_offsets},
            {"event": "invoked", "fault": 0, "victim": 200, "planned_wall_ns": self.t0},
            {"event": "delivered", "fault": 0, "victim": 200, "planned_wall_ns": self.t0, "wall_ns": self.t0},
            {"event": "settled", "fault": 0, "outcome": "effective", "detail": "gone"},
            {"event": "done"},
        ]


def task_lines(tid: int, partition: int, version: int, start: int, loaded: int | None, *, real: bool) -> list[str]:
    """What an executor logs for one task that loads state (or none, when `loaded` is None)."""
    thread = f"Executor task launch worker for task {partition}.0 in stage {version}.0 (TID {tid})"
    store = f"StateStoreProviderId[ storeId=StateStoreId[ operatorId=0, partitionId={partition}, storeName=default ] ]"
    lines = [(start, "Executor", f"Running task {partition}.0 in stage {version}.0 (TID {tid})")]
    if loaded is not None:
        lines.append((start, f"RocksDB {store}", f"Loading {version} with stateStoreCkptId: "))
        if real:
            lines.append((start, f"RocksDBFileManager {store}", "Copied 1 files (9 bytes) from DFS to local"))
        lines.append((loaded, f"RocksDB {store}", f"Loaded {version}"))
        lines.append((loaded, f"RocksDBFileManager {store}", "Loaded change log reader version 1"))
        saved = f"Saved checkpoint file for version {version + 1} checkpointUniqueId: "
        lines.append((loaded, f"RocksDBFileManager {store}", saved))
    return [f"{spark_time(wall, 'Z')} INFO [{thread}] {logger}: {text}" for wall, logger, text in lines]


def spark_time(wall_ns: int, zone: str = "GMT") -> str:
    """A UTC time with milliseconds, as Spark writes it."""
    moment = datetime.fromtimestamp(wall_ns // NS, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ns % NS // 1_000_000:03d}{zone}"


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Writes JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))


def _ns(seconds: float) -> int:
    return round(seconds * 1000) * 1_000_000


def _grain(wall_ns: float) -> int:
    """To whole milliseconds, as logs and REST give them."""
    return int(wall_ns) // 1_000_000 * 1_000_000
