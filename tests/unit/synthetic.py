"""Complete synthetic attempt with planted values, in the formats of the real processes.

A small model of a micro-batch engine: batch i is planned at T0 + i·interval and committed `DELAY` of an
interval later. A fault holds one batch back until the state is loaded again; some batches run late
(`catch`), and some more are late only in their outputs (`slow`). Every instant is known beforehand.
What differs between victims is who notices, what is loaded again, and in which application.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from faultline.engines.batches import write_batches
from faultline.engines.protocol import Commit, EngineEvent, Traces
from faultline.engines.spark.driver_log import parse_driver_log
from faultline.engines.spark.engine import ENGINE
from faultline.engines.spark.executor_log import ExecutorEvents, parse_executor_log
from faultline.engines.spark.traces import events_of_driver_logs, events_of_executor_logs, events_of_samples
from faultline.engines.supervisor_journal import epochs_of, process_runs_of
from faultline.records.judge.end import limits_of
from faultline.records.judge.evidence import read_attempt
from faultline.records.judge.judge import judge
from faultline.records.judge.signals import TopicSchedule, bins_of_batches
from faultline.records.judge.timeline import FaultEvidence
from faultline.records.judge.tuples import TUPLE_COLUMNS, fold
from faultline.records.record import Record
from faultline.records.store import validator
from faultline.system.journal import Line, read_finished, write_lines
from faultline.system.measured_window import NS, Window
from tests.support.attempts import add_plan
from tests.unit.scenario import CORES, T0_NS, Hit, Left, Row, Scenario, grain, ns

__all__ = ["CORES", "T0_NS", "Scenario", "Synthetic", "write_lines"]

DELAY = 0.3
EMITTED_BEFORE_MS = 20
MONO_NS = 5_000_000_000_000
PRIMER = 4
ATTEMPT = "20261121T061500Z-3fa9c1"
_KEY = "w" * 10


class Synthetic(Left):
    """The attempt of a scenario: in memory (`evidence`) or on disk (`write`)."""

    def __init__(self, scenario: Scenario) -> None:
        self.s = scenario
        c = scenario.configuration
        self.window = Window.of(T0_NS, c.warmup_s, c.duration_s, c.checkpoint_interval_s)
        self.end_ns = self.window.end_ns
        self.batches: list[Row] = []
        self.hits: list[Hit] = []
        self._lay()
        if self.hits:
            first = self.hits[0]
            self.hit, self.t0, self.t2, self.t3 = first.row, first.t0, first.t2, first.t3
            self.t4, self.t5, self.t6, self.t7 = first.t4, first.t5, first.t6, first.t7
            self.end_offsets = self._offsets(self.t0)

    def _hit(self, number: int, row: int, planned: int) -> Hit:
        s = self.s
        t0 = grain(planned + s.phase * s.checkpoint_interval_s * NS)
        t2 = grain(t0 + s.detection_s * NS)
        t3 = t2 if s.lasts else grain(t2 + s.redeploy_s * NS)
        t4 = grain(t3 + s.load_s * NS) if s.loads(s.victims[number]) else t3
        t5 = grain(t4 + s.replay_s * NS)
        t6 = t5 + ns((s.catch + 1) * s.checkpoint_interval_s)
        # Its outputs precede its commit.
        t7 = t6 + ns((s.slow + 1) * s.checkpoint_interval_s) - EMITTED_BEFORE_MS * 1_000_000
        return Hit(number, s.victims[number], row, t0, t2, grain((t2 + t3) / 2), t3, t4, t5, t6, t7)

    @property
    def truth(self) -> dict[str, float]:
        """Return the planted parts in seconds."""
        return self.truth_of(0)

    def truth_of(self, number: int) -> dict[str, float]:
        """Return the planted parts of one fault in seconds."""
        h = self.hits[number]
        t = [h.t0, h.t2, h.t3, h.t4, h.t5, h.t6, h.t7]
        names = ["detection_s", "redeploy_s", "load_s", "replay_s", "catchup_s"]
        parts = {name: (after - before) / NS for name, before, after in zip(names, t, t[1:], strict=False)}
        return {**parts, "reload_s": (t[3] - t[0]) / NS, "macro_s": (t[6] - t[0]) / NS}

    def assert_given_back(self, found: Any, number: int = 0, within_s: float = 1e-6, macro_s: float = 0.0) -> None:
        """Assert that each recovery part is the planted one, except for a censored end."""
        for part, planted in self.truth_of(number).items():
            never = not self.s.recovers and part in ("catchup_s", "macro_s")
            within = within_s + macro_s * (part == "macro_s")
            assert getattr(found, part) == (None if never else pytest.approx(planted, abs=within)), (
                part,
                number,
                self.s,
            )

    def _lay(self) -> None:
        """Plan all batches, preload first, and the faults between them."""
        s, step = self.s, ns(self.s.checkpoint_interval_s)
        rows = [Row(T0_NS - 2 * step, T0_NS - step, 0)]
        last = self.window.end_ns + 2 * step
        before = int(np.ceil((s.warmup_s + (s.baseline + 1) * s.checkpoint_interval_s) / s.checkpoint_interval_s))
        for number in range(1, before + 1 if s.fault else (last - T0_NS) // step + 1):
            # alternating, so that the baseline has a spread but no trend
            wobble = ns((0.004 if number % 2 == 0 else -0.004) * s.checkpoint_interval_s)
            planned = T0_NS + number * step
            rows.append(Row(planned, planned + ns(DELAY * s.checkpoint_interval_s) - wobble, 0))
        lineage = 0
        for number in range(len(s.victims) if s.fault else 0):
            hit = self._hit(number, len(rows) - 1, rows[-1].planned)
            self.hits.append(hit)
            held = hit.t4 + (hit.t5 - hit.t4) // 2
            begun = None
            if s.commit_mode == "none":
                rows.pop()
                lineage, begun = lineage + 1, hit.t4
            else:
                rows[-1] = rows[-1]._replace(committed=held)
            rows.append(Row(held, hit.t5, 0, lineage, begun))
            follow = s.catch + s.slow + 7 + max(3, int(np.ceil(10 / s.checkpoint_interval_s)))
            committed, count = hit.t5 + step, 1
            while committed <= last and (number == len(s.victims) - 1 or count <= follow):
                late = count <= s.catch or not s.recovers
                extra = 2 * step if s.catch < count <= s.catch + 1 + s.slow else 0
                planned = committed - ns((2 if late else 1) * DELAY * s.checkpoint_interval_s)
                rows.append(Row(planned, committed, extra, lineage))
                committed, count = committed + step, count + 1
        rows.append(Row(rows[-1].committed, rows[-1].committed + step, 0, lineage))
        self.batches = rows

    @cached_property
    def due(self) -> np.ndarray:
        """Return the intended send times in ms; record k is in partition k mod 2."""
        n = int(self.s.rate * (self.s.warmup_s + self.s.duration_s))
        return T0_NS // 1_000_000 + np.floor(np.arange(n) * 1000 / self.s.rate).astype(np.int64)

    def _offsets(self, wall_ns: int) -> dict[str, int]:
        n = int(np.searchsorted(self.due, wall_ns // 1_000_000, side="right"))
        return {"0": PRIMER + (n + 1) // 2, "1": PRIMER + n // 2}

    @cached_property
    def commits(self) -> list[Commit]:
        """Return the content of `batches.json`."""
        found: list[Commit] = []
        for number, row in enumerate(self.batches):
            first = next(index for index, other in enumerate(self.batches) if other.lineage == row.lineage)
            ends = self._offsets(row.planned) if number else {"0": PRIMER, "1": PRIMER}
            start = None if row.begun is None else self._offsets(row.begun)
            found.append(Commit(row.lineage, number - first, row.planned, row.committed, ends, start))
        return found

    @cached_property
    def records(self) -> pd.DataFrame:
        """Return the input topic."""
        n = len(self.due)
        schedule = pd.DataFrame(
            {
                "partition": np.arange(n) % 2,
                "offset": PRIMER + np.arange(n) // 2,
                "timestamp_ms": self.due,
                "primer": False,
                "batch": pd.array(self._row_of(), dtype="Int64"),
                "lineage": 0,
            }
        )
        primer = pd.DataFrame(
            [(p, o, T0_NS // 1_000_000 - 9000, True, 0, 0) for p in (0, 1) for o in range(PRIMER)],
            columns=schedule.columns,
        )
        return pd.concat([primer, schedule], ignore_index=True)

    def _row_of(self) -> np.ndarray:
        """Return the batch index of each record of the schedule; −1 if in no state epoch."""
        planned = np.array([row.planned for row in self.batches]) // 1_000_000
        planned[0] = 0
        taken = np.searchsorted(planned, self.due, side="left")
        for index, row in enumerate(self.batches):
            if row.begun is not None:
                taken[(taken == index) & (self.due <= row.begun // 1_000_000)] = -1
        return taken

    @cached_property
    def tuples(self) -> pd.DataFrame:
        """Return two tuples of each record, emitted 20 ms before the commit of its batch."""
        row = self._row_of()
        commits = self.commits
        emitted = np.array([(row.committed + row.extra) // 1_000_000 - EMITTED_BEFORE_MS for row in self.batches])
        schedule = pd.DataFrame(
            {
                "lineage": np.array([commit.epoch for commit in commits])[row],
                "batch": np.array([commit.number for commit in commits])[row],
                "produced_ms": self.due,
                "emitted_ms": emitted[row],
                "primer": False,
                "n": 2,
            },
            columns=TUPLE_COLUMNS,
        )
        if (row < 0).any():
            missing = ["lineage", "batch", "emitted_ms"]
            schedule[missing] = schedule[missing].astype("Int64")
            schedule.loc[row < 0, missing] = pd.NA
        primer = pd.DataFrame([(0, 0, T0_NS // 10**6 - 9000, int(emitted[0]), True, 99)], columns=TUPLE_COLUMNS)
        return pd.concat([primer, schedule], ignore_index=True)

    def evidence(self, number: int = 0) -> FaultEvidence:
        """Return the timeline's evidence of one fault, without files."""
        hit = self.hits[number]
        tuples = fold([self.tuples], self.window)
        bins = bins_of_batches(self.commits, TopicSchedule(self.records), tuples, self.window)
        asked = [self._rest(wall) for wall in (hit.t0 - NS, hit.t7 + 5 * NS)]
        samples = [sample for sample in asked if sample is not None]
        traces = Traces(
            method="batch",
            commits=tuple(self.commits),
            events=(*events_of_samples(samples), *self.logged()),
            process_runs=process_runs_of(self.supervisor),
            epochs=epochs_of(self.supervisor),
        )
        return FaultEvidence(
            engine=ENGINE,
            traces=traces,
            t0_ns=hit.t0,
            victim=hit.role,
            victims=[self.victims[number]],
            end_offsets=self._offsets(hit.t0),
            bins=bins,
            production=tuples.production,
            limits=limits_of(
                tuples.production,
                bins,
                start_ns=self.window.start_ns,
                until_ns=self.t0,
                checkpoint_interval_s=self.s.configuration.checkpoint_interval_s,
                within=0.25,
            ),
            emissions_ms=tuples.emissions_ms,
            window=self.window,
            services=self.services,
            undo_lines=self._undone(hit) if self.s.lasts else (),
            until_ns=self.hits[number + 1].t0 if number + 1 < len(self.hits) else None,
        )

    def logged(self) -> list[EngineEvent]:
        """Return the events in the logs of executors and driver."""
        parsed = [parse_executor_log(lines, name) for name, lines in self.logs.items()]
        log = ExecutorEvents(
            tuple(sorted((x for one in parsed for x in one.launches), key=lambda x: x.wall_ns)),
            tuple(sorted((x for one in parsed for x in one.loads), key=lambda x: x.wall_ns)),
            tuple(sorted((x for one in parsed for x in one.snapshots), key=lambda x: x.wall_ns)),
        )
        return [
            *events_of_executor_logs(log),
            *events_of_driver_logs(parse_driver_log(self.driver_log, "driver-0.log")),
        ]

    def write(self, results: Path) -> Path:
        """Write the attempt under `results`/attempts and returns its directory."""
        directory = results / "attempts" / ATTEMPT
        (directory / "harvest").mkdir(parents=True)
        _write_json(directory / "attempt.json", self._attempt())
        add_plan(directory)
        _write_json(directory / "gate.json", {"t0_wall_ns": T0_NS, "t0_mono_ns": MONO_NS})
        write_batches(directory, self.commits, method="batch", reached={})
        write_lines(directory / "recorder.jsonl", self.recorder)
        write_lines(directory / "generator.jsonl", self._generator())
        write_lines(directory / "conductor.jsonl", self._conductor())
        write_lines(directory / "supervisor.jsonl", self.supervisor)
        write_lines(directory / "services.jsonl", self.services)
        progress = {"event": "progress", "batch": 9, "state": {"rows": 3, "memory_bytes": 1, "rows_updated": 1}}
        write_lines(directory / "listener.jsonl", [{"event": "started"}, progress, {"event": "terminated"}])
        _write_json(directory / "checkpoint.json", {"snapshot_bytes": 1000, "changelog_bytes": 24})
        self.records.to_parquet(directory / "harvest" / "records.parquet")
        self.tuples.to_parquet(directory / "harvest" / "tuples.parquet")
        n = 2 * len(self.due)
        counts = pd.DataFrame({"key": [_KEY, "wörtlich"], "expected": [n, 5], "final": [n - self.s.lost, 5]})
        counts.assign(outputs=1, reemitted=[7, 0], unreadable=0).to_parquet(directory / "harvest" / "counts.parquet")
        for name, lines in self.logs.items():
            folder = directory / "spark-logs" / name
            folder.mkdir(parents=True)
            (folder / "stderr").write_text("Spark Executor Command: java\n" + "\n".join(lines) + "\n")
        (directory / "spark-logs" / "driver-0.log").write_text("\n".join(self.driver_log) + "\n")
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
        lines = [{"event": "victims", "victims": self.victims}, gate]
        for hit, victim in zip(self.hits, self.victims, strict=True):
            who = {"fault": hit.number, "victim": victim["pid"]}
            lines += [
                {"event": "end_offsets", "fault": hit.number, "offsets": self._offsets(hit.t0), "before_signal": True},
                {"event": "invoked", **who, "planned_wall_ns": hit.t0},
                {"event": "delivered", **who, "role": victim["role"], "action": self.s.action, "wall_ns": hit.t0},
                *(self._undone(hit) if self.s.lasts else ()),
                {"event": "settled", "fault": hit.number, "outcome": "effective", "detail": "gone"},
            ]
        return [*lines, {"event": "done"}]


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))


