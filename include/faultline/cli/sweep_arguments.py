"""Arguments of a sweep, `MATRIX KEY=VALUE KEY=[A,B] …`, parsed into the form of the matrix."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from faultline.experiment.axes import axis_text, parse_axis
from faultline.experiment.config import BUILT_IN_PATHS, Configuration
from faultline.experiment.fault_fields import take_object
from faultline.experiment.matrices import MATRICES, OWN
from faultline.experiment.matrix import Matrix, MatrixSpec
from faultline.experiment.named_settings import OBJECTS, fold_settings, require_known, take_settings
from faultline.experiment.nightly_file import is_nightly
from faultline.lifecycle.prepare import Order, check_configuration
from faultline.orchestration.planning import HIGHEST_SEARCHED, SEARCH_PARAMS, check_search
from faultline.system.errors import ConfigError
from faultline.system.text import suggest

LABELS = ("series", "build")
NUMBERS = {"repetitions": (1, 100), "controls": (0, 100), "max_measurements": (1, 10)}
KNOWN = ("preset", *NUMBERS, *LABELS, "decide")


@dataclass(frozen=True)
class SweepRequest:
    """Requested sweep. `form`: requested values of the form of `spec`; `params`: `form` completed by the preset."""

    spec: MatrixSpec
    form: Mapping[str, Any]
    params: Mapping[str, Any]

    @cached_property
    def matrix(self) -> Matrix:
        return self.spec.matrix(self.params)

    @property
    def lines(self) -> list[str]:
        """Axes, one line each, and repetitions."""
        matrix = self.matrix
        lines = [f"{name}: {axis_text(values)}" for name, values in matrix.axes.items()]
        often = "until decided" if self.params["decide"] else _repetitions_text(matrix.repetitions)
        partly = [f"{key}: only for {' and '.join(those)}" for key, those in matrix.only_of.items() if self._given(key)]
        then = ["then a search for the highest sustained rate"] if self.params.get("search") else []
        return [*lines, *partly, f"each configuration {often}", *then]

    def _given(self, key: str) -> bool:
        """Return whether the key was requested, not only set by the preset."""
        return key in self.form or key in self.matrix.axes


def parse_sweep(words: Sequence[str]) -> SweepRequest:
    """Parse the words; without a matrix, sweep the given axes.

    Raises ConfigError naming the key if a value is invalid, or if this machine cannot run a configuration.
    """
    named = words[:1] if words and "=" not in words[0] else ()
    name = named[0] if named else OWN
    if is_nightly(name):
        raise ConfigError(f"{name}: got a nightly run; expected a matrix; see ./faultline missing {name}")
    if name not in MATRICES:
        hint = (
            f"; for one experiment of this workload: `./faultline run {name}`"
            if _is_workload(name)
            else suggest(name, MATRICES)
        )
        raise ConfigError(f"{name}: no such matrix{hint}")
    spec = MATRICES[name]
    form = parse_form(spec, words[len(named) :])
    params = spec.resolve({**dict.fromkeys(KNOWN), **form})
    check_search(params)
    for config in dict.fromkeys(spec.matrix(params).configurations()):
        check_configuration(config)
        Order(config, series=params["series"], build=params["build"])
    return SweepRequest(spec, form, params)


def parse_form(spec: MatrixSpec, words: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value` words into values of the form. Raises ConfigError naming the key."""
    searching = tuple(SEARCH_PARAMS) if spec.search else ()
    values = split_words(words, [*Configuration.model_fields, *KNOWN, *searching], example="preset=smoke")
    for key, text in values.items():
        if not text.strip():
            raise ConfigError(f"{key}: empty; expected a value")
    form: dict[str, Any] = {key: values.pop(key) for key in ("preset", *LABELS) if key in values}
    spec.values(form.get("preset", "default"))
    for key, (low, high) in NUMBERS.items():
        if key in values:
            form[key] = _parse_whole(key, values.pop(key), low, high)
    if "decide" in values:
        form["decide"] = _parse_object("decide", values.pop("decide"))
    if asked := {key: _parse_search(key, values.pop(key)) for key in searching if key in values}:
        form |= {**SEARCH_PARAMS, **asked}
    fixed: dict[str, Any] = {}
    further: dict[str, list[Any]] = {}
    for key, text in values.items():
        if key in spec.axes:
            form[key] = [absolute_path(key, value) for value in parse_axis(key, text)]
        elif text.strip().startswith("["):
            further[key] = [absolute_path(key, value) for value in parse_axis(key, text)]
        else:
            fixed[key] = absolute_path(key, text)
    form |= {"axes": further} if further else {}
    return form | _typed_form(spec, form, fold_settings(fixed))


def _typed_form(spec: MatrixSpec, form: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Convert texts to the types of the form. Raises ConfigError for an invalid configuration."""
    matrix = spec.matrix(spec.resolve({**form, **fixed}))
    points = [one.model_dump(mode="json") for one in matrix.configurations()]

    def first(key: str) -> Any:
        """Return the value in the first configuration that has the key; control runs have no fault time."""
        those = matrix.only_of.get(key)
        having = [one for one in points if those is None or not {one["workload"], one["engine"]}.isdisjoint(those)]
        return next((point[key] for point in having if point[key] is not None), None)

    typed = {key: first(key) for key in fixed}
    # Objects come from the given values: those in the configurations also contain values of axes.
    return typed | {key: take_settings(key, take_object(key, fixed[key])) for key in OBJECTS if key in fixed}


def _parse_whole(key: str, text: str, low: int, high: int) -> int:
    if not text.isdigit() or not low <= int(text) <= high:
        raise ConfigError(f"{key}: got {text!r}; expected a whole number from {low} to {high}")
    return int(text)


def _parse_object(key: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"{key}: got {text!r}; expected a JSON object, quoted for the shell, such as '{{\"along\": …}}'"
        )
    return found


def _parse_search(key: str, text: str) -> bool | float:
    """Parse a parameter of the search for the highest sustained rate."""
    if key == "search":
        if text not in ("true", "false"):
            raise ConfigError(f"{key}: got {text!r}; expected true or false")
        return text == "true"
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= HIGHEST_SEARCHED:
        raise ConfigError(f"{key}: got {text!r}; expected a rate above 0, at most {HIGHEST_SEARCHED:g}")
    return rate


def _is_workload(name: str) -> bool:
    from faultline.experiment.workloads.registry import WORKLOADS

    return name in WORKLOADS


def _repetitions_text(repetitions: int) -> str:
    return "once" if repetitions == 1 else f"{repetitions} times"


# `KEY=VALUE` words of the command line.


def absolute_path(key: str, value: Any) -> Any:
    """Return the value of a parameter, with a path made absolute."""
    own = key in BUILT_IN_PATHS and isinstance(value, str) and value != BUILT_IN_PATHS[key]
    return str(Path(value).absolute()) if own else value


def split_words(given: Sequence[str], known: Sequence[str], *, example: str) -> dict[str, str]:
    """Split `key=value` words. Raises ConfigError for another form, an unknown key or a repeated key."""
    values: dict[str, str] = {}
    for item in given:
        key, separator, text = item.partition("=")
        if not separator:
            raise ConfigError(f"{item}: expected KEY=VALUE, such as {example}")
        require_known(key, known)
        if key in values:
            raise ConfigError(f"{key}: given twice; expected once")
        values[key] = text
    return values
