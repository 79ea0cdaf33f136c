"""What a night measures: configurations, each written out, or the points of a matrix under a preset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.named_settings import require_known
from faultline.system.errors import ConfigError
from faultline.system.text import suggest

# More would not end before the next night.
MOST = 64
# What an entry that names a matrix says beside overrides of its parameters.
MATRIX = "matrix"


def night_configurations(given: Sequence[Any]) -> list[Configuration]:
    """Those of a set, each once. Raises ConfigError naming the place in the set and the key."""
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
    """Every point of a matrix under a preset; how often each is measured is the night's to say."""
    name = entry[MATRIX]
    if name not in MATRICES:
        raise ConfigError(f"matrix: {name!r} is not known{suggest(str(name), MATRICES)}")
    for key in entry:
        require_known(key, (MATRIX, "preset", "axes", *Configuration.model_fields))
    spec = MATRICES[name]
    return spec.matrix(spec.resolve({key: value for key, value in entry.items() if key != MATRIX})).configurations()
