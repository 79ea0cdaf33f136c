"""Nexmark events: their parameters and the kinds that each query reads, checked before Spark starts.

The defaults are those of the suite (github.com/nexmark/nexmark). The field `events` of a configuration
contains only the differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any, Literal

from pydantic import Field

from faultline.experiment.common_parameters import HIGHEST_RATE, Common
from faultline.experiment.workloads.protocol import EventTime
from generators.curve import NANOSECONDS, Piece, parse_curve
from generators.send_progress import InputError

QUERIES = tuple(f"q{number}" for number in range(24))
# Events per second of event time.
RATE = 100_000.0
# Density at which a run on two cores covers a few seconds of event time.
DENSE_RATE = 1e7
# Records per second through Kafka, where event time and real time advance equally.
KAFKA_RATE = 2_000.0
# Defaults for events from the engine. One JVM uses both cores, since a second one would compile everything again.
# Snapshots have the checkpoint interval of the suite's guide.
ENGINE_DEFAULTS: dict[str, Any] = {
    "warmup_s": 30.0,
    "duration_s": 60.0,
    "commit_mode": "aligned-changelog",
    "snapshot_interval_s": 30.0,
    "executors": 1,
    "executor_cores": 2,
    "executor_memory_mb": 2048,
}
# Queries whose results wait for a watermark, with the event time of the first result in seconds: the end of the first
# window, which starts with the first event, or of a session gap. The first auction may end immediately.
FIRST_RESULT_S: Mapping[str, float] = {"q4": 0, "q5": 2, "q6": 0, "q7": 10, "q8": 10, "q9": 0, "q11": 10}
AWAITING_TIME = tuple(FIRST_RESULT_S)
# Watermark delay of the suite.
WATERMARK_S = 4.0
# Queries that need Python's transformWithState.
PYTHON = ("q4", "q6", "q15", "q16")
# Events/s of a typical query, to estimate the duration of its preload.
TYPICAL_RPS = 150_000.0
# Default events per batch. Planning a batch takes most of a second, so stateless queries have the largest batches.
# Batches of queries with a small state (LIGHT) are smaller. All others must finish a batch within a few seconds.
BATCH_EVENTS = 5_000_000
STATELESS = ("q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22")
MIDDLE_BATCH = 2_000_000
LIGHT = ("q3", "q7", "q8", "q11", "q12", "q17")
SMALLER_BATCH = 500_000
KINDS = ("person", "auction", "bid")
# Kinds of events by query; all others read only bids.
READS: Mapping[str, tuple[str, ...]] = {
    "q3": ("person", "auction"), "q4": ("auction", "bid"), "q6": ("auction", "bid"), "q8": ("person", "auction"),
    "q9": ("auction", "bid"), "q20": ("auction", "bid"), "q23": KINDS,
}  # fmt: skip
# Upper bound on the pieces of a rate curve, since the engine evaluates them all as cases of one expression.
MOST_PIECES = 20

DEFAULT_EVENTS: dict[str, Any] = {
    "shares": [2, 6, 92],
    "bytes": [200, 500, 100],
    "hot": [2, 4, 4],
    "active": [1000, 100],
}
_MEANS = {
    "shares": "percent of persons, auctions and bids",
    "bytes": "mean sizes of persons, auctions and bids",
    "hot": "ratios of hot auctions, sellers and bidders",
    "active": "active persons and auctions in flight",
}
# Lower bound of each number, and upper bound of all numbers of a key. Without `extra`, an auction has up to 166 bytes.
_LEAST = {"shares": [1, 1, 1], "bytes": [100, 200, 40], "hot": [1, 1, 1], "active": [1, 1]}
_MOST = {"shares": 98, "bytes": 800, "hot": 100, "active": 100_000}


Query = Literal[
    "q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q9", "q10", "q11", "q12", "q13", "q14", "q15", "q16", "q17",
    "q18", "q19", "q20", "q21", "q22", "q23",
]  # fmt: skip


class NexmarkParameters(EventTime):
    """Query and event model."""

    query: Query = Field("q0", description="Nexmark query.")
    source: Literal["engine", "kafka"] = Field(
        "engine",
        description="Source of Nexmark events: the engine creates them, or a generator sends them through Kafka.",
    )
    events: dict[str, Any] | None = Field(
        None,
        description='Changes to the event model of the suite, such as {"shares": [2, 6, 92]}; see '
        "docs/reference/workloads.md.",
    )
    batch_events: int | None = Field(
        None,
        ge=1000,
        le=100_000_000,
        description="Events per micro-batch with `source=engine`. Empty: chosen by query.",
    )
    preload_events: int = Field(
        0, ge=0, le=10_000_000_000,
        description="Events that fill the state first; then the query restarts from its checkpoint.",
    )  # fmt: skip


def take_events(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the canonical form of the field `events`: the differences from the suite, or None.

    Raises ValueError with one line that names the key and the fix.
    """
    for key in value:
        if key not in DEFAULT_EVENTS:
            raise ValueError(f"events.{key}: unknown key; known: {', '.join(DEFAULT_EVENTS)}")
    differing = {key: _numbers(key, value[key]) for key in DEFAULT_EVENTS if key in value}
    shares = differing.get("shares", DEFAULT_EVENTS["shares"])
    if sum(shares) != 100:
        raise ValueError(f"events.shares: got {shares} with sum {sum(shares)}; expected a sum of 100 (percent)")
    return {key: numbers for key, numbers in differing.items() if numbers != DEFAULT_EVENTS[key]} or None


