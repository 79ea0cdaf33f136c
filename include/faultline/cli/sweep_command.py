"""`./faultline sweep` and `./faultline missing`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from faultline.system.errors import ConfigError
from faultline.system.text import progress


def sweep(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MATRIX] [KEY=VALUE | KEY=[A,B]]…", help="See docs/reference/matrices.md."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print cells and minutes; start nothing.")] = False,
    rerun: Annotated[bool, typer.Option("--rerun", help="Re-run cells that already have a usable record.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the progress of a running sweep: the named or the newest one.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop a running sweep: the named or the newest one.")] = False,
) -> None:
    """Run a matrix through Airflow. Show its progress and its summary; a second call resumes.

    Example: ./faultline sweep recovery preset=findings checkpoint_interval_s=2,10

    Any parameter can be an axis: ./faultline sweep workload=pi fault=none iterations=[100,1000]
    """
    from faultline.cli import sweep_runner

    given = words or []
    if follow or stop:
        option = "--stop" if stop else "--follow"
        if dry_run or rerun or (follow and stop) or len(given) > 1:
            raise ConfigError(f"{option}: expected at most the id of one sweep, and no other option")
        act = sweep_runner.stop_sweep if stop else sweep_runner.follow_sweep
        raise typer.Exit(act(given[0] if given else None, progress))
    if not given:
        raise ConfigError("sweep: missing; expected a matrix or axes; see ./faultline sweep --help")
    raise typer.Exit(sweep_runner.run_sweep(given, progress, dry_run=dry_run, rerun=rerun))


def missing(
    matrix: Annotated[str, typer.Argument(help="Matrix, such as recovery, or nightly_regression.")],
    sweep: Annotated[str | None, typer.Option(help="Use the plan of this sweep (default: the newest sweep).")] = None,
    preset: Annotated[str | None, typer.Option(help="Use the cells of this preset, even if never started.")] = None,
    series: Annotated[str | None, typer.Option(help="With --preset: the series (default: the current build).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an array of plans with their missing cells.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Measure the missing cells and show the results.")] = False,
) -> None:
    """List the cells without a usable record. Show the outcome of their attempts.

    With --measure, missing cells of a sweep are measured by a new sweep in the same series. Those of a nightly run are
    measured under its logical date, as Airflow's backfill does.
    """
    from faultline.comparison import coverage as missing_cells
    from faultline.records.sweep_plan import SweepPlans
    from faultline.system.settings import load_settings

    if series is not None and preset is None:
        raise ConfigError("--series: expected only with --preset")
    if measure and as_json:
        raise ConfigError("--measure: expected without --json")
    settings = load_settings()
    for path, why in SweepPlans(settings.results).problems():
        progress(f"{path}: {why}")
    gaps = missing_cells.gaps_of(matrix, settings, sweep=sweep, preset=preset, series=series)
    if as_json:
        print(json.dumps(missing_cells.as_json(gaps), indent=2))
        return
    missing_cells.print_gaps(gaps)
    if measure:
        from faultline.cli.missing_cells import measure_gaps

        raise typer.Exit(measure_gaps(gaps, preset, progress))
