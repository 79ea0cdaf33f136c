"""What measures many experiments: `./faultline sweep` and `./faultline missing`, as the command line offers them.

Heavy modules are imported inside, so that `--help` answers at once.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from faultline.system.errors import ConfigError
from faultline.system.text import say


def sweep(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MATRIX] [KEY=VALUE | KEY=[A,B]]…", help="See docs/reference/matrices.md."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be measured; start nothing.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure also what has a valid record.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show a sweep that runs: the one named, or the newest.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End a sweep that runs: the one named, or the newest.")] = False,
) -> None:
    """Measure a matrix through Airflow, show its progress and its answer. A second call resumes.

    Example: ./faultline sweep recovery preset=findings checkpoint_interval_s=2,10

    Any parameter may be an axis: ./faultline sweep workload=pi fault=none iterations=[100,1000]
    """
    from faultline.cli import sweeping

    given = words or []
    if follow or stop:
        option = "--stop" if stop else "--follow"
        if dry_run or again or (follow and stop) or len(given) > 1:
            raise ConfigError(f"{option}: takes the id of one sweep, or none for the newest, and no other option")
        act = sweeping.stop_sweep if stop else sweeping.follow_sweep
        raise typer.Exit(act(given[0] if given else None, say))
    if not given:
        raise ConfigError("sweep: name a matrix, or axes; ./faultline sweep --help shows both")
    raise typer.Exit(sweeping.run_sweep(given, say, dry_run=dry_run, again=again))


def missing(
    matrix: Annotated[str, typer.Argument(help="A matrix, such as recovery, or nightly_regression.")],
    sweep: Annotated[str | None, typer.Option(help="This sweep's plan, instead of the newest one's.")] = None,
    preset: Annotated[str | None, typer.Option(help="What a preset would measure, whether triggered or not.")] = None,
    series: Annotated[str | None, typer.Option(help="With --preset: the series (default: the build at hand).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="An array of plans, each with what it lacks.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Measure them, and show what they came to.")] = False,
) -> None:
    """List the cells of a matrix that have no valid record yet, and what became of them.

    With --measure they are measured: those of a sweep by a sweep of their own, those of a night as that night, as
    Airflow's backfill would.
    """
    from faultline.comparison import coverage as missing_cells
    from faultline.records.manifest import Manifests
    from faultline.system.settings import load_settings

    if series is not None and preset is None:
        raise ConfigError("--series: says where a preset's cells are looked for; give --preset, too")
    if measure and as_json:
        raise ConfigError("--measure: shows its progress as text; leave out --json")
    settings = load_settings()
    for path, why in Manifests(settings.results).problems():
        say(f"{path}: {why}")
    gaps = missing_cells.gaps_of(matrix, settings, sweep=sweep, preset=preset, series=series)
    if as_json:
        print(json.dumps(missing_cells.as_json(gaps), indent=2))
        return
    missing_cells.print_gaps(gaps)
    if measure:
        from faultline.cli.gaps import measure_gaps

        raise typer.Exit(measure_gaps(gaps, preset, say))
