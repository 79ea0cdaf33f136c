"""What each workload can have: which parameters are its own, and which processes it starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from faultline.experiment.workloads.nexmark import PYTHON, require_nexmark
from faultline.experiment.workloads.topology import require_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fault.plan import PlannedFault
    from faultline.experiment.config import Configuration

# Windows that hold one record; each costs a row of state.
MAX_OVERLAP = 60
# Late records are an hour old; what is open this long may still take them.
MOST_KEPT_S = 1800.0
# Real-time mode refuses shorter batches.
MIN_REAL_TIME_BATCH_S = 5.0


@dataclass(frozen=True)
class Traits:
    """Fixed properties of a workload.

    `own`: parameters that only it understands. `words`: it counts words, so its state can be preloaded. `real_time`:
    it can run in Spark's real-time mode. `counts`: what its throughput is of.
    """

    own: tuple[str, ...] = ()
    words: bool = False
    python_workers: bool = False
    real_time: bool = False
    skewed: bool = False
    counts: str = "records"


_NEXMARK = ("query", "source", "events", "batch_events", "preload_events", "watermark_s", "disorder")
_STOCK = ("window_s", "slide_s", "watermark_s", "disorder", "late", "prices", "stocks", "users")
TRAITS: dict[str, Traits] = {
    "word_count": Traits(words=True, real_time=True, skewed=True),
    "word_count_python": Traits(words=True, python_workers=True, skewed=True),
    "pi": Traits(own=("iterations",), real_time=True),
    "stock_group_by": Traits(own=_STOCK, skewed=True),
    "stock_join": Traits(own=_STOCK, skewed=True),
    "nexmark": Traits(own=_NEXMARK),
    "topology": Traits(own=("mechanisms", "parallelism", "topology"), skewed=True, python_workers=True, counts="words"),
    "known_truth": Traits(own=("truth",), words=True),
}


def is_paced(config: Configuration) -> bool:
    """Whether a generator sends the input by a schedule, through Kafka. Else the engine makes it, as fast as it can."""
    return has_schedule({"workload": config.workload, "source": config.source})


def has_schedule(config: Mapping[str, Any]) -> bool:
    """As `is_paced`, of a record's configuration, which may lack a part."""
    return not (config.get("workload") == "nexmark" and config.get("source") == "engine")


def offered_rate(config: Mapping[str, Any]) -> float | None:
    """Records/s that a schedule offered, of a record's configuration; None without a schedule or a usable number."""
    rate = config.get("rate")
    if not has_schedule(config):
        return None  # there a rate is how dense events lie in event time
    try:
        return float(rate) if isinstance(rate, int | float) and math.isfinite(rate) else None
    except OverflowError:
        return None


def require_own_parameters(config: Configuration) -> None:
    """Raises ValueError naming a parameter that this workload would silently ignore, or that contradicts another."""
    traits, name = TRAITS[config.workload], config.workload
    for key in sorted({key for other in TRAITS.values() for key in other.own} - set(traits.own)):
        default = type(config).model_fields[key].default
        if getattr(config, key) != default:
            owners = " and ".join(other for other in TRAITS if key in TRAITS[other].own)
            stays = f"at {default:g}" if isinstance(default, int | float) else f"at {default}" if default else "empty"
            raise ValueError(f"{key}: only {owners} has it; leave it {stays}")
    if config.state_mb and not traits.words:
        raise ValueError(f"state_mb: {name} keeps no words that could be preloaded; set it to 0")
    for key in ("skew", "skew_curve"):
        if getattr(config, key) is not None and not traits.skewed:
            raise ValueError(f"{key}: {name} draws no keys; leave it empty")
    if config.skew_curve is not None and config.skew is None:
        raise ValueError("skew: skew_curve needs an exponent to start from; set skew, such as 1.0")
    if "window_s" in traits.own:
        _require_windows(config)
    if config.workload == "nexmark":
        require_nexmark(config)
    if config.workload == "topology":
        require_topology(config)


def _require_windows(config: Configuration) -> None:
    """The windows of the stock queries, and the records that are to be late for them."""
    if config.slide_s > config.window_s:
        raise ValueError(
            f"slide_s: {config.slide_s:g} s leaves gaps between windows of {config.window_s:g} s; lower it"
        )
    if config.window_s / config.slide_s > MAX_OVERLAP:
        raise ValueError(
            f"slide_s: a record would lie in {config.window_s / config.slide_s:g} windows, more than {MAX_OVERLAP}; "
            "raise slide_s or lower window_s"
        )
    if config.late and config.window_s + config.watermark_s > MOST_KEPT_S:
        raise ValueError(
            f"window_s: windows of {config.window_s:g} s and a watermark of {config.watermark_s:g} s may keep records "
            f"that are an hour old; let both add up to {MOST_KEPT_S:g} s at most, or set late to 0"
        )
    if config.disorder + config.late > 1:
        raise ValueError("late: disorder and late are shares of the same records; let them add up to 1 at most")


def require_commit_mode(config: Configuration) -> None:
    """Raises ValueError when the workload or the cluster cannot run in the commit mode."""
    if config.commit_mode != "unaligned":
        return
    if not TRAITS[config.workload].real_time:
        able = " or ".join(name for name, traits in TRAITS.items() if traits.real_time)
        raise ValueError(f"commit_mode: {config.workload} cannot run in real-time mode (unaligned); use {able}")
    if config.checkpoint_interval_s < MIN_REAL_TIME_BATCH_S:
        raise ValueError(
            f"checkpoint_interval_s: real-time mode (unaligned) has batches of {MIN_REAL_TIME_BATCH_S:g} s at least; "
            "raise it"
        )
    slots = config.executors * config.executor_cores
    if config.partitions > slots:
        raise ValueError(
            f"partitions: in real-time mode (unaligned) each of {config.partitions} holds a core of {slots}; "
            "lower partitions or raise executor_cores"
        )


def require_possible_faults(config: Configuration, planned: Sequence[PlannedFault]) -> None:
    """Raises ValueError when the workload or its commit mode cannot have one of the planned faults."""
    if config.rate_curve is not None and any(fault.at_record is not None for fault in config.plan().faults):
        raise ValueError("fault_plan: at_record counts at a constant rate; with rate_curve give at_s instead")
    if config.commit_mode == "none" and "late" in TRAITS[config.workload].own and config.late:
        raise ValueError(
            "late: in commit mode none a fault may begin a state anew, which has no watermark yet and would count late "
            "records; set late to 0"
        )
    if config.workload == "known_truth" and not _one_kill_of_the_driver(planned):
        raise ValueError("fault: known_truth is one process, killed once at a second; use fault=driver or none")
    in_python = TRAITS[config.workload].python_workers or (config.workload == "nexmark" and config.query in PYTHON)
    if any(one.fault.victim == "python_worker" for one in planned) and not in_python:
        raise ValueError(
            f"fault: {config.workload} starts no Python workers; use workload word_count_python, or another victim"
        )
    if config.commit_mode != "aligned-changelog" and any(one.fault.cycle == "snapshot" for one in planned):
        raise ValueError(
            f"fault_plan: commit_mode {config.commit_mode} has no snapshot cycle of its own; use cycle checkpoint, "
            "or commit_mode aligned-changelog"
        )


def _one_kill_of_the_driver(planned: Sequence[PlannedFault]) -> bool:
    if len(planned) != 1:
        return False
    fault = planned[0].fault
    return (fault.victim, fault.action, fault.cycle) == ("driver", "kill", None)
