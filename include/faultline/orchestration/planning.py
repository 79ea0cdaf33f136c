"""Translation of a DAG run's parameters to the order of one experiment or to the cells of a sweep, without Airflow.

An order is a configuration with the labels of its record.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from faultline.experiment.build import parse_build
from faultline.experiment.cell import Cell, sweep_id_of
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.matrix import PlannedCell, plan_pairs
from faultline.experiment.matrix import plan as plan_cells
from faultline.orchestration.cells import OLD_KEEP_INVALID
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.records.sweep_plan import SweepPlan, SweepPlans, cells_of
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings
from faultline.system.text import suggest

if TYPE_CHECKING:
    from faultline.experiment.matrix import Matrix
    from faultline.lifecycle.prepare import Order
    from faultline.records.sweep_plan import ReferenceBuild, SequentialPlan

BOOKKEEPING = ("repetition", "series", "build", "matrix", "sweep_id", "parent_run_id", "logical_date")
BUILD_SPEC = "build_spec"
# Parameters of a run that the experiment itself reads.
EXPERIMENT_SWITCHES = ("keep_topics", "only_missing")
SWEEP_PARAMS = (
    "preset", "axes", "repetitions", "controls", "only_missing", "max_measurements", "keep_invalid", "series", "build",
    "decide", "resume",
)  # fmt: skip
# Defaults of a search for the highest sustained rate, in input records/s.
SEARCH_PARAMS: Mapping[str, Any] = {"search": False, "search_low": 100.0, "search_high": 50_000.0}
HIGHEST_SEARCHED = 500_000.0


def reject_unknown(given: Iterable[str], known: Collection[str]) -> None:
    """Raise ConfigError for a key without a form field, because Airflow accepts any key in an API call."""
    for key in given:
        if key not in known:
            raise ConfigError(f"{key}: unknown parameter{suggest(key, known)}")


def order_of(params: Mapping[str, Any], run_id: str | None = None) -> Order:
    """Return the order of run `run_id` from its parameters.

    Raises ConfigError naming the key.
    """
    from faultline.lifecycle.prepare import Order

    known = Configuration.model_fields
    reject_unknown(params, [*known, *BOOKKEEPING, BUILD_SPEC, *EXPERIMENT_SWITCHES])
    config = parse_configuration({key: value for key, value in params.items() if key in known})
    given: dict[str, Any] = {key: params[key] for key in BOOKKEEPING if params.get(key) is not None}
    given |= {key: bool(params.get(key)) for key in EXPERIMENT_SWITCHES}
    build_spec = parse_build(params.get(BUILD_SPEC), BUILD_SPEC)
    return Order(config, run_id=run_id, build_spec=build_spec, **given)


def order_of_run(params: Mapping[str, Any], run_id: str) -> Order:
    """Return the order of a run of the DAG `experiment`; a manual run is its own sweep."""
    return order_of({**params, "sweep_id": params.get("sweep_id") or sweep_id_of(run_id)}, run_id)


@dataclass(frozen=True)
class SweepRun:
    """DAG run that plans a sweep.

    `preflight`: checks targets by name before their cells are measured.
    """

    matrix: str
    run_id: str
    settings: Settings
    preflight: Callable[[Settings, Iterable[str]], None]

    def plan(self, given: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
        """Return the cells to measure, as arguments of `run_experiment`, and the run's note.

        Raises ConfigError naming the wrong value.
        """
        from faultline.lifecycle.environment import installed_build
        from faultline.reports.notes import plan_note

        # Runs of an earlier version may have this parameter; only their cells read it.
        given = {key: value for key, value in given.items() if key != OLD_KEEP_INVALID}
        reject_unknown(given, [*Configuration.model_fields, *SWEEP_PARAMS, *SEARCH_PARAMS])
        if given["resume"]:
            return self._resume(given)
        spec = MATRICES[self.matrix]
        params = spec.resolve(given)
        check_search(params)
        matrix = spec.matrix(params)
        build = params["build"] or installed_build(self.settings, configurations=matrix.configurations())
        series = params["series"] or build
        cells, question = self._cells(matrix, params, series)
        planned = self.write_plan(cells, series=series, build=build, params=params, question=question)
        # The note shows the parsed values, from which the input may differ in form.
        return planned, plan_note(matrix, params, len(cells), len(planned))

    def _cells(
        self, matrix: Matrix, params: Mapping[str, Any], series: str
    ) -> tuple[list[PlannedCell], SequentialPlan | None]:
        """Return all cells of a sweep, and its sequential plan if it has one.

        Raises ConfigError for a comparison that cannot be decided.
        """
        if params["decide"] is None:
            return matrix.cells(series), None
        # The import of the statistics is slow, and only sequential sweeps need it.
        from faultline.comparison.decisions import planned_cells

        plans = SweepPlans(self.settings.results).of_matrix(self.matrix)
        return planned_cells(matrix, params["decide"], series, plans, fresh=not params["only_missing"])

    def _resume(self, given: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
        """Return the missing cells of another sweep, in its series.

        Raises ConfigError if they do not fit.
        """
        from faultline.lifecycle.environment import installed_build
        from faultline.reports.notes import resumed_plan_note

        name = given["resume"]
        filled = [key for key, value in given.items() if value not in (None, "") and key in Configuration.model_fields]
        if filled:
            raise ConfigError(
                f"{filled[0]}: conflicts with resume, which fixes it; fix: leave it empty, or omit resume"
            )
        manifests = SweepPlans(self.settings.results)
        plan = manifests.read(name)
        if plan is None or plan.matrix != self.matrix:
            known = [one.sweep_id for one in manifests.of_matrix(self.matrix)]
            raise ConfigError(f"resume: got {name}; expected a sweep of {self.matrix}{suggest(name, known)}")
        cells = [PlannedCell(parse_configuration(one.config), one.repetition, plan.series) for one in plan.cells]
        build = given["build"] or installed_build(self.settings, configurations=[one.config for one in cells])
        if refusal := build_mismatch(f"resume: {name}", plan.build, build, remedy="trigger a sweep of its own"):
            raise ConfigError(refusal)
        how = {**given, "only_missing": True, "axes": plan.axes}
        planned = self.write_plan(
            cells, series=plan.series, build=build, params=how, question=plan.decide, since=plan.since
        )
        return planned, resumed_plan_note(name, len(cells), len(planned))

    def write_plan(
        self,
        cells: list[PlannedCell],
        *,
        series: str,
        build: str,
        params: Mapping[str, Any],
        logical_date: str | None = None,
        schedule: str | None = None,
        question: SequentialPlan | None = None,
        baseline: ReferenceBuild | None = None,
        since: str | None = None,
    ) -> list[dict[str, Any]]:
        """Write the sweep plan of this run; return its arguments of `run_experiment`.

        `schedule`: cron expression of a nightly run. `question`: sequential plan. `baseline`: reference build, measured
        in pairs with each cell. `since`: time before which records do not count; by default the present time, or none
        with `only_missing`. Raises ConfigError if another run has a sweep with this id, and for an unusable target.
        """
        sweep_id = sweep_id_of(self.run_id)
        labels: dict[str, Any] = {"matrix": self.matrix, "sweep_id": sweep_id, "series": series, "build": build}
        labels |= {"logical_date": logical_date} if logical_date else {}
        planned_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        since = since or (None if params["only_missing"] else planned_at)
        about = {"logical_date": None, **labels, "run_id": self.run_id, "planned_at": planned_at, "schedule": schedule}
        options: dict[str, Any] = {"decide": question, "baseline": baseline, "since": since}
        records = Store(self.settings.results).query()
        if question is not None:
            _check_one_build(records, {planned.config.config_id for planned in cells}, series, build)
        plan = SweepPlan(**about, **options, axes=params.get("axes") or (), cells=cells_of(cells))
        measured = [Cell.of(one) for one in records if one.is_usable and plan.counts(one)]
        how: dict[str, Any] = {"only_missing": params["only_missing"], "seed": params.get("seed") or 1}
        ordered = (
            plan_pairs(cells, baseline.series, measured, **how) if baseline else plan_cells(cells, measured, **how)
        )
        self.preflight(self.settings, sorted({planned.config.target for planned in ordered}))
        SweepPlans(self.settings.results).write(plan)
        names = _config_names(cells)
        sides = {series: labels}
        if baseline:
            other = {"series": baseline.series, "build": baseline.build, "build_spec": baseline.spec}
            sides[baseline.series] = {**labels, **other}
        return [
            {
                "trigger_run_id": child_run_id(sweep_id, planned, sides[planned.series]["build"]),
                "conf": {
                    **planned.config.model_dump(mode="json"),
                    **sides[planned.series],
                    "repetition": planned.repetition,
                    "parent_run_id": self.run_id,
                    "only_missing": since is None,
                },
                "max_measurements": params["max_measurements"],
                "cell": f"{names[planned.config.config_id]}, r{planned.repetition}"
                + (", baseline" if baseline and planned.series == baseline.series else ""),
            }
            for planned in ordered
        ]


def build_mismatch(what: str, measured_with: str, at_hand: str, *, remedy: str) -> str | None:
    """Return the problem if a sweep or nightly run was begun with another build than the one at hand, else None."""
    if at_hand == measured_with:
        return None
    return f"{what}: got build {at_hand}; expected {measured_with}, as measured before; fix: {remedy}"


def check_search(params: Mapping[str, Any]) -> None:
    """Raise ConfigError if the form's search has an empty range of rates."""
    if params.get("search") and params["search_low"] >= params["search_high"]:
        raise ConfigError(
            f"search_high: got {params['search_high']:g}; expected more than search_low ({params['search_low']:g})"
        )


