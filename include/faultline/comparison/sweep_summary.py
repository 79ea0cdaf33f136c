"""The answer of a sweep: what each axis does, which configurations no other beats, and which one to choose."""

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
from faultline.records.record import JUDGED
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings
from faultline.system.text import suggest

# Each value of these is another program: what lies between two of them is no effect of anything, unless asked for.
PROGRAMS = frozenset({"workload", "query"})


@dataclass(frozen=True)
class SweepSummary:
    """What a sweep tells, of one build.

    `axes`: in which its points differ. `fewest`, `most`: valid repetitions of a configuration. `advice` is None where
    there is nothing to choose, and `why` says so. `placebo`: None where no control was asked. `allocation`: scatter of
    recoveries between and within runs, None where no run has several.
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
        """Whether there was anything to ask: two values of an axis, or two configurations to choose from."""
        return bool(self.effects) or self.recommendation is not None

    @property
    def is_unrepeated(self) -> bool:
        """Whether each configuration was measured once, so that nothing can be told."""
        return self.max_repetitions == 1


def summary_of(entries: Sequence[IndexEntry], wish: Objective | None = None) -> SweepSummary | None:
    """The answer of the newest group among `entries`; None without a valid record.

    `wish`: what the advice is for; by default the least CPU among those that recover. Raises ConfigError for a wish
    that names what no configuration has measured.
    """
    sound = [entry for entry in entries if entry.sound]
    if not sound:
        return None
    group = groups_of(sound)[0]
    members = [entry for entry in sound if entry.group == group]
    points = points_of(members)
    breaking, _ = split_controls(points)
    axes = axes_of(points)
    choice = choice_of(points_of([entry for entry in entries if entry.group == group]))
    advice, why = None, ""
    try:
        advice = recommend(choice, wish or _default_objective(choice))
    except ConfigError as error:
        if wish is not None and len(choice.candidates) > 1:
            raise
        why = str(error)
    counts = [len(point.valid) for point in breaking]
    return SweepSummary(
        axes=tuple(axes),
        effects=tuple(axis_effects(points, axes, [axis for axis in axes if axis.key not in PROGRAMS])),
        choice=choice,
        front=front_of(choice.candidates),
        recommendation=advice,
        why=why,
        min_repetitions=min(counts),
        max_repetitions=max(counts),
        recoveries=has_recoveries(members),
        placebo=placebo_of(members),
        allocation=allocation_of(breaking, entries),
    )


def _default_objective(choice: ParetoChoice) -> Objective:
    """The least CPU; of those that recover, where something was broken. Raises ConfigError where no load was asked for:
    what uses less CPU may then just do less."""
    unpaced = any(not has_schedule(point.config) for one in choice.candidates for point in one.points)
    if unpaced and len(choice.candidates) > 1:
        raise ConfigError("as fast as it can, an engine that uses less CPU may just do less; look at its throughput")
    recovers = any(one.figure(COSTS["recovery"]) is not None for one in choice.candidates)
    return Objective("cpu", {"recovery": math.inf} if recovers else {})


def objective_of(minimise: str | None, limits: Mapping[str, tuple[str, float | None]]) -> Objective | None:
    """What somebody asks for: `limits` by cost, each with what it is called where it is asked. None for nothing.

    Raises ConfigError for an unknown cost, and for a limit that is none.
    """
    if minimise is not None and minimise not in COSTS:
        raise ConfigError(f"--minimise {minimise}: nothing to have least of{suggest(minimise, COSTS)}")
    given = {cost: (name, limit) for cost, (name, limit) in limits.items() if limit is not None}
    for name, limit in given.values():
        if not (math.isfinite(limit) and limit > 0):
            raise ConfigError(f"{name} {limit:g}: is no limit; give a number above 0")
    if minimise is None and not given:
        return None
    return Objective(minimise or "cpu", {cost: limit for cost, (_, limit) in given.items()})


def summary_of_sweep(sweep: str, settings: Settings, wish: Objective | None = None) -> SweepSummary:
    """The answer of a sweep by its name. Raises ConfigError when it has no valid record, or records that do not mix."""
    answer = summary_of(_select_sweep(sweep, settings).entries, wish)
    if answer is None:
        raise ConfigError(f"{sweep}: has no valid record; measure it again")
    return answer


def effects_of_axis(sweep: str, key: str, settings: Settings) -> list[Effect]:
    """The effects along one axis of a sweep, corrected for these alone.

    Raises ConfigError for an axis that the sweep does not vary, naming those that it does.
    """
    points = points_of(_select_sweep(sweep, settings).entries)
    axes = axes_of(points)
    keys = [axis.key for axis in axes]
    if key not in keys:
        if not keys:
            raise ConfigError(f"--along {key}: {sweep} has valid records of one configuration only; it varies nothing")
        raise ConfigError(f"--along {key}: {sweep} does not vary it; it varies {', '.join(keys)}")
    found = axis_effects(points, axes, [axis for axis in axes if axis.key == key])
    if not found:
        raise ConfigError(
            f"--along {key}: no two configurations of {sweep} differ in it alone; of the axes "
            f"{', '.join(keys)} give another"
        )
    return found


def _select_sweep(sweep: str, settings: Settings) -> RecordGroup:
    index = Index(settings.results, settings.home)
    index.refresh()
    return select_group(index, sweep, settings.root)


# How far the recoveries of a page can be relied on: what the rule of the end says of controls, which broke nothing.


# More controls than this share called unrecovered: the rule errs too often here.
MAX_UNRECOVERED = 0.05
# Instants of two clocks differ by less.
_CLOCKS_S = 0.01


@dataclass(frozen=True)
class Placebo:
    """Of `controls`, so many were called `unrecovered`; `macro_s` is the median of all (infinite where half were), and
    `resolution_s` how exactly it is known, None where none was called recovered."""

    controls: int
    unrecovered: int
    macro_s: float
    resolution_s: float | None

    @property
    def share(self) -> float:
        """Of controls that the rule calls unrecovered."""
        return self.unrecovered / self.controls

    @property
    def is_reliable(self) -> bool:
        """Whether the rule finds nothing where nothing was, as far as these controls tell."""
        return (
            self.share <= MAX_UNRECOVERED
            and self.resolution_s is not None
            and self.macro_s <= self.resolution_s + _CLOCKS_S
        )


def placebo_of(entries: Sequence[IndexEntry]) -> Placebo | None:
    """Over the valid controls among `entries`; None where none has a placebo."""
    asked = [entry for entry in entries if entry.sound and "placebo.recovered" in entry.metrics]
    if not asked:
        return None
    macros = [math.inf if (value := value_of(entry, "placebo.macro_s")) is None else value for entry in asked]
    blurs = [blur for entry in asked if (blur := value_of(entry, "placebo.resolution_s")) is not None]
    return Placebo(
        len(asked),
        sum(entry.metrics["placebo.recovered"] is False for entry in asked),
        statistics.median(macros),
        statistics.median(blurs) if blurs else None,
    )


def has_recoveries(entries: Sequence[IndexEntry]) -> bool:
    """Whether a valid record of them holds a recovery."""
    return any(entry.sound and "recovery.recovered" in entry.metrics for entry in entries)


# Invalid runs beside an answer: their number, their reasons, and the effects that they would give if they counted.


@dataclass(frozen=True)
class InvalidRuns:
    """Runs without a usable record, of the group that the answer is about.

    `entries`: one for each of them. `usable`: runs that have one. `codes`: runs by the code of their first reason.
    `effects`: of usable and invalid runs together, which support no claim.
    """

    entries: tuple[IndexEntry, ...]
    usable: int
    codes: Mapping[str, int]
    effects: tuple[Effect, ...]

    @property
    def runs(self) -> int:
        """The number of these runs."""
        return len(self.entries)


def invalid_runs_of(entries: Sequence[IndexEntry]) -> InvalidRuns | None:
    """The invalid runs among `entries`; None if each run has a usable record, or no figures.

    Of a run that was measured again without success, the newest record counts.
    """
    judged = [entry for entry in entries if entry.status in JUDGED]
    if not judged:
        return None
    group = groups_of([entry for entry in judged if entry.sound] or judged)[0]
    newest: dict[tuple[str, int], IndexEntry] = {}
    for entry in sorted((one for one in judged if one.group == group), key=lambda one: (one.sound, one.attempt)):
        newest[entry.config_id, entry.repetition] = entry
    lacking = [entry for entry in newest.values() if not entry.sound and entry.metrics]
    if not lacking:
        return None
    points = points_of([entry if entry.sound else replace(entry, status="valid") for entry in newest.values()])
    axes = axes_of(points)
    return InvalidRuns(
        entries=tuple(lacking),
        usable=sum(entry.sound for entry in newest.values()),
        codes=Counter(next(iter(entry.reasons), "unknown").partition(":")[0] for entry in lacking),
        effects=tuple(axis_effects(points, axes, [axis for axis in axes if axis.key not in PROGRAMS])),
    )
