"""Matrices: named axes × fixed parameters × repetitions, expanded to cells."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from faultline.experiment.axes import parse_axes, parse_axis
from faultline.experiment.cell import Cell
from faultline.experiment.commit_modes import COMMIT_MODES
from faultline.experiment.common_parameters import OF_ENGINE
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.named_settings import require_known
from faultline.experiment.workloads.registry import owners
from faultline.system.errors import ConfigError
from faultline.system.text import suggest

MAX_CONFIGURATIONS = 1024
# Preset of a form without one.
DEFAULT = "default"


@dataclass(frozen=True)
class PlannedCell:
    """One cell that a sweep is to measure."""

    config: Configuration
    repetition: int
    series: str

    @property
    def cell(self) -> Cell:
        return Cell(self.config.config_id, self.repetition, self.series)

    @property
    def label(self) -> str:
        """Readable part of the run id, such as 997a6e53b98f-r0."""
        return f"{self.config.config_id}-r{self.repetition}"


@dataclass(frozen=True)
class Matrix:
    """Axes (values by field) over fixed parameters.

    `controls`: number of control runs, which repeat the first point without a fault. A parameter that only some of the
    workloads on the axis `workload` have, or some of the engines on `engine`, is omitted for the others. So is a value
    of the axis `commit_mode`.
    """

    axes: Mapping[str, Sequence[Any]]
    fixed: Mapping[str, Any]
    repetitions: int = 1
    controls: int = 0

    @classmethod
    def under(cls, params: Mapping[str, Any], axes: Sequence[str]) -> Matrix:
        """Return the matrix of the parameters of a form or preset; missing ones are derived."""
        fixed = {name: params[name] for name in Configuration.model_fields if name in params and name not in axes}
        return cls({name: params[name] for name in axes}, fixed, params["repetitions"], params["controls"])

    def configurations(self) -> list[Configuration]:
        """Return every point of the matrix. Raises ConfigError naming the invalid axis or key."""
        for name, values in self.axes.items():
            require_known(name, Configuration.model_fields)
            if not values:
                raise ConfigError(f"{name}: got an empty axis; expected at least one value")
        size = self.repetitions
        for values in self.axes.values():
            size *= len(values)
        if "none" not in self.axes.get("fault", ()):  # else each point has its own control
            size += self.controls
        if size > MAX_CONFIGURATIONS:
            longest = max(self.axes, key=lambda name: len(self.axes[name]))
            controls = f", {self.controls} of them controls," if self.controls else ""
            raise ConfigError(
                f"{longest}: got {size} experiments{controls}; expected at most {MAX_CONFIGURATIONS}; "
                "fix: split this axis over several sweeps"
            )
        if "fault" in self.axes and self.fixed.get("fault_plan"):
            self._check_plan([value for value in self.axes["fault"] if value != "none"])
        found = self._points()
        unlisted = {one.fault for one in found} - set(self.axes.get("fault", ())) if "fault" in self.axes else set()
        if unlisted:
            raise ConfigError(
                f"fault_plan: got first victim {unlisted.pop()}; expected one on the axis fault; fix: add it there"
            )
        return found

    def _points(self) -> list[Configuration]:
        """Return every point. Raises ConfigError with the first problem and the number of invalid points."""
        found: list[Configuration] = []
        first = ""
        refused: dict[str, list[str]] = {}  # invalid points by key
        for values in itertools.product(*self.axes.values()):
            point = dict(zip(self.axes, values, strict=True))
            if self._has_mode_of_another(point):
                continue
            try:
                found.append(self._point(point))
            except ConfigError as error:
                where = ", ".join(f"{name} {value}" for name, value in point.items())
                first = first or str(error)
                refused.setdefault(str(error).partition(": ")[0], []).append(where)
        if refused:
            invalid = [point for points in refused.values() for point in points]
            if len(invalid) == 1:
                raise ConfigError(first)
            more = f"; other invalid keys: {', '.join(list(refused)[1:])}" if len(refused) > 1 else ""
            examples = "; ".join(invalid[:2]) + ("; …" if len(invalid) > 2 else "")
            size = len(found) + len(invalid)
            raise ConfigError(f"{first} (invalid: {len(invalid)} of {size} points: {examples}{more})")
        return list(dict.fromkeys(found))  # points may coincide without parameters of other workloads

    def _check_plan(self, victims: Sequence[str]) -> None:
        """Raise ConfigError unless the axis `fault` has exactly one victim, that of the plan."""
        if len(victims) > 1:
            raise ConfigError(
                f"fault_plan: got {' and '.join(victims)} on the axis fault; expected one of them; "
                "fix: remove the others"
            )
        if not victims:
            raise ConfigError("fault_plan: got only none on the axis fault; fix: add executor, or remove the plan")

    def _point(self, values: dict[str, Any]) -> Configuration:
        """Return one configuration.

        A control run has no fault time or plan. Parameters of other workloads are omitted.
        """
        control = {"fault_at_s": None, "fault_plan": None} if values.get("fault") == "none" else {}
        merged = {**self.fixed, **values, **control}
        able = {values.get("workload"), values.get("engine")}
        omitted = {key for key, those in self.only_of.items() if able.isdisjoint(those)}
        return parse_configuration({key: value for key, value in merged.items() if key not in omitted})

    def _has_mode_of_another(self, point: Mapping[str, Any]) -> bool:
        """Return whether the point's engine lacks its commit mode, while others on the axes fit each of both."""
        engines, modes = (self.axes.get(axis, ()) for axis in ("engine", "commit_mode"))

        def fits(engine: Any, mode: Any) -> bool:
            return mode in COMMIT_MODES and engine in COMMIT_MODES[mode].engines

        if not engines or not modes or fits(point["engine"], point["commit_mode"]):
            return False
        is_used = any(fits(engine, point["commit_mode"]) for engine in engines)
        return is_used and any(fits(point["engine"], mode) for mode in modes)

    @cached_property
    def only_of(self) -> dict[str, list[str]]:
        """Workloads or engines by parameter, for parameters that only some of those on the axis have."""
        workloads, engines = ([str(name) for name in self.axes.get(axis, ())] for axis in ("workload", "engine"))
        found = {}
        for key in {**self.fixed, **self.axes}:
            name = key.partition(".")[0]
            with_key = owners(name)
            for some, every in (
                ([one for one in workloads if one in with_key], workloads),
                ([one for one in engines if name in OF_ENGINE.get(one, ())], engines),
            ):
                if some and len(some) < len(every):
                    found[key] = some
        return found

    def cells(self, series: str) -> list[PlannedCell]:
        """Return all distinct cells, control runs last."""
        points = self.configurations()
        planned = [
            PlannedCell(config, repetition, series) for config in points for repetition in range(self.repetitions)
        ]
        if "none" not in self.axes.get("fault", ()):  # else each point has its own control
            control = control_of(points[0])
            planned += [PlannedCell(control, repetition, series) for repetition in range(self.controls)]
        return list(dict.fromkeys(planned))


