"""Synthetic records for the papers' findings, by axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from faultline.comparison.findings.catalogue import Finding, findings
from faultline.comparison.findings.claims import ClaimVerdict
from faultline.records.record import ByRole, Record
from faultline.records.work_parts import WorkPart
from tests.unit.sample_records import sample

AGREES, DISAGREES, INCONCLUSIVE = ClaimVerdict.AGREES, ClaimVerdict.DISAGREES, ClaimVerdict.INCONCLUSIVE

NOT_COVERED, NOT_TESTABLE = ClaimVerdict.NOT_COVERED, ClaimVerdict.NOT_TESTABLE

# Five repetitions, closer to each other than to anything else.
NOISE = (0.99, 0.995, 1.0, 1.005, 1.01)

STATE = "state_size_x_checkpoint_interval"

SKEW = "skew_x_alignment_mode"

RATE = "input_rate"

CORES = "executor_cores"

RECOVERY = "recovery"

TOPOLOGY = "topology_optimisation"

METRICS = (
    "gc_s", "non_compute_ms", "throughput_rps", "sustained", "effective_interval_s", "realtime", "rss_mb", "stages"
)  # fmt: skip


def run(repetition: int = 0, *, status: str = "valid", oversubscribed: bool = False, **named: Any) -> Record:
    """A record; `latency`, `cpu` (executors, cores), `tasks`, `task_s` and METRICS by name, the rest is config."""
    latency = named.pop("latency", 1000.0)
    cpu, tasks, task_s = named.pop("cpu", 0.5), named.pop("tasks", 100), named.pop("task_s", 10.0)
    metrics = {name: named.pop(name) for name in list(named) if name in METRICS}
    record = sample(status=status, repetition=repetition, latency={"mean": latency}, **{"fault": "none", **named})
    update = {
        "cpu_cores": ByRole(driver=0.1, executors=cpu, python_workers=0.0, kafka=0.1, generator=0.1),
        "work": WorkPart(batches=10, tasks=tasks, batch_s=10.0, task_s=task_s),
        "effective_interval_s": record.config["checkpoint_interval_s"],
        **metrics,
    }
    environment = record.environment.model_copy(update={"oversubscribed": oversubscribed})
    return record.model_copy(update={"metrics": record.metrics.model_copy(update=update), "environment": environment})


def repeated(times: Iterable[float] = NOISE, **named: Any) -> list[Record]:
    """Repetitions whose `scaled` figures are multiplied by the noise."""
    figures = named.pop("scaled")
    return [
        run(number, **named, **{name: type(value)(value * noise) for name, value in figures.items()})
        for number, noise in enumerate(times)
    ]


def grid(points: Iterable[tuple[dict[str, Any], dict[str, float]]], **named: Any) -> list[Record]:
    return [record for config, figures in points for record in repeated(**named, **config, scaled=figures)]


def of(matrix: str, records: Iterable[Record]) -> dict[str, Finding]:
    return {one.claim.text.split(": ", 1)[1]: one for one in findings(matrix, list(records))}


def verdict(matrix: str, begins: str, records: Iterable[Record]) -> ClaimVerdict:
    (found,) = [one for text, one in of(matrix, records).items() if text.startswith(begins)]
    assert found.evidence and "\n" not in found.evidence
    return found.verdict


def kill(victim: str = "executor", checkpoint_interval_s: float = 2.0, state_mb: float = 1.0, **parts: Any) -> Record:
    recovery = {"recovered": True, "detection_s": 0.1, "reload_s": 4.0, "replay_s": 1.0, "macro_s": 9.0}
    config: dict[str, Any] = {"fault": victim, "checkpoint_interval_s": checkpoint_interval_s, "state_mb": state_mb}
    return sample(recovery={**recovery, **parts}, duration_s=100, **config)


def states(*figures: tuple[float, float, float, float], **named: Any) -> list[Record]:
    """Runs at (state MB, interval s) with latency (ms) and CPU (cores)."""
    points = [
        ({"state_mb": state, "checkpoint_interval_s": interval}, {"latency": latency, "cpu": cpu})
        for state, interval, latency, cpu in figures
    ]
    return grid(points, **named)


def modes(**latencies: tuple[float, float]) -> list[Record]:
    """Runs of each mode at skew 0 and 1.5, with these latencies in ms."""
    points = [
        ({"skew": skew, "commit_mode": mode}, {"latency": value})
        for mode, pair in latencies.items()
        for skew, value in zip((0.0, 1.5), pair, strict=True)
    ]
    return grid(points, checkpoint_interval_s=5, realtime=True)


def rates(*rows: tuple[float, dict[str, Any]], **named: Any) -> list[Record]:
    return grid([({"rate": rate}, figures) for rate, figures in rows], workload="stock_group_by", **named)


def cores(*rows: tuple[int, dict[str, Any]], **named: Any) -> list[Record]:
    return grid(
        [({"executor_cores": number}, figures) for number, figures in rows],
        workload="stock_join",
        partitions=4,
        **named,
    )
