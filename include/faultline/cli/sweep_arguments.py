"""A sweep as the command line takes it, `MATRIX KEY=VALUE KEY=[A,B] …`: what is filled into the matrix's form."""

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
from faultline.experiment.matrices import MATRICES, OWN, MatrixSpec
from faultline.experiment.matrix import Matrix
from faultline.experiment.named_settings import OBJECTS, folded, require_known, take_settings
from faultline.experiment.nightly_file import is_nightly
from faultline.lifecycle.prepare import Order, check_configuration
from faultline.system.errors import ConfigError
from faultline.system.text import suggest

LABELS = ("series", "build")
NUMBERS = {"repetitions": (1, 100), "controls": (0, 100), "max_measurements": (1, 10)}
KNOWN = ("preset", *NUMBERS, *LABELS, "decide")


@dataclass(frozen=True)
class SweepRequest:
    """A sweep that somebody asked for. `form`: what is filled into the form of `spec`, as JSON values; `params`: all of
    it, with the preset's values."""

    spec: MatrixSpec
    form: Mapping[str, Any]
    params: Mapping[str, Any]

    @cached_property
    def matrix(self) -> Matrix:
        return self.spec.matrix(self.params)

    @property
    def text(self) -> list[str]:
        """The axes, a line each, and how often each configuration is measured."""
        matrix = self.matrix
        lines = [f"{name}: {axis_text(values)}" for name, values in matrix.axes.items()]
        often = "as often as its question needs" if self.params["decide"] else _times(matrix.repetitions)
        partly = [f"{key}: of {' and '.join(those)} alone" for key, those in matrix.only_of.items() if self._given(key)]
        return [*lines, *partly, f"each configuration {often}"]

    def _given(self, key: str) -> bool:
        """Whether it was asked for, and is not just a field that the form has."""
        return key in self.form or key in self.matrix.axes


def wanted_of(words: Sequence[str]) -> SweepRequest:
    """The sweep that the words ask for; without the name of a matrix one along the axes that they name.

    Raises ConfigError naming the key, also for what this machine cannot run.
    """
    named = words[:1] if words and "=" not in words[0] else ()
    name = named[0] if named else OWN
    if is_nightly(name):
        raise ConfigError(f"{name}: a night is no sweep; see ./faultline nightly check, and ./faultline missing {name}")
    if name not in MATRICES:
        hint = f"; one experiment of it is `./faultline run {name}`" if _is_workload(name) else suggest(name, MATRICES)
        raise ConfigError(f"{name}: no such matrix{hint}")
    spec = MATRICES[name]
    form = form_of(spec, words[len(named) :])
    params = spec.resolve({**dict.fromkeys(KNOWN), **form})
    for config in dict.fromkeys(spec.matrix(params).configurations()):
        check_configuration(config)
        Order(config, series=params["series"], build=params["build"])
    return SweepRequest(spec, form, params)


def form_of(spec: MatrixSpec, words: Sequence[str]) -> dict[str, Any]:
    """`key=value` words as what is filled into the form. Raises ConfigError naming the key."""
    values = split_words(words, [*Configuration.model_fields, *KNOWN], example="preset=smoke")
    for key, text in values.items():
        if not text.strip():
            raise ConfigError(f"{key}: is empty; give a value, or leave it out for the preset's")
    form: dict[str, Any] = {key: values.pop(key) for key in ("preset", *LABELS) if key in values}
    spec.values(form.get("preset", "default"))
    for key, (low, high) in NUMBERS.items():
        if key in values:
            form[key] = _whole(key, values.pop(key), low, high)
    if "decide" in values:
        form["decide"] = _object("decide", values.pop("decide"))
    fixed: dict[str, Any] = {}
    further: dict[str, list[Any]] = {}
    for key, text in values.items():
        if key in spec.axes:
            form[key] = [from_here(key, value) for value in parse_axis(key, text)]
        elif text.strip().startswith("["):
            further[key] = [from_here(key, value) for value in parse_axis(key, text)]
        else:
            fixed[key] = from_here(key, text)
    form |= {"axes": further} if further else {}
    return form | _typed(spec, form, folded(fixed))


def _typed(spec: MatrixSpec, form: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Texts as the form's fields take them, numbers as numbers. Raises ConfigError for what makes no experiment."""
    matrix = spec.matrix(spec.resolve({**form, **fixed}))
    points = [one.model_dump(mode="json") for one in matrix.configurations()]

    def first(key: str) -> Any:
        """A control has no fault time, whatever was said, and no workload what only others have."""
        those = matrix.only_of.get(key)
        having = [point for point in points if those is None or point["workload"] in those]
        return next((point[key] for point in having if point[key] is not None), None)

    typed = {key: first(key) for key in fixed}
    # Of an object the points have also what is an axis.
    return typed | {key: take_settings(key, take_object(key, fixed[key])) for key in OBJECTS if key in fixed}


def _whole(key: str, text: str, low: int, high: int) -> int:
    if not text.isdigit() or not low <= int(text) <= high:
        raise ConfigError(f"{key}: {text!r} is refused; use a whole number from {low} to {high}")
    return int(text)


def _object(key: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{key}: {text!r} is no JSON object; quote it for the shell, as '{{\"along\": …}}'")
    return found


def _is_workload(name: str) -> bool:
    from faultline.experiment.workloads.registry import WORKLOADS

    return name in WORKLOADS


def _times(repetitions: int) -> str:
    return "once" if repetitions == 1 else f"{repetitions} times"


# `KEY=VALUE` words of the command line.


def from_here(key: str, value: Any) -> Any:
    """The value of a parameter; a relative path is meant from here, wherever the experiment will run."""
    own = key in BUILT_IN_PATHS and isinstance(value, str) and value != BUILT_IN_PATHS[key]
    return str(Path(value).absolute()) if own else value


def split_words(given: Sequence[str], known: Sequence[str], *, example: str) -> dict[str, str]:
    """`key=value` words by key. Raises ConfigError for one that is none, is not `known`, or comes twice."""
    values: dict[str, str] = {}
    for item in given:
        key, separator, text = item.partition("=")
        if not separator:
            raise ConfigError(f"{item}: give KEY=VALUE, such as {example}")
        require_known(key, known)
        if key in values:
            raise ConfigError(f"{key}: given twice; keep one")
        values[key] = text
    return values
