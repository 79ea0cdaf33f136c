"""What a night measures of what its form says: cells, the baseline beside them, and the figure each is judged by."""

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


def nightly_cells(params: Mapping[str, Any], night: str) -> list[Any]:
    """Every configuration of the set, and its control where there is no baseline, as often as asked for; each once.

    Raises ConfigError naming the place in the set and the key that is wrong.
    """
    from faultline.experiment.matrix import PlannedCell, control_of

    paired = params.get("baseline") is not None
    repetitions = params["repetitions"] or (PAIRS if paired else MIN_REPETITIONS)
    planned: list[PlannedCell] = []
    for config in nightly_configurations(params["set"]):
        planned += [PlannedCell(config, repetition, night) for repetition in range(repetitions)]
        # Pairs need no noise floor: what they scatter is their own.
        if config.planned_faults() and not paired:
            control = control_of(config)
            planned += [PlannedCell(control, repetition, night) for repetition in range(params["controls"])]
    return list(dict.fromkeys(planned))


def describe_nightly_plan(params: Mapping[str, Any]) -> tuple[list[Configuration], list[PlannedCell], list[str]]:
    """What a night of this form would measure: its configurations, its cells (of pairs both sides), and in words how
    they are measured and judged. Brings no programs here. Raises ConfigError naming the key."""
    from faultline.comparison.compare import metrics_named
    from faultline.comparison.slo import parse_slos
    from faultline.lifecycle.build_checkout import commit_of

    configs, cells = nightly_configurations(params["set"]), nightly_cells(params, "a night")
    metrics_named(params["metrics"])
    limits = [f"red beyond its limit: {one.metric.name} {one.text}" for one in parse_slos(params.get("limits"))]
    if (spec := _reference_spec(params, configs)) is None:
        repetitions = params["repetitions"] or MIN_REPETITIONS
        words = [
            f"each {repetitions} times, with {params['controls']} controls where something is broken",
            f"judged beside up to {params['baseline_nights']} nights before it, by {', '.join(params['metrics'])}",
            *limits,
        ]
        return configs, cells, words
    if spec.revision is not None:
        commit_of(spec.revision, load_settings(), key="baseline")
    judged = dict.fromkeys(primary_figures(configs, params["primary"]).values())
    pairs = pairs_per_configuration(params, len(configs))
    words = [f"in {pairs} pairs with {spec.text}", f"judged by {', '.join(judged)}", *limits]
    return configs, [cell for cell in cells for _ in range(2)], words


def reference_of_nightly_run(params: Mapping[str, Any], night: str) -> ReferenceBuild | None:
    """What the night is measured beside; brings its programs here. None where the form names nothing.

    Raises ConfigError for a build that cannot be, a figure that is none, and pairs too few to tell anything.
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
    # By its commit: a branch may move on while the night lasts.
    pinned = {**spec.as_mapping(), "revision": brought.commit}
    build = installed_build(settings, brought, configs)
    return ReferenceBuild(series=f"{night}{BASELINE}", build=build, spec=pinned, primary=primary)


def _reference_spec(params: Mapping[str, Any], configs: Sequence[Configuration]) -> BuildSpec | None:
    """The build to pair with, None for none. Raises ConfigError for one that cannot be, and for a figure of pairs
    without one."""
    from faultline.experiment.build import parse_build
    from faultline.lifecycle.build_checkout import check_builds

    if params["baseline"] is None:
        if params["primary"]:
            raise ConfigError("primary: judges pairs, and there is no baseline to pair with; give one, or leave it out")
        return None
    spec = parse_build(params["baseline"], "baseline")
    check_builds(spec, configs, key="baseline")
    return spec


def nightly_build_mismatch(gap: Gap, plan: SweepPlan | None, settings: Settings) -> str | None:
    """Why the rest of a night is not measured: another build measured a part of it, and its figures are those of one.
    None where it can be. Asked before its run is cleared; a sweep that resumes another one asks the same as it plans.
    """
    from faultline.experiment.config import parse_configuration
    from faultline.lifecycle.environment import installed_build
    from faultline.orchestration.planning import build_mismatch

    if plan is None or not is_nightly(gap.matrix) or len(gap.missing) == gap.planned:
        return None
    form = next((one.form for one in nightly_files(settings.root) if one.dag_id == gap.matrix), {})
    configs = [parse_configuration(cell.config) for cell in plan.cells]
    build = form.get("build") or installed_build(settings, configurations=configs)
    remedy = "check that build out, or leave the night so"
    return build_mismatch(f"{gap.matrix}: the night {gap.series}", plan.build, build, remedy=remedy)


def pairs_per_configuration(params: Mapping[str, Any], configurations: int) -> int:
    """Pairs that a night measures of each configuration. Raises ConfigError for too few to tell anything."""
    from faultline.comparison.regression_gate.verdict import min_pairs

    need, pairs = min_pairs(configurations), int(params["repetitions"] or PAIRS)
    if pairs < need:
        many = pluralize(configurations, "configuration")
        raise ConfigError(f"repetitions: {pairs} pairs can tell nothing of {many}; give {need} or more, best {PAIRS}")
    return pairs


def primary_figures(configs: Sequence[Configuration], given: Sequence[str] | None) -> dict[str, str]:
    """The figure that each configuration is judged by, by its id. Raises ConfigError for one that is not known."""
    from faultline.comparison.decisions import FIGURES
    from faultline.comparison.regression_gate.nightly_pairs import default_primary

    names = list(given or [])
    if len(names) not in (0, 1, len(configs)):
        raise ConfigError(
            f"primary: {len(names)} figures for {len(configs)} configurations; give one for all, or one for each"
        )
    for name in names:
        if name not in FIGURES:
            raise ConfigError(f"primary: {name!r} is no figure of which less or more is better{suggest(name, FIGURES)}")
    chosen = names * len(configs) if len(names) == 1 else names or [default_primary(one) for one in configs]
    return {config.config_id: name for config, name in zip(configs, chosen, strict=True)}
