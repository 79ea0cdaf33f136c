"""The presets of the matrix `nexmark`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from faultline.experiment.workloads.nexmark_events import (
    AWAITING_TIME,
    DENSE_RATE,
    ENGINE_DEFAULTS,
    KAFKA_RATE,
    QUERIES,
    RATE,
    STATELESS,
    WATERMARK_S,
)

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
    # As much as fills the state of each; those without one have nothing to fill.
    "steady": {
        **_ENGINE,
        "query": [query for query in QUERIES if query not in STATELESS],
        "preload_events": 20_000_000,
    },
    # Where the density of events in event time matters. On two cores these runs end before the first result is due.
    "dense": {**_ENGINE, "query": list(AWAITING_TIME), "rate": [DENSE_RATE]},
    # On a schedule, which a fault can delay, and with the usual executors. On two cores some queries took most of a
    # minute to work off what had gathered.
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
