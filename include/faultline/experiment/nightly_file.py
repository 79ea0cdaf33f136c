"""Files of nightly runs: configurations, schedule, reference build and alerts.

`nightly.yaml` in the checkout, or in FAULTLINE_NIGHTLY_DIR, defines the DAG `nightly_regression`. Each
`nights/NAME.yaml` there defines a DAG `night_NAME`. Airflow reads them again every half minute, without a restart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from croniter import croniter

from faultline.experiment.alert_plan import AlertPlan, parse_alerts
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.named_settings import require_known
from faultline.system.errors import ConfigError
from faultline.system.text import suggest

FOLDER = "FAULTLINE_NIGHTLY_DIR"
FIRST = "nightly.yaml"
OTHERS = "nights"
PREFIX = "night_"
# Fields of the nightly form that a file may set.
FIELDS = (
    "set", "repetitions", "controls", "baseline", "primary", "baseline_nights", "metrics", "limits",
    "only_missing", "max_measurements", "build",
)  # fmt: skip
KEYS = ("schedule", "alerts", *FIELDS)
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True)
class NightlyFile:
    """One nightly DAG.

    `form`: values of its form fields. `problem`: error of an invalid file, which its nightly run reports.
    """

    dag_id: str
    path: Path | None
    schedule: str
    form: Mapping[str, Any] = field(default_factory=dict)
    alerts: tuple[AlertPlan, ...] = ()
    problem: str | None = None


def nightly_files(root: Path) -> list[NightlyFile]:
    """Return all nightly DAGs: `nightly_regression`, which needs no file, then one per file."""
    folder = Path(os.environ.get(FOLDER) or root)
    first = folder / FIRST
    found = [_read(NIGHTLY, first) if first.is_file() else NightlyFile(NIGHTLY, None, schedule())]
    for path in sorted((folder / OTHERS).glob("*.yaml")):
        found.append(_read(f"{PREFIX}{path.stem}", path))
    return found


def is_nightly(dag_id: str) -> bool:
    """Return whether a DAG is a nightly DAG."""
    return dag_id == NIGHTLY or dag_id.startswith(PREFIX)


def parse_nightly(dag_id: str, path: Path) -> NightlyFile:
    """Return the nightly DAG of a file. Raises ConfigError naming the file, the key and the fix."""
    if dag_id != NIGHTLY and not NAME.fullmatch(path.stem):
        raise ConfigError(f"{path.name}: got an invalid file name; expected lower-case letters, digits, - and _")
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name}: reading failed: {error}") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where else ""
        raise ConfigError(f"{path.name}: got invalid YAML{line} ({getattr(error, 'problem', error)})") from None
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path.name}: got no keys; expected lines such as repetitions: 15")
    for key in given:
        if key not in KEYS:
            raise ConfigError(f"{path.name}: {key}: unknown key{suggest(str(key), KEYS)}")
    cron = given.get("schedule", schedule())
    if not isinstance(cron, str) or not croniter.is_valid(cron):
        raise ConfigError(f"{path.name}: schedule: got {cron!r}; expected a cron expression, such as '0 2 * * *'")
    try:
        alerts = parse_alerts(given.get("alerts"))
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from None
    form = {key: given[key] for key in FIELDS if given.get(key) is not None}
    return NightlyFile(dag_id, path, cron, form, alerts)


def _read(dag_id: str, path: Path) -> NightlyFile:
    try:
        return parse_nightly(dag_id, path)
    except ConfigError as error:
        return NightlyFile(dag_id, path, schedule(), problem=str(error))


# Set of a nightly run: complete configurations, or the points of a matrix under a preset.


# Upper bound on configurations; more would not end before the next nightly run.
MOST = 64
# Key of an entry that names a matrix.
MATRIX = "matrix"


def nightly_configurations(given: Sequence[Any]) -> list[Configuration]:
    """Return the distinct configurations of a set. Raises ConfigError naming the index in the set and the key."""
    found: list[Configuration] = []
    for index, entry in enumerate(given):
        try:
            is_matrix = isinstance(entry, Mapping) and MATRIX in entry
            found += _points(entry) if is_matrix else [parse_configuration(entry)]
        except ConfigError as error:
            raise ConfigError(f"set[{index}]: {error}") from None
        except (TypeError, ValueError):
            raise ConfigError(f"set[{index}]: got {entry!r}; expected an object of parameters") from None
    distinct = list(dict.fromkeys(found))
    if len(distinct) > MOST:
        raise ConfigError(f"set: got {len(distinct)} configurations; expected at most {MOST}")
    return distinct


def _points(entry: Mapping[str, Any]) -> list[Configuration]:
    """Return every point of a matrix under a preset; the nightly file sets the repetitions."""
    name = entry[MATRIX]
    if name not in MATRICES:
        raise ConfigError(f"matrix: got {name!r}; expected a known matrix{suggest(str(name), MATRICES)}")
    for key in entry:
        require_known(key, (MATRIX, "preset", "axes", *Configuration.model_fields))
    spec = MATRICES[name]
    return spec.matrix(spec.resolve({key: value for key, value in entry.items() if key != MATRIX})).configurations()


# Schedules.


NIGHTLY = "nightly_regression"
VARIABLE = "FAULTLINE_NIGHTLY_SCHEDULE"
# At 02:00 UTC.
DEFAULT = "0 2 * * *"
# The self-benchmark runs after the nightly experiments.
SPEED = "nightly_speed"
SPEED_VARIABLE = "FAULTLINE_SPEED_SCHEDULE"
SPEED_DEFAULT = "0 5 * * *"


def schedule() -> str:
    """Return the cron expression of nightly runs, in UTC. Raises ConfigError for an invalid one."""
    return _cron(VARIABLE, DEFAULT)


def speed_schedule() -> str:
    """Return the schedule of the self-benchmark."""
    return _cron(SPEED_VARIABLE, SPEED_DEFAULT)


def _cron(variable: str, default: str) -> str:
    cron = os.environ.get(variable) or default
    if not croniter.is_valid(cron):
        raise ConfigError(f"{variable}: got {cron!r}; expected a cron expression, such as {default}")
    return cron


def due_nights(cron: str, first: datetime, until: datetime) -> list[str]:
    """Return the logical dates of nightly runs in (first, until), ISO 8601 in UTC."""
    found: list[str] = []
    dates = croniter(cron, first.astimezone(UTC))
    while (date := dates.get_next(datetime)) < until:
        found.append(date.isoformat(timespec="seconds"))
    return found


# Default pairs of a nightly run. A significant result needs 14 pairs for one configuration and 15 for each of two. From
# 12 pairs on, 10 % more work is suspected with 80 % power; with fewer than eight nothing can be detected for two
# configurations: docs/explanation/comparing.md.
PAIRS = 15
