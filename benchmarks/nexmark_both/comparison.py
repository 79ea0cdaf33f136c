"""Nexmark on Spark and Flink, side by side: `./faultline bench nexmark_both` (ten hours; resumes where it stopped).

Ten queries in the meaning of the suite read JSON events from one topic. First each side processes the first half of the
topic and keeps its state; then each run continues from a copy of that state in fresh processes and processes the second
half. Runs are interleaved in random order. The figures are costs of the whole engine, per million events. Leave the
machine idle also while states are made: a trial then sets the size of Spark's batches.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.figure import BenchmarkFigure, summarise
from benchmarks.installation import exclusive
from benchmarks.nexmark_both.flink_queries import QUERIES
from benchmarks.nexmark_both.flink_side import FlinkSide
from benchmarks.nexmark_both.page import read_runs, write_page
from benchmarks.nexmark_both.spark_side import SparkSide
from benchmarks.nexmark_both.topic import EventTopic
from benchmarks.nexmark_both.work import CORES, Measured
from faultline.cli.service_control import bring_up
from faultline.experiment.attempt import write_json
from faultline.lifecycle.environment import git_commit
from faultline.system.settings import Settings
from faultline.system.text import Progress

EVENTS, QUICK_EVENTS = 20_000_000, 2_000_000
REPETITIONS, QUICK_REPETITIONS = 5, 1
QUICK_QUERIES = ("q0", "q4", "q5")
# The query without work of its own: reading and parsing.
FLOOR = "q0"
# Other processes may use at most this share of the two cores; else a run is measured again.
OTHERS, MOST_ATTEMPTS = 0.1, 3
PAGE = Path("docs") / "results" / "nexmark_both.md"
# The states of a group of queries lie on the disk together, up to 4 GB each.
QUERIES_AT_ONCE = 2
SEED, RESAMPLES = 2033, 10_000
MILLION = 1e6


class Side(Protocol):
    """Engine with its settings."""

    name: str

    def fill(self, query: str, topic: EventTopic, folder: Path) -> dict[str, Any]:
        """Process the whole topic, keep the state in `folder`, and return what `measure` needs to know of it."""

    def measure(self, query: str, topic: EventTopic, state: Path, made: Mapping[str, Any], folder: Path) -> Measured:
        """Continue from a copy of the state, in the empty `folder`."""


# Query, side, repetition.
Cell = tuple[str, Side, int]


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Measure what is missing, and return all figures; see `figures`."""
    settings = bring_up(progress, airflow=False)
    events, repetitions = (QUICK_EVENTS, QUICK_REPETITIONS) if quick else (EVENTS, REPETITIONS)
    home = settings.home / "bench" / f"nexmark_both_{events}"
    with exclusive(home):
        home.mkdir(exist_ok=True)
        published = [] if quick else read_runs(settings.root / PAGE)
        comparison = Comparison(settings, home, events, progress, published)
        names, runs = list(QUICK_QUERIES if quick else QUERIES), []
        for first in range(0, len(names), QUERIES_AT_ONCE):
            runs += comparison.measure(names[first : first + QUERIES_AT_ONCE], repetitions)
            if not quick:
                write_page(settings.root / PAGE, runs, figures(runs))
    return figures(runs)


