"""Build under test on Spark: hashes of its programs and checks of its settings."""

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
# Programs in spark_jobs/ that are not part of a workload.
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
    """Return the SHA-256 of each program file of workloads by relative path; harvests and READERS are excluded."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".py", ".sql") and path.stem not in READERS and not path.stem.startswith("harvest")
    }


def check_build(spec: BuildSpec, config: Configuration, key: str) -> None:
    """Raise ConfigError for a setting that Spark or the workload does not read, or that is reserved.

    The error names the key.
    """
    for name, value in spec.settings.items():
        _check_setting(f"{key}.settings.{name}", name, value)
    reject_reserved(spec, key, reserved_names(config))
    if BUSY in spec.settings and (not config.paced or config.kind.warms_itself):
        raise ConfigError(f"{key}.settings.{BUSY}: unsupported by {config.workload}; fix: remove it")
    if spec.revision is not None and BUSY in spec.settings:
        raise ConfigError(
            f"{key}.settings.{BUSY}: conflicts with a revision, which may not read it; fix: remove one of them"
        )


def reject_reserved(spec: BuildSpec, key: str, decided: Collection[str]) -> None:
    """Raise ConfigError for a setting that the configuration or Faultline itself sets."""
    for name in spec.settings:
        if name in decided:
            raise ConfigError(
                f"{key}.settings.{name}: set by the experiment's configuration; fix: remove it, and set the parameter"
            )


def _check_setting(where: str, name: str, value: str) -> None:
    if not name.startswith(PREFIX):
        raise ConfigError(f"{where}: expected a Spark setting, with the prefix {PREFIX}")
    if name.startswith(FAULTLINE_PREFIX) and name not in FAULTLINE_SETTINGS:
        raise ConfigError(f"{where}: unknown setting{suggest(name, FAULTLINE_SETTINGS)}")
    if name == BUSY:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number <= MAX_BUSY_US:
            raise ConfigError(f"{where}: got {value!r}; expected microseconds per record from 0 to {MAX_BUSY_US:g}")
