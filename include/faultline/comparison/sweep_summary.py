"""Summary of a sweep: effects, Pareto front and recommendation."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from faultline.comparison.allocation import Allocation, allocation_of
from faultline.comparison.candidates import COSTS, ParetoChoice, ParetoFront, choice_of, front_of
from faultline.comparison.config_points import Axis, axes_of, groups_of, points_of, split_controls
from faultline.comparison.effects import Effect, axis_effects
from faultline.comparison.recommendation import Objective, Recommendation, recommend
from faultline.comparison.selection import RecordGroup, select_group
from faultline.experiment.workloads.registry import has_schedule
from faultline.records.catalogue import value_of
from faultline.records.index import Index
from faultline.records.index_entry import IndexEntry
from faultline.records.record import WITH_FIGURES
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings
from faultline.system.text import suggest

# Each value of these axes is a different program, so a step along them is not an effect, except on request.
PROGRAMS = frozenset({"workload", "query"})


@dataclass(frozen=True)
class SweepSummary:
    """Summary of a sweep, for one build.

    `axes`: axes in which its configurations differ. `min_repetitions`, `max_repetitions`: usable repetitions per
    configuration. `recommendation`: None if there is nothing to choose, for the reason `why`. `placebo`: None without a
    placebo test. `allocation`: variation of recoveries between and within runs; None if no run has several recoveries.
    """

    axes: tuple[Axis, ...]
    effects: tuple[Effect, ...]
    choice: ParetoChoice
    front: ParetoFront
    recommendation: Recommendation | None
    why: str
    min_repetitions: int
    max_repetitions: int
    recoveries: bool
    placebo: Placebo | None
    allocation: Allocation | None = None

    @property
    def has_content(self) -> bool:
        """Whether the sweep has effects or a choice."""
        return bool(self.effects) or self.recommendation is not None

    @property
    def is_unrepeated(self) -> bool:
        """Whether each configuration was measured only once, so that no verdict is possible."""
        return self.max_repetitions == 1


def summary_of(entries: Sequence[IndexEntry], objective: Objective | None = None) -> SweepSummary | None:
    """Return the summary of the newest group among `entries`; None without a usable record.

    `objective`: objective of the recommendation; None: least CPU among the configurations that recover. Raises
    ConfigError if `objective` needs a figure that no configuration has.
    """
    usable = [entry for entry in entries if entry.is_usable]
    if not usable:
        return None
    group = groups_of(usable)[0]
    members = [entry for entry in usable if entry.group == group]
    points = points_of(members)
    breaking, _ = split_controls(points)
    axes = axes_of(points)
    choice = choice_of(points_of([entry for entry in entries if entry.group == group]))
    recommendation, why = None, ""
    try:
        recommendation = recommend(choice, objective or _default_objective(choice))
    except ConfigError as error:
        if objective is not None and len(choice.candidates) > 1:
            raise
        why = str(error)
    counts = [len(point.valid) for point in breaking]
    return SweepSummary(
        axes=tuple(axes),
        effects=tuple(axis_effects(points, axes, [axis for axis in axes if axis.key not in PROGRAMS])),
        choice=choice,
        front=front_of(choice.candidates),
        recommendation=recommendation,
        why=why,
        min_repetitions=min(counts),
        max_repetitions=max(counts),
        recoveries=has_recoveries(members),
        placebo=placebo_of(members),
        allocation=allocation_of(breaking, entries),
    )


def _default_objective(choice: ParetoChoice) -> Objective:
    """Return the default objective: least CPU, among those that recover if faults were injected.

    Raises ConfigError if a workload has no offered load, because lower CPU may then only mean less work.
    """
    unpaced = any(not has_schedule(point.config) for one in choice.candidates for point in one.points)
    if unpaced and len(choice.candidates) > 1:
        raise ConfigError("rate: unlimited, so lower CPU may mean less work; compare the throughput instead")
    recovers = any(one.figure(COSTS["recovery"]) is not None for one in choice.candidates)
    return Objective("cpu", {"recovery": math.inf} if recovers else {})


def objective_of(minimise: str | None, limits: Mapping[str, tuple[str, float | None]]) -> Objective | None:
    """Return the requested objective; None without a request.

    `limits`: by cost, the option's name and its value. Raises ConfigError for an unknown cost or an invalid limit.
    """
    if minimise is not None and minimise not in COSTS:
        raise ConfigError(f"--minimise: got {minimise}; expected a cost{suggest(minimise, COSTS)}")
    given = {cost: (name, limit) for cost, (name, limit) in limits.items() if limit is not None}
    for name, limit in given.values():
        if not (math.isfinite(limit) and limit > 0):
            raise ConfigError(f"{name}: got {limit:g}; expected a number above 0")
    if minimise is None and not given:
        return None
    return Objective(minimise or "cpu", {cost: limit for cost, (_, limit) in given.items()})


def summary_of_sweep(sweep: str, settings: Settings, objective: Objective | None = None) -> SweepSummary:
    """Return the summary of a sweep by name. Raises ConfigError without usable records of one build."""
    answer = summary_of(_select_sweep(sweep, settings).entries, objective)
    if answer is None:
        raise ConfigError(f"{sweep}: no usable record; fix: measure it again")
    return answer


def effects_of_axis(sweep: str, key: str, settings: Settings) -> list[Effect]:
    """Return the effects along one axis of a sweep, corrected for the number of these effects only.

    If the sweep does not vary the axis, raises ConfigError naming the axes that it does vary.
    """
    points = points_of(_select_sweep(sweep, settings).entries)
    axes = axes_of(points)
    keys = [axis.key for axis in axes]
    if key not in keys:
        if not keys:
            raise ConfigError(f"--along: got {key}; {sweep} has usable records of one configuration only")
        raise ConfigError(f"--along: got {key}; expected an axis of {sweep}: {', '.join(keys)}")
    found = axis_effects(points, axes, [axis for axis in axes if axis.key == key])
    if not found:
        raise ConfigError(
            f"--along: got {key}; expected one of {', '.join(keys)} in which two configurations of {sweep} differ alone"
        )
    return found


def _select_sweep(sweep: str, settings: Settings) -> RecordGroup:
    index = Index(settings.results, settings.home)
    index.refresh()
    return select_group(index, sweep, settings.root)


# Placebo test: the recovery rule applied to controls


# A larger share of unrecovered controls makes the recovery rule unreliable.
MAX_UNRECOVERED = 0.05
# Tolerance between two clocks, in s.
_CLOCKS_S = 0.01


@dataclass(frozen=True)
class Placebo:
    """Placebo test: the recovery rule applied to runs without a fault, of which `unrecovered` did not "recover".

    `controls`: number of these runs. `macro_s`: median macro recovery, infinite if half are unrecovered.
    `resolution_s`: its resolution; None if no control recovered.
    """

    controls: int
    unrecovered: int
    macro_s: float
    resolution_s: float | None

    @property
    def share(self) -> float:
        """Share of controls that are unrecovered by the recovery rule."""
        return self.unrecovered / self.controls

    @property
    def is_reliable(self) -> bool:
        """Whether the recovery rule finds no recovery time in controls."""
        return (
            self.share <= MAX_UNRECOVERED
            and self.resolution_s is not None
            and self.macro_s <= self.resolution_s + _CLOCKS_S
        )


def placebo_of(entries: Sequence[IndexEntry]) -> Placebo | None:
    """Return the placebo test over the usable controls; None if there is none."""
    tested = [entry for entry in entries if entry.is_usable and "placebo.recovered" in entry.metrics]
    if not tested:
        return None
    macros = [math.inf if (value := value_of(entry, "placebo.macro_s")) is None else value for entry in tested]
    resolutions = [value for entry in tested if (value := value_of(entry, "placebo.resolution_s")) is not None]
    return Placebo(
        len(tested),
        sum(entry.metrics["placebo.recovered"] is False for entry in tested),
        statistics.median(macros),
        statistics.median(resolutions) if resolutions else None,
    )


def has_recoveries(entries: Sequence[IndexEntry]) -> bool:
    """Return whether a usable record has a recovery."""
    return any(entry.is_usable and "recovery.recovered" in entry.metrics for entry in entries)


# Invalid runs: number, reasons and hypothetical effects


@dataclass(frozen=True)
class InvalidRuns:
    """Runs without a usable record, in the group (build and series) that the summary covers.

    `entries`: one per run. `usable`: number of usable runs. `codes`: number of runs by the code of their first reason.
    `effects`: effects computed from usable and invalid runs together, which support no claim.
    """

    entries: tuple[IndexEntry, ...]
    usable: int
    codes: Mapping[str, int]
    effects: tuple[Effect, ...]

    @property
    def runs(self) -> int:
        """Number of these runs."""
        return len(self.entries)


def invalid_runs_of(entries: Sequence[IndexEntry]) -> InvalidRuns | None:
    """Return the invalid runs among `entries`; None if each run has a usable record or no figures.

    A run that was repeated but never became usable counts with its newest record.
    """
    judged = [entry for entry in entries if entry.status in WITH_FIGURES]
    if not judged:
        return None
    group = groups_of([entry for entry in judged if entry.is_usable] or judged)[0]
    newest: dict[tuple[str, int], IndexEntry] = {}
    for entry in sorted((one for one in judged if one.group == group), key=lambda one: (one.is_usable, one.attempt)):
        newest[entry.config_id, entry.repetition] = entry
    unusable = [entry for entry in newest.values() if not entry.is_usable and entry.metrics]
    if not unusable:
        return None
    points = points_of([entry if entry.is_usable else replace(entry, status="valid") for entry in newest.values()])
    axes = axes_of(points)
    return InvalidRuns(
        entries=tuple(unusable),
        usable=sum(entry.is_usable for entry in newest.values()),
        codes=Counter(next(iter(entry.reasons), "unknown").partition(":")[0] for entry in unusable),
        effects=tuple(axis_effects(points, axes, [axis for axis in axes if axis.key not in PROGRAMS])),
    )
