"""A night as a file: what is measured, when, beside what, and who is told.

`nightly.yaml` in the folder of the checkout, or in FAULTLINE_NIGHTLY_DIR, is the DAG `nightly_regression`; each
`nights/NAME.yaml` there is a DAG of its own, `night_NAME`. Airflow reads them again every half minute, so a change
needs no restart.
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
# Fields of the form of a night that a file may set.
FIELDS = (
    "set", "repetitions", "controls", "baseline", "primary", "baseline_nights", "metrics", "limits",
    "only_missing", "max_measurements", "build",
)  # fmt: skip
KEYS = ("schedule", "alerts", *FIELDS)
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True)
class NightlyFile:
    """A night that is measured again and again. `form`: values of its form's fields; `problem`: what is wrong with the
    file, in a line, so that the night can say so itself."""

    dag_id: str
    path: Path | None
    schedule: str
    form: Mapping[str, Any] = field(default_factory=dict)
    alerts: tuple[AlertPlan, ...] = ()
    problem: str | None = None


def nightly_files(root: Path) -> list[NightlyFile]:
    """Return every night that has a file, `nightly_regression` first, which is there also without one."""
    folder = Path(os.environ.get(FOLDER) or root)
    first = folder / FIRST
    found = [_read(NIGHTLY, first) if first.is_file() else NightlyFile(NIGHTLY, None, schedule())]
    for path in sorted((folder / OTHERS).glob("*.yaml")):
        found.append(_read(f"{PREFIX}{path.stem}", path))
    return found


def is_nightly(dag_id: str) -> bool:
    """Return whether a DAG's runs are nights."""
    return dag_id == NIGHTLY or dag_id.startswith(PREFIX)


def parse_nightly(dag_id: str, path: Path) -> NightlyFile:
    """Return the night of a file. Raises ConfigError naming the file, the key and the remedy."""
    if dag_id != NIGHTLY and not NAME.fullmatch(path.stem):
        raise ConfigError(f"{path.name}: use small letters, digits, - and _ for the name of a night's file")
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where else ""
        raise ConfigError(f"{path.name}: is no YAML{line} ({getattr(error, 'problem', error)})") from None
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path.name}: holds no keys; write one a line, such as repetitions: 15")
    for key in given:
        if key not in KEYS:
            raise ConfigError(f"{path.name}: {key}: unknown key{suggest(str(key), KEYS)}")
    cron = given.get("schedule", schedule())
    if not isinstance(cron, str) or not croniter.is_valid(cron):
        raise ConfigError(
            f"{path.name}: schedule: {cron!r} is no cron expression; write five fields, such as '0 2 * * *'"
        )
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


# What a night measures: configurations, each written out, or the points of a matrix under a preset.


# More would not end before the next night.
MOST = 64
# What an entry that names a matrix says beside overrides of its parameters.
MATRIX = "matrix"


def nightly_configurations(given: Sequence[Any]) -> list[Configuration]:
    """Return the distinct configurations of a set. Raises ConfigError naming the place in the set and the key."""
    found: list[Configuration] = []
    for number, one in enumerate(given):
        try:
            found += _of_matrix(one) if isinstance(one, Mapping) and MATRIX in one else [parse_configuration(one)]
        except ConfigError as error:
            raise ConfigError(f"set[{number}]: {error}") from None
        except (TypeError, ValueError):
            raise ConfigError(f"set[{number}]: {one!r} is no object of parameters") from None
    distinct = list(dict.fromkeys(found))
    if len(distinct) > MOST:
        raise ConfigError(f"set: {len(distinct)} configurations are more than {MOST}; name fewer values")
    return distinct


def _of_matrix(entry: Mapping[str, Any]) -> list[Configuration]:
    """Return every point of a matrix under a preset; how often each is measured is the night's to say."""
    name = entry[MATRIX]
    if name not in MATRICES:
        raise ConfigError(f"matrix: {name!r} is not known{suggest(str(name), MATRICES)}")
    for key in entry:
        require_known(key, (MATRIX, "preset", "axes", *Configuration.model_fields))
    spec = MATRICES[name]
    return spec.matrix(spec.resolve({key: value for key, value in entry.items() if key != MATRIX})).configurations()


# When nights of the regression set are due.


NIGHTLY = "nightly_regression"
VARIABLE = "FAULTLINE_NIGHTLY_SCHEDULE"
# At two in the morning, UTC.
DEFAULT = "0 2 * * *"
# Faultline's own speed, when the night of the experiments is over.
SPEED = "nightly_speed"
SPEED_VARIABLE = "FAULTLINE_SPEED_SCHEDULE"
SPEED_DEFAULT = "0 5 * * *"


def schedule() -> str:
    """Return the cron expression by which nights are due, UTC. Raises ConfigError for what is none."""
    return _cron(VARIABLE, DEFAULT)


def speed_schedule() -> str:
    """Return the schedule of the self-benchmark."""
    return _cron(SPEED_VARIABLE, SPEED_DEFAULT)


def _cron(variable: str, default: str) -> str:
    cron = os.environ.get(variable) or default
    if not croniter.is_valid(cron):
        raise ConfigError(f"{variable}: {cron!r} is no cron expression; write five fields, such as {default}")
    return cron


def due_nights(cron: str, first: datetime, until: datetime) -> list[str]:
    """Return logical dates of the nights that are due in (first, until), ISO 8601 in UTC."""
    found: list[str] = []
    nights = croniter(cron, first.astimezone(UTC))
    while (night := nights.get_next(datetime)) < until:
        found.append(night.isoformat(timespec="seconds"))
    return found


# Pairs that a night measures by default. One configuration alone can be certain beyond doubt from 14 pairs on, each of
# two from 15; ten percent more work is suspected in four nights of five from 12 on, and with fewer than eight of two
# nothing could be: docs/explanation/comparing.md.
PAIRS = 15
