"""Plan of a nightly run from its form: cells, reference build, and the deciding figure of each configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from faultline.comparison.statistics.estimate import MIN_REPETITIONS
from faultline.experiment.nightly_file import PAIRS, is_nightly, nightly_configurations, nightly_files
from faultline.system.errors import ConfigError
from faultline.system.settings import load_settings
from faultline.system.text import pluralize, suggest

if TYPE_CHECKING:
    from faultline.comparison.coverage import Gap
    from faultline.experiment.build import BuildSpec
    from faultline.experiment.config import Configuration
    from faultline.experiment.matrix import PlannedCell
    from faultline.records.sweep_plan import ReferenceBuild, SweepPlan
    from faultline.system.settings import Settings


def nightly_cells(params: Mapping[str, Any], date: str) -> list[Any]:
    """Return the distinct cells: each configuration of the set and, without a reference build, its controls.

    Raises ConfigError naming the place in the set and the wrong key.
    """
    from faultline.experiment.matrix import PlannedCell, control_of

    paired = params.get("baseline") is not None
    repetitions = params["repetitions"] or (PAIRS if paired else MIN_REPETITIONS)
    planned: list[PlannedCell] = []
    for config in nightly_configurations(params["set"]):
        planned += [PlannedCell(config, repetition, date) for repetition in range(repetitions)]
        # Pairs contain their own noise estimate.
        if config.planned_faults() and not paired:
            control = control_of(config)
            planned += [PlannedCell(control, repetition, date) for repetition in range(params["controls"])]
    return list(dict.fromkeys(planned))


def describe_nightly_plan(params: Mapping[str, Any]) -> tuple[list[Configuration], list[PlannedCell], list[str]]:
    """Return the configurations, the cells (of pairs, both sides), and lines that describe measurement and verdict.

    Does not check out builds. Raises ConfigError naming the key.
    """
    from faultline.comparison.compare import metrics_named
    from faultline.comparison.slo import parse_slos
    from faultline.lifecycle.build_checkout import commit_of

    configs, cells = nightly_configurations(params["set"]), nightly_cells(params, "a nightly run")
    metrics_named(params["metrics"])
    limits = [f"fails beyond its limit: {one.metric.name} {one.text}" for one in parse_slos(params.get("limits"))]
    if (spec := _reference_spec(params, configs)) is None:
        repetitions = params["repetitions"] or MIN_REPETITIONS
        description = [
            f"each {repetitions} times, with {params['controls']} control runs for those with faults",
            f"compared with up to {params['baseline_nights']} earlier nightly runs, by {', '.join(params['metrics'])}",
            *limits,
        ]
        return configs, cells, description
    if spec.revision is not None:
        commit_of(spec.revision, load_settings(), key="baseline")
    judged = dict.fromkeys(primary_figures(configs, params["primary"]).values())
    pairs = pairs_per_configuration(params, len(configs))
    description = [f"in {pairs} pairs with {spec.text}", f"judged by {', '.join(judged)}", *limits]
    return configs, [cell for cell in cells for _ in range(2)], description


def reference_of_nightly_run(params: Mapping[str, Any], date: str) -> ReferenceBuild | None:
    """Check out the reference build and return it; None if the form names none.

    Raises ConfigError for an unusable build, an unknown figure, and too few pairs.
    """
    from faultline.lifecycle.build_checkout import build_of
    from faultline.lifecycle.environment import installed_build
    from faultline.records.sweep_plan import BASELINE, ReferenceBuild

    settings, configs = load_settings(), nightly_configurations(params["set"])
    if (spec := _reference_spec(params, configs)) is None:
        return None
    primary = primary_figures(configs, params["primary"])
    pairs_per_configuration(params, len(primary))
    brought = build_of(spec, settings, key="baseline")
    # Pinned by commit: a branch may move during the run.
    pinned = {**spec.as_mapping(), "revision": brought.commit}
    build = installed_build(settings, brought, configs)
    return ReferenceBuild(series=f"{date}{BASELINE}", build=build, spec=pinned, primary=primary)


def _reference_spec(params: Mapping[str, Any], configs: Sequence[Configuration]) -> BuildSpec | None:
    """Return the reference build that the form names; None if it names none.

    Raises ConfigError for an unusable build, and for a primary figure without a build.
    """
    from faultline.experiment.build import parse_build
    from faultline.lifecycle.build_checkout import check_builds

    if params["baseline"] is None:
        if params["primary"]:
            raise ConfigError("primary: needs a baseline; fix: add baseline, or omit primary")
        return None
    spec = parse_build(params["baseline"], "baseline")
    check_builds(spec, configs, key="baseline")
    return spec


def nightly_build_mismatch(gap: Gap, plan: SweepPlan | None, settings: Settings) -> str | None:
    """Return why a nightly run cannot be completed with the present build; None if it can.

    Called before the DAG run is cleared; a resumed sweep is checked when it is planned.
    """
    from faultline.experiment.config import parse_configuration
    from faultline.lifecycle.environment import installed_build
    from faultline.orchestration.planning import build_mismatch

    if plan is None or not is_nightly(gap.matrix) or len(gap.missing) == gap.planned:
        return None
    form = next((one.form for one in nightly_files(settings.root) if one.dag_id == gap.matrix), {})
    configs = [parse_configuration(cell.config) for cell in plan.cells]
    build = form.get("build") or installed_build(settings, configurations=configs)
    remedy = "check that build out, or leave the run incomplete"
    return build_mismatch(f"{gap.matrix}: {gap.series}", plan.build, build, remedy=remedy)


def pairs_per_configuration(params: Mapping[str, Any], configurations: int) -> int:
    """Return the number of pairs per configuration.

    Raises ConfigError if they are too few for a verdict.
    """
    from faultline.comparison.regression_gate.verdict import min_pairs

    need, pairs = min_pairs(configurations), int(params["repetitions"] or PAIRS)
    if pairs < need:
        many = pluralize(configurations, "configuration")
        raise ConfigError(f"repetitions: got {pairs} pairs for {many}; expected {need} or more, ideally {PAIRS}")
    return pairs


def primary_figures(configs: Sequence[Configuration], given: Sequence[str] | None) -> dict[str, str]:
    """Return the deciding figure of each configuration, by its id.

    Raises ConfigError for an unknown figure.
    """
    from faultline.comparison.decisions import FIGURES
    from faultline.comparison.regression_gate.nightly_pairs import default_primary

    names = list(given or [])
    if len(names) not in (0, 1, len(configs)):
        raise ConfigError(
            f"primary: got {len(names)} figures for {len(configs)} configurations; expected one or one for each"
        )
    for name in names:
        if name not in FIGURES:
            raise ConfigError(
                f"primary: got {name!r}; expected a figure with a better direction{suggest(name, FIGURES)}"
            )
    chosen = names * len(configs) if len(names) == 1 else names or [default_primary(one) for one in configs]
    return {config.config_id: name for config, name in zip(configs, chosen, strict=True)}