def _config_names(cells: Sequence[PlannedCell]) -> Mapping[str, str]:
    from faultline.comparison.config_points import Point, names_of

    configs = {planned.config.config_id: planned.config for planned in cells}
    return names_of([Point(config_id, one.model_dump(mode="json"), ()) for config_id, one in configs.items()])


def _check_one_build(records: Iterable[Record], configurations: Collection[str], series: str, build: str) -> None:
    """Raise ConfigError if the series has records of another build for cells of a sequential plan.

    Such cells would count as measured but not contribute to a decision.
    """
    others = {
        one.build for one in records if one.is_usable and one.series == series and one.config_id in configurations
    }
    if others - {build}:
        raise ConfigError(
            f"series: got {series} with cells of build {min(others - {build})}; expected cells of {build} only; "
            "fix: name another series, or leave it empty"
        )


def child_run_id(sweep_id: str, planned: PlannedCell, build: str) -> str:
    """Return the id of the DAG run that measures a cell; it stays the same when the sweep is resumed.

    It contains the build, because a run that is reset keeps its original labels.
    """
    return f"{sweep_id}__{planned.label}-{zlib.crc32(f'{planned.series} {build}'.encode()):08x}"


def sweep_outcome(settings: Settings, run_id: str) -> str | None:
    """Print the decisions of a run's sweep; return the run's note, None without a plan."""
    from faultline.comparison.coverage import gap_of
    from faultline.comparison.decisions import decided_in_plan, decision_counts, decisions_of
    from faultline.records.index import Index
    from faultline.reports.notes import sweep_note
    from faultline.reports.views.allocation import decision_lines

    # Refresh the index here, so the first page view does not have to parse the new records.
    index = Index(settings.results, settings.home)
    index.refresh()
    sweep_id = sweep_id_of(run_id)
    plan = SweepPlans(settings.results).read(sweep_id)
    if plan is None:
        return None
    entries = index.all()
    decisions = decisions_of(plan, entries)
    for line in decision_lines(plan, entries, decisions):
        print(line)
    missing = len(gap_of(plan, entries, decided_in_plan(plan, entries)).missing)
    return sweep_note(Store(settings.results).query(sweep=sweep_id), sweep_id, missing, decision_counts(decisions))