def _numbers(key: str, given: Any) -> list[int]:
    default: list[int] = DEFAULT_EVENTS[key]
    low, high = _LEAST[key], _MOST[key]
    integers = isinstance(given, list | tuple) and all(
        isinstance(one, int) and not isinstance(one, bool) for one in given
    )
    if (
        not integers
        or len(given) != len(default)
        or not all(least <= one <= high for least, one in zip(low, given, strict=True))
    ):
        raise ValueError(
            f"events.{key}: got {given!r}; expected {len(default)} whole numbers from {low} to {high} "
            f"({_MEANS[key]}), such as {default}"
        )
    return list(given)


def batch_events(own: NexmarkParameters) -> int:
    """Return the events per batch: the given number or the default of the query."""
    default = BATCH_EVENTS if own.query in STATELESS else MIDDLE_BATCH if own.query in LIGHT else SMALLER_BATCH
    return own.batch_events or default


def reads(query: str) -> tuple[str, ...]:
    """Return the kinds of events that a query reads."""
    return READS.get(query, ("bid",))


def preload_batches(own: NexmarkParameters) -> int:
    """Return the number of batches that contain `preload_events` events."""
    return -(-own.preload_events // batch_events(own))


def rules(own: NexmarkParameters, common: Common, repetition: int) -> dict[str, Any]:
    """Return the event parameters of program and generator, without the rate curve."""
    events = {**DEFAULT_EVENTS, **(own.events or {})}
    divisor = gcd(*events["shares"])
    hot, active = events["hot"], events["active"]
    return {
        # Each seed has 64 salts, and the sum must fit 31 bits.
        "seed": (common.seed * 1009 + repetition) % 2**25,
        "rate": common.rate,
        "proportions": [share // divisor for share in events["shares"]],
        "sizes": events["bytes"],
        "hot_auctions": hot[0],
        "hot_sellers": hot[1],
        "hot_bidders": hot[2],
        "active_people": active[0],
        "in_flight": active[1],
        "disorder": own.disorder,
        "watermark_s": own.watermark_s,
    }


def pieces(common: Common) -> list[list[float]]:
    """Return the rate curve as pieces [from s, to s, rate at the start, rate at the end]; empty without a curve.

    After the last piece, its final rate continues. Raises ValueError for a rate of 0, where event time would stop, and
    for too many pieces.
    """
    if common.rate_curve is None:
        return []
    try:
        curve = parse_curve(common.rate_curve, base=common.rate, low=0.0, high=HIGHEST_RATE)
    except InputError as error:
        raise ValueError(f"rate_curve.{error}") from None
    last = curve.shape.cycle[0]
    if len(curve.shape.cycle) > 1 or last.begin != last.end or len(curve.shape.first) >= MOST_PIECES:
        raise ValueError(
            f"rate_curve: got an unsupported curve for source=engine; expected at most {MOST_PIECES} straight pieces "
            "without repetition (step, ramp, recorded or one burst)"
        )
    found: list[list[float]] = []
    start_s = 0.0
    for piece in (*curve.shape.first, Piece(NANOSECONDS, last.begin, last.end)):
        end_s = start_s + piece.length_ns / NANOSECONDS
        found.append([start_s, end_s, float(piece.begin), float(piece.end)])
        start_s = end_s
    if any(min(piece[2:]) <= 0 for piece in found):
        raise ValueError("rate_curve: got a rate of 0, which leaves a gap in event time; expected rates above 0")
    return found


# Presets of the matrix `nexmark`.


_ALL: dict[str, Any] = {
    "workload": "nexmark",
    "query": list(QUERIES),
    "state_store": ["rocksdb"],
    "watermark_s": WATERMARK_S,
    "disorder": 0.0,
    "state_mb": 0.0,
}
_ENGINE: dict[str, Any] = {**_ALL, **ENGINE_DEFAULTS, "rate": [RATE], "source": ["engine"], "fault": "none"}

NEXMARK_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "smoke": {**_ENGINE, "query": ["q0"], "batch_events": 100_000, "warmup_s": 5.0, "duration_s": 10.0},
    "default": {**_ENGINE, "repetitions": 3},
    # The preload fills the state; stateless queries are excluded.
    "steady": {
        **_ENGINE,
        "query": [query for query in QUERIES if query not in STATELESS],
        "preload_events": 20_000_000,
    },
    # Queries that depend on the density of events. At the default rate, two cores do not reach the first result.
    "dense": {**_ENGINE, "query": list(AWAITING_TIME), "rate": [DENSE_RATE]},
    # With a send schedule, so that a fault delays records. On two cores some queries need most of a minute to catch up.
    "recovery": {
        **_ALL,
        "rate": [KAFKA_RATE],
        "source": ["kafka"],
        "commit_mode": "aligned-changelog",
        "checkpoint_interval_s": 5.0,
        "fault": "executor",
        "warmup_s": 30.0,
        "duration_s": 100.0,
    },
    "paper": {**_ENGINE, "warmup_s": 180.0, "duration_s": 180.0, "repetitions": 3},
}