@dataclass(frozen=True)
class MatrixSpec:
    """One matrix: `axes` are field names; a preset maps each axis to its values, and other fields to one value.

    A sweep may have further axes, of any parameter; those of a preset are in its `axes`.
    """

    name: str
    title: str
    text: str
    axes: tuple[str, ...]
    presets: Mapping[str, Mapping[str, Any]]
    # Whether a search for the highest sustained rate can follow.
    search: bool = False
    # By parameter, the axis for whose preset values a preset sets it; it is dropped if that axis has other values.
    bound: Mapping[str, str] = field(default_factory=dict)

    def values(self, preset: str) -> dict[str, Any]:
        """Return the values of `preset`. Raises ConfigError for an unknown preset."""
        if preset not in self.presets:
            raise ConfigError(f"preset: got {preset!r}; expected a known preset{suggest(preset, self.presets)}")
        return {"repetitions": 1, "controls": 0, **self.presets[preset]}

    def preset_values(self, name: str) -> dict[str, Any]:
        """Return the values of a parameter by preset; presets without a value are omitted."""
        found = ((preset, self.values(preset)) for preset in self.presets)
        return {preset: values[name] for preset, values in found if name in values}

    def resolve(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a sweep: those of `params`, with preset values for empty ones.

        A parameter without either value is omitted and derived from the others, as in a single experiment. Each axis
        becomes a list; `axes` names them all, those of the matrix first. Raises ConfigError naming the key.
        """
        defaults = self.values(str(params.get("preset") or DEFAULT))
        given = {name: value for name, value in params.items() if value not in (None, "")}
        preset_axes, further = parse_axes(defaults.pop("axes", None)), parse_axes(given.pop("axes", None))
        for name in further.keys() & given.keys() & Configuration.model_fields.keys():
            raise ConfigError(f"{name}: got an axis and a single value; fix: remove one")
        for name in self.axes:
            if name in given:
                given[name] = parse_axis(name, given[name])
        for name, axis in self.bound.items():
            if axis in given and given[axis] != list(defaults[axis]):
                defaults.pop(name, None)
                preset_axes.pop(name, None)
        further = preset_axes | further
        others = {name: None for name in params if name not in Configuration.model_fields}
        found = {**others, **defaults, **given, **further}
        axes = (*(name for name in self.axes if name in found), *(name for name in further if name not in self.axes))
        return {**found, "axes": axes}

    def matrix(self, params: Mapping[str, Any]) -> Matrix:
        """Return the matrix of resolved parameters."""
        return Matrix.under(params, params["axes"])

    def preset_matrix(self, preset: str = DEFAULT) -> Matrix:
        """Return the matrix of a preset without further parameters."""
        return self.matrix(self.resolve({"preset": preset}))


def control_of(config: Configuration) -> Configuration:
    """Return the same experiment without a fault."""
    return parse_configuration({**config.model_dump(), "fault": "none", "fault_at_s": None, "fault_plan": None})


def plan(cells: Iterable[PlannedCell], valid: Iterable[Cell], *, only_missing: bool, seed: int) -> list[PlannedCell]:
    """Return the cells to measure; `only_missing` omits `valid`, those with a usable record.

    The order is one block per repetition, so that slow changes of the machine affect all configurations equally. `seed`
    fixes the random order within a block.
    """
    done = set(valid) if only_missing else set()
    blocks: dict[int, list[PlannedCell]] = {}
    for cell in cells:
        blocks.setdefault(cell.repetition, []).append(cell)
    ordered = []
    for repetition in sorted(blocks):
        # Shuffle before cells are omitted, so that a resumed sweep keeps its order.
        random.Random(f"{seed} {repetition}").shuffle(blocks[repetition])
        ordered += [cell for cell in blocks[repetition] if cell.cell not in done]
    return ordered


def plan_pairs(
    cells: Iterable[PlannedCell], other: str, valid: Iterable[Cell], *, only_missing: bool, seed: int
) -> list[PlannedCell]:
    """Return the cells to measure as pairs: each in its own series and in the series `other`.

    The cells of a pair are adjacent, in random order, so that neither side always runs on the warmer machine. Pairs are
    shuffled within a repetition; `seed` fixes the order.
    """
    pairs = plan(cells, (), only_missing=False, seed=seed)
    done = set(valid) if only_missing else set()
    ordered = []
    for cell in pairs:
        both = [cell, replace(cell, series=other)]
        random.Random(f"{seed} {cell.label}").shuffle(both)
        ordered += [one for one in both if one.cell not in done]
    return ordered
