"""What Spark runs of a build under test: the programs of its revision, and its settings, as far as they are its own."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from pathlib import Path

from faultline.engines.spark.conf_rules import BUSY, FAULTLINE_PREFIX, PREFIX
from faultline.engines.spark.settings import reserved_names
from faultline.experiment.build import BuildSpec
from faultline.experiment.config import Configuration
from faultline.system.errors import ConfigError
from faultline.system.text import suggest

FAULTLINE_SETTINGS = frozenset({BUSY})
MAX_BUSY_US = 1_000_000.0
# Programs in spark_jobs/ that are no part of a workload.
READERS = (
    "aggregate",
    "output_matching",
    "nexmark_generation_cost",
    "probe",
    "query_counts",
    "cds_training",
    "job_server",
)


def program_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file that runs as a workload, by its path; programs that only read what a run left are none."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".py", ".sql") and path.stem not in READERS and not path.stem.startswith("harvest")
    }


def check_build(spec: BuildSpec, config: Configuration, key: str) -> None:
    """Raises ConfigError, naming the key, for a setting that is none of Spark's, that is decided already, or that the
    workload does not read."""
    for name, value in spec.settings.items():
        _check_setting(f"{key}.settings.{name}", name, value)
    reject_reserved(spec, key, reserved_names(config))
    if BUSY in spec.settings and (not config.paced or config.kind.warms_itself):
        raise ConfigError(f"{key}.settings.{BUSY}: {config.workload} does not read it; leave it out")
    if spec.revision is not None and BUSY in spec.settings:
        raise ConfigError(f"{key}.settings.{BUSY}: a revision may not read it; leave one of both out")


def reject_reserved(spec: BuildSpec, key: str, decided: Collection[str]) -> None:
    """Raises ConfigError for a setting that is `decided` already: by the configuration, or by Faultline itself."""
    for name in spec.settings:
        if name in decided:
            raise ConfigError(
                f"{key}.settings.{name}: is set by the experiment's configuration; leave it out, and change the "
                "parameter that it follows from"
            )


def _check_setting(where: str, name: str, value: str) -> None:
    if not name.startswith(PREFIX):
        raise ConfigError(f"{where}: does not begin with {PREFIX}; give settings of Spark")
    if name.startswith(FAULTLINE_PREFIX) and name not in FAULTLINE_SETTINGS:
        raise ConfigError(f"{where}: no program reads it{suggest(name, FAULTLINE_SETTINGS)}")
    if name == BUSY:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number <= MAX_BUSY_US:
            raise ConfigError(f"{where}: {value!r} is no number from 0 to {MAX_BUSY_US:g}; give microseconds a record")
