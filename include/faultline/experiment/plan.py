"""What one attempt is to measure, as it stands in the attempt's own file."""

from __future__ import annotations

from faultline.base.attempt import Attempt
from faultline.experiment.config import Configuration


def topic_partitions(config: Configuration) -> dict[str, int]:
    """The topics of an attempt by role, and how many partitions each has."""
    return {"input": config.partitions, "output": config.partitions, **config.kind.topics(config.own, config)}


def configuration_of(attempt: Attempt) -> Configuration:
    """The configuration in `attempt.json`. Raises InfrastructureError when that file is missing or damaged."""
    return Configuration.model_validate(attempt.read()["config"])
