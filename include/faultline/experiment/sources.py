"""Where the records of a workload come from, in the generator's words, and how many of them warm the engine up."""

from __future__ import annotations

from typing import Any

from faultline.experiment.config import Configuration
from faultline.experiment.workloads.jobs import JOBS
from faultline.experiment.workloads.nexmark import AWAITING_TIME, rules

# Lines that the primer holds: a JVM plans its first micro-batches ten times slower than later ones.
PRIMER_LINES = 2000
# The same in trades, and in events: a line has some ten words, a trade two windows.
PRIMER_TRADES = 10_000
# Throw-away batches in which the engine works through the primer before the gate. Each of a join has twice the stages.
WARM_UP_BATCHES = 10
WARM_UP_JOINS = 5
# Terms of the series that the primer of `pi` asks for at most; it is worked through twice, some seconds of one core.
PRIMER_TERMS = 10_000_000


def source(config: Configuration, repetition: int = 0) -> dict[str, Any]:
    """The part of the generator's specification that names its source and the source's parameters."""
    if config.workload == "nexmark":
        closing = config.query in AWAITING_TIME
        return {"source": "nexmark", "rules": rules(config, repetition), "closing": closing}
    if config.workload == "pi":
        return {"source": "ids", "iterations": config.iterations}
    if streams := JOBS[config.workload].streams:
        return {
            "source": "stock",
            "streams": list(streams),
            "prices": config.prices,
            "stocks": config.stocks,
            "users": config.users,
            "watermark_s": config.watermark_s,
            "disorder": config.disorder,
            "late": config.late,
            "skew": config.skew or 0.0,
        }
    if config.skew is None:
        return {"source": "text", "corpus": config.corpus}
    return {"source": "zipf", "skew": config.skew, "vocabulary": config.vocabulary}


def primer_lines(config: Configuration) -> int:
    """Lines of the primer: what a JVM needs to get warm, and `known_truth` does not."""
    if config.workload == "known_truth":
        return 0
    if config.workload == "pi":
        return max(WARM_UP_BATCHES, min(PRIMER_LINES, PRIMER_TERMS // config.iterations))
    return PRIMER_TRADES if config.workload in ("stock_group_by", "nexmark") else PRIMER_LINES


def warm_up_batches(config: Configuration) -> int:
    """Throw-away batches in which the engine works through the primer."""
    return WARM_UP_JOINS if config.workload == "stock_join" else WARM_UP_BATCHES


def primer_records(config: Configuration) -> int:
    """Records that the generator sends before the gate: one to each partition, filler words and lines."""
    return config.partitions + config.filler_words + primer_lines(config)