class Comparison:
    """Measurements below `home`: `states`, one folder for each query and side, and `runs`, one file for each run.

    `published`: runs of the page, which count as measured, so that several machines can share the work.
    """

    def __init__(
        self,
        settings: Settings,
        home: Path,
        events: int,
        progress: Progress,
        published: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self._settings, self._home, self._progress = settings, home, progress
        self._events, self._filled = events, events // 2
        # Before the first group's page, which makes the checkout dirty.
        self._commit = git_commit(settings.root)
        self._sides: tuple[Side, ...] = (
            SparkSide(settings),
            FlinkSide(settings, mini_batch=True),
            FlinkSide(settings, mini_batch=False),
        )
        for one in published:
            file = self._run_file(one["query"], one["side"], one["repetition"])
            if not file.exists():
                write_json(file, one)

    def measure(self, queries: Sequence[str], repetitions: int) -> list[dict[str, Any]]:
        """Measure the missing runs of a group of queries; return all, each with `query`, `side` and `repetition`."""
        cells = self._cells(queries, repetitions)
        missing = [one for one in cells if not self._file(one).exists()]
        if missing:
            self._fill(missing)
        for number, one in enumerate(missing):
            query, side, _ = one
            self._progress(f"nexmark_both: {query} on {side.name}, run {number + 1} of {len(missing)}")
            self._measure(*one)
        # Those of an unfinished group stay.
        for query, side, _ in cells:
            shutil.rmtree(self._state(query, side), ignore_errors=True)
        return [json.loads(self._file(one).read_text()) for one in cells]

    def _cells(self, queries: Sequence[str], repetitions: int) -> list[Cell]:
        """Return the runs of a group of queries: repetition by repetition, each in random order."""
        found: list[Cell] = []
        for repetition in range(repetitions):
            shuffled = [(query, side, repetition) for query in queries for side in self._sides]
            random.Random(f"{SEED} {repetition}").shuffle(shuffled)
            found += shuffled
        return found

    def _fill(self, missing: Sequence[Cell]) -> None:
        """Make the states that are missing, while the topic ends with their last event; then write the others."""
        unmade = dict.fromkeys((query, side) for query, side, _ in missing if not self._made(query, side).exists())
        if unmade:
            half = self._topic(self._filled)
            self._progress(f"nexmark_both: topic with {self._filled:,} events")
            half.require()
        for number, (query, side) in enumerate(unmade):
            self._progress(f"nexmark_both: {query} on {side.name}, state {number + 1} of {len(unmade)}")
            folder = self._state(query, side)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write_json(self._made(query, side), side.fill(query, half, folder))
        self._progress(f"nexmark_both: topic with {self._events:,} events")
        self._topic(self._events).require()

    def _topic(self, events: int) -> EventTopic:
        return EventTopic(self._settings, f"nexmark-both-{self._events}", self._filled, events)

    def _measure(self, query: str, side: Side, repetition: int) -> None:
        folder, topic = self._home / "scratch", self._topic(self._events)
        made = json.loads(self._made(query, side).read_text())
        for attempt in range(MOST_ATTEMPTS):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            found = side.measure(query, topic, self._state(query, side), made, folder)
            others = found.others_s / found.seconds / CORES
            if others <= OTHERS:
                break
            self._progress(f"nexmark_both: other processes used {others:.0%} of the cores (attempt {attempt + 1})")
        shutil.rmtree(folder)
        own = {"query": query, "side": side.name, "repetition": repetition, "disturbed": others > OTHERS}
        about = {
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": self._commit,
        }
        write_json(self._file((query, side, repetition)), {**own, **about, **made, **asdict(found)})

    def _state(self, query: str, side: Side) -> Path:
        return self._home / "states" / f"{query}-{side.name}"

    def _made(self, query: str, side: Side) -> Path:
        """Return the file that marks a state as complete."""
        return self._state(query, side) / "made.json"

    def _file(self, cell: Cell) -> Path:
        query, side, repetition = cell
        return self._run_file(query, side.name, repetition)

    def _run_file(self, query: str, side: str, repetition: int) -> Path:
        folder = self._home / "runs"
        folder.mkdir(exist_ok=True)
        return folder / f"{query}-{side}-{repetition}.json"


def figures(runs: Sequence[Mapping[str, Any]]) -> dict[str, BenchmarkFigure]:
    """Return the figures by name.

    `engine_QUERY_SIDE`: CPU seconds of the whole engine per million events; `net_…`: without those of reading (q0).
    `speed_QUERY_SIDE`: events per second of the machine. `memory_QUERY_SIDE`: peak MB. `ratio_QUERY`: CPU of Spark
    ÷ CPU of Flink with mini-batches, with the 95 % interval of paired runs (bootstrap).
    """
    kept = [one for one in runs if not one["disturbed"]]
    costs: dict[tuple[str, str], dict[int, float]] = {}
    found: dict[str, BenchmarkFigure] = {}
    for one in kept:
        cost = one["engine_s"] / one["events"] * MILLION
        costs.setdefault((one["query"], one["side"]), {})[one["repetition"]] = cost
    for (query, side), by_repetition in sorted(costs.items()):
        name = f"{query}_{side}"
        mine = [one for one in kept if (one["query"], one["side"]) == (query, side)]
        found[f"engine_{name}"] = summarise(list(by_repetition.values()), "cpu-s/M")
        if floor := costs.get((FLOOR, side)):
            net = [cost - floor[number] for number, cost in by_repetition.items() if number in floor]
            found |= {f"net_{name}": summarise(net, "cpu-s/M")} if net and query != FLOOR else {}
        found[f"speed_{name}"] = summarise([one["events"] / one["seconds"] for one in mine], "events/s")
        found[f"broker_{name}"] = summarise([one["broker_s"] / one["events"] * MILLION for one in mine], "cpu-s/M")
        found[f"memory_{name}"] = summarise([one["peak_mb"] for one in mine], "MB")
    for query in {query for query, _ in costs}:
        spark, flink = costs.get((query, "spark"), {}), costs.get((query, "flink"), {})
        both = sorted(spark.keys() & flink.keys())
        if both:
            found[f"ratio_{query}"] = _ratio([spark[one] / flink[one] for one in both])
    return found


def _ratio(ratios: Sequence[float]) -> BenchmarkFigure:
    """Return the geometric mean of paired ratios with its 95 % bootstrap interval."""
    logs = np.log(ratios)
    drawn = np.random.default_rng(SEED).choice(logs, (RESAMPLES, len(logs))).mean(axis=1)
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    return BenchmarkFigure(float(np.exp(logs.mean())), "1", float(low), float(high), len(ratios), tuple(ratios))
