"""Spark, which runs every workload that no other engine has for itself."""

from __future__ import annotations

from pathlib import Path

from faultline.base.attempt import Attempt
from faultline.base.settings import Settings
from faultline.engines.base import Capabilities, Engine, Hit, Progress, Seen, Traces
from faultline.engines.spark import detection
from faultline.engines.spark.collect import gather
from faultline.engines.spark.progress import CheckpointProgress
from faultline.engines.spark.traces import read_traces


class Spark:
    """See `faultline.engines.base.Engine`."""

    name = "spark"
    only_for: frozenset[str] = frozenset()
    roles = frozenset(detection.DETECTORS)
    capabilities = Capabilities(
        commit_modes=frozenset({"none", "unaligned", "aligned", "aligned-changelog"}),
        cycles=frozenset({"checkpoint", "snapshot"}),
        granularity=frozenset({"batch", "record"}),
    )

    def progress(self, attempt: Attempt) -> Progress:
        return CheckpointProgress(attempt.checkpoint)

    def collect(self, attempt: Attempt, settings: Settings, *, method: str) -> None:
        gather(attempt, settings, method=method)

    def traces(self, folder: Path) -> Traces:
        return read_traces(folder)

    def detect(self, hit: Hit, traces: Traces) -> Seen | None:
        return detection.detect(hit, traces)

    def without_effect(self, hit: Hit, traces: Traces) -> str | None:
        return detection.without_effect(hit, traces)


ENGINE: Engine = Spark()