def edit_lines(path: Path, change: Callable[[list[Line]], Iterable[Line]]) -> None:
    """Replace a journal's lines by the result of `change`."""
    write_lines(path, list(change(list(read_finished(path)))))


def edit_event(path: Path, event: str, **changes: Any) -> None:
    """Change the lines of an event in a journal."""
    edit_lines(path, lambda lines: [line | changes if line.get("event") == event else line for line in lines])


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a file."""
    _write_json(path, json.loads(path.read_text()) | changes)


def edit_table(path: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Replace a table by the result of `change`."""
    change(pd.read_parquet(path)).to_parquet(path)


def checked(directory: Path, status: str = "valid", *reasons: str) -> Record:
    """Return the record after checking its schema, status and the beginnings of its reasons."""
    record = judge(directory)
    validator().validate(record.as_dict())
    assert record.status == status, record.reasons
    assert len(record.reasons) == len(reasons), record.reasons
    assert all(found.startswith(begin) for found, begin in zip(record.reasons, reasons, strict=True)), record.reasons
    return record


def configure(directory: Path, **config: Any) -> None:
    """Change keys of the configuration."""
    edit_json(directory / "attempt.json", config=read_attempt(directory).config.model_dump(mode="json") | config)
    add_plan(directory)


def is_unknown(part: Any) -> bool:
    """Return whether all figures of a part are null."""
    return set(part.model_dump().values()) == {None}


KILL, CONTROL = Synthetic(Scenario()), Synthetic(Scenario(fault=False))
