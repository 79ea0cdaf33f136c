"""`./faultline compare` and `./faultline advise`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from faultline.system.errors import ConfigError

# Defaults of `compare --measure`: smallest relative difference to find, and budget in experiments.
SMALLEST, MOST_EXPERIMENTS = 0.1, 60


def compare(
    before: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="Sweep, day (2026-11-21), git revision or file of records; NAME@BUILD selects one build.",
        ),
    ],
    after: Annotated[
        str | None, typer.Argument(metavar="[B]", help="Other side, in the same form; not with --along.")
    ] = None,
    cell: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]…", help="With --measure: parameters of the experiment, and axes."),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="A and B are Spark builds (or `installed`): measure both in pairs.")
    ] = False,
    along: Annotated[
        str | None, typer.Option(help="Compare the values of this axis within A, such as checkpoint_interval_s.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Figure, by its path in the record, such as latency_ms.p99. Repeatable.")
    ] = None,
    matrix: Annotated[str | None, typer.Option(help="Only records of this matrix.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an array of comparisons as JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a figure of B is worse.")] = False,
) -> None:
    """Compare two sides per configuration. Verdicts: better, worse, equivalent or inconclusive.

    Verdicts need five repetitions per side; see docs/explanation/comparing.md. With --along, estimate the effect of
    each step on one axis of A. With --measure, measure two Spark builds in pairs until the difference is decided.
    """
    if measure:
        if after is None or along is not None or matrix is not None or strict or as_json or len(metric or []) > 1:
            raise ConfigError("--measure: expected two builds, KEY=VALUE words and at most one --metric")
        raise typer.Exit(_measure_builds(before, after, cell or [], (metric or ["latency_ms.p50"])[0]))
    if cell:
        raise ConfigError(f"{cell[0]}: expected only with --measure")
    if along is not None:
        if after is not None or metric or matrix is not None or strict:
            raise ConfigError("--along: expected without B, --metric, --matrix and --strict")
        _compare_along(before, along, as_json)
        return
    if after is None:
        raise ConfigError(f"B: missing; expected the side to compare {before} with, or --along")
    from faultline.comparison.compare import ComparisonVerdict, compare_named, print_comparison
    from faultline.comparison.compare import as_json as rows_of

    compared = compare_named(before, after, metric or [], matrix=matrix)
    if as_json:
        print(json.dumps(rows_of(compared), indent=2))
    else:
        print_comparison(compared, before, after)
    raise typer.Exit(1 if strict and compared.of(ComparisonVerdict.WORSE) else 0)


def _measure_builds(before: str, after: str, words: list[str], figure: str) -> int:
    """Run a sequential sweep that compares `figure` between both builds; return its exit code."""
    from faultline.cli.sweep_runner import run_sweep
    from faultline.system.text import progress

    if before == after:
        raise ConfigError(
            f"B: got {after}, the same as A; expected another build (or the same one, registered under a second name)"
        )
    decide = {"figure": figure, "along": "spark_build", "smallest": SMALLEST, "experiments": MOST_EXPERIMENTS}
    given = {word.partition("=")[0] for word in words}
    added = [] if "decide" in given else [f"decide={json.dumps(decide)}"]
    # By default without a fault, because pairs then vary least.
    usual = [] if "fault" in given else ["fault=none"]
    return run_sweep([*words, *usual, f"spark_build=[{before},{after}]", *added], progress, dry_run=False, rerun=False)


def _compare_along(sweep: str, axis: str, as_json: bool) -> None:
    from faultline.comparison.sweep_summary import effects_of_axis
    from faultline.reports.console import effects_json, print_effects
    from faultline.system.settings import load_settings

    settings = load_settings()
    effects = effects_of_axis(sweep, axis, settings)
    if as_json:
        print(json.dumps(effects_json(effects), indent=2))
    else:
        print_effects(effects)


def advise(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="Sweep; NAME@BUILD selects one build.")],
    minimise: Annotated[
        str | None, typer.Option(help="Cost to minimise: cpu, recovery, latency or latency_p50 (default: cpu).")
    ] = None,
    recovery_under: Annotated[float | None, typer.Option(help="Limit of the median macro recovery, in s.")] = None,
    latency_p99_under: Annotated[float | None, typer.Option(help="Limit of the median latency p99, in ms.")] = None,
    latency_p50_under: Annotated[float | None, typer.Option(help="Limit of the median latency p50, in ms.")] = None,
    cpu_under: Annotated[float | None, typer.Option(help="Limit of the median CPU of all roles, in cores.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Recommend a configuration of a sweep. It is the cheapest one that meets all limits, with its confidence.

    If the data cannot decide, print how many experiments would. Without options: the least CPU among the
    configurations that recover. See docs/explanation/comparing.md.
    """
    from faultline.comparison.sweep_summary import objective_of, summary_of_sweep
    from faultline.reports.console import print_recommendation, summary_json
    from faultline.reports.views.sweep_summary import unmet_limits_text
    from faultline.system.settings import load_settings

    limits = {
        "recovery": ("--recovery-under", recovery_under),
        "latency": ("--latency-p99-under", latency_p99_under),
        "latency_p50": ("--latency-p50-under", latency_p50_under),
        "cpu": ("--cpu-under", cpu_under),
    }
    settings = load_settings()
    answer = summary_of_sweep(sweep, settings, objective_of(minimise, limits))
    if answer.recommendation is None:
        raise ConfigError(f"{sweep}: {answer.why}")
    if answer.recommendation.best is None:
        raise ConfigError(f"{sweep}: {unmet_limits_text(answer.recommendation)}")
    if as_json:
        print(json.dumps(summary_json(answer), indent=2))
    else:
        print_recommendation(answer)
