"""What is measured at this moment, by the files of attempts that are not closed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from faultline.experiment.attempt import Attempt
from faultline.experiment.cell import Cell
from faultline.lifecycle.progress import is_waiting, phase_of
from faultline.records.format import title_of
from faultline.records.manifest import Manifest, Manifests
from faultline.records.record import SCHEMA
from faultline.reports.pages.site import Site
from faultline.system.errors import FaultlineError

# Of attempts, the newest first: two are in work at most, and an older one that is not closed is nobody's any more.
LOOKED_AT = 6


@dataclass(frozen=True)
class Running:
    """An experiment in work: what it is, where it stands, and how far its sweep is."""

    attempt: str
    title: str
    phase: str
    detail: str
    href: str
    sweep: str | None
    sweep_href: str | None
    progress: str


def running(site: Site) -> list[Running]:
    """The experiments in work, the one that is measured first."""
    found = [(is_waiting(attempt), attempt) for attempt in _unclosed(site)]
    ordered = sorted(found, key=lambda pair: (pair[0], pair[1].id))
    told = [(waits, one) for waits, attempt in ordered if (one := _running(site, attempt))]
    measured = next((one for waits, one in told if not waits), None)
    # Where none of this installation's is measured, it waits for another's.
    return [replace(one, detail=f"for {measured.title}") if waits and measured else one for waits, one in told]


def _unclosed(site: Site) -> Iterator[Attempt]:
    folder = site.results / "attempts"
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir(), reverse=True)[:LOOKED_AT]:
        attempt = Attempt(path)
        if not attempt.over and (path / "attempt.json").exists():
            yield attempt


def _running(site: Site, attempt: Attempt) -> Running | None:
    """None for an attempt whose files cannot be read, or that closes as it is looked at."""
    try:
        told, phase = attempt.read(), phase_of(attempt)
    except (FaultlineError, OSError, KeyError, ValueError):
        return None
    sweep = told.get("sweep_id")
    plan = Manifests(site.results).read(str(sweep)) if sweep else None
    return Running(
        attempt.id,
        title_of(told["config"]),
        phase.name,
        phase.detail,
        site.link("live", attempt.id),
        str(sweep) if plan else None,
        site.link("sweeps", str(sweep)) if plan and site.index.has_sweep(str(sweep)) else None,
        progress(site, plan) if plan else "",
    )


def progress(site: Site, plan: Manifest) -> str:
    """How many cells of a plan have a valid record: `3 of 12`."""
    entries = site.index.of_configurations(cell.config_id for cell in plan.cells)
    sound = {Cell(one.config_id, one.repetition, one.series) for one in entries if one.sound and one.schema == SCHEMA}
    wanted = {Cell(cell.config_id, cell.repetition, plan.series) for cell in plan.cells}
    return f"{len(sound & wanted)} of {len(wanted)}"
