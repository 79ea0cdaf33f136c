"""What stands on one side of a comparison: records of a sweep, of a day, of a revision of the code, or of a file."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from faultline.records.bundle import SUFFIX
from faultline.records.find import read_saved
from faultline.records.index import Index
from faultline.records.index_entry import IndexEntry
from faultline.records.sweep_plan import SweepPlans
from faultline.system.errors import ConfigError
from faultline.system.text import suggest

DAY = re.compile(r"\d{4}-\d\d-\d\d")
SUGGESTED = 1000
# How files of records are called.
SAVED = (".json", ".json.gz", SUFFIX)
# Git shortens to as many digits in records.
COMMIT_DIGITS = 12


@dataclass(frozen=True)
class RecordGroup:
    """Valid records under the name that they were asked for by; of one build, so that they may be averaged."""

    name: str
    entries: tuple[IndexEntry, ...]


def select_group(index: Index, name: str, root: Path, *, matrix: str | None = None) -> RecordGroup:
    """The side that `name` stands for: a sweep's id, a day (2026-11-21: the night of that logical date, else what was
    measured on it, in UTC), whatever git takes for a revision in the checkout `root`, or a file of saved records (a
    bundle, or what `results --json` wrote); each perhaps with `@BUILD`.

    Raises ConfigError when nothing valid is there, or when it is of several builds.
    """
    what, build = _split_build(name)
    entries = _find_entries(index, what, root)
    chosen = [
        entry for entry in entries if entry.sound and matrix in (None, entry.matrix) and build in (None, entry.build)
    ]
    if not chosen:
        known = sorted({entry.build for entry in entries})
        if build is not None and entries and build not in known:
            raise ConfigError(f"{name}: {what} has no record of the build {build}; it has {', '.join(known)}")
        if entries:
            narrowed = f" and of matrix {matrix}" if matrix else ""
            raise ConfigError(f"{name}: none of its {len(entries)} records is valid{narrowed}; choose others")
        _require_date(what)
        names = [str(tally.name) for tally in index.sweeps(SUGGESTED) if tally.name]
        raise ConfigError(f"{name}: has no record; give a sweep, a day or a revision{suggest(name, names)}")
    builds = sorted({entry.build for entry in chosen})
    if len(builds) > 1:
        raise ConfigError(
            f"{name}: records of the builds {', '.join(builds)} are never averaged; write {what}@{builds[0]}, say"
        )
    return RecordGroup(name, tuple(chosen))


def _split_build(name: str) -> tuple[str, str | None]:
    """A side's name, and the build behind its last `@`; git's own `@{…}` is no build."""
    what, at, build = name.rpartition("@")
    return (what, build) if at and what and build and not build.endswith("}") else (name, None)


def require_disjoint(a: RecordGroup, b: RecordGroup) -> None:
    """Raises ConfigError when a record stands on both sides."""
    if a.name == b.name:
        raise ConfigError(f"{b.name}: is on both sides; name two that differ")
    if shared := shared_records(a, b):
        raise ConfigError(f"{b.name}: {shared} of its records belong to {a.name} too; compare others")


def shared_records(a: RecordGroup, b: RecordGroup) -> int:
    """How many records stand on both sides."""
    return len({entry.attempt for entry in a.entries} & {entry.attempt for entry in b.entries})


def _require_date(name: str) -> None:
    """Raises ConfigError for what looks like a day and is none."""
    if DAY.fullmatch(name):
        try:
            date.fromisoformat(name)
        except ValueError as error:
            raise ConfigError(f"{name}: is no date ({error}); give one such as 2026-11-21") from None


def _find_entries(index: Index, name: str, root: Path) -> list[IndexEntry]:
    if name.endswith(SAVED) and Path(name).is_file():
        return [IndexEntry.of(record) for record in read_saved([Path(name)])]
    if index.has_sweep(name):
        return entries_of_sweep(index, index.root, name)
    if DAY.fullmatch(name):
        every = index.all()
        night = [entry for entry in every if (entry.logical_date or "").startswith(name)]
        return night or [entry for entry in every if entry.logical_date is None and entry.measured_at.startswith(name)]
    commit = _commit(name, root)
    return [entry for entry in index.all() if commit and entry.commit == commit[:COMMIT_DIGITS]]


def _commit(name: str, root: Path) -> str | None:
    """The commit that git takes `name` for; None when it is none, or there is no git."""
    command = ["git", "-C", str(root), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


# The records that a sweep rests on: what it measured itself, and what was there already of the cells that it planned.


def entries_of_sweep(index: Index, results: Path, sweep_id: str | None) -> list[IndexEntry]:
    """Its own records, and of each planned cell of which none is sound the newest sound one of its series that counts,
    whoever measured it. A sweep without a plan has its own; one that has left no record has none."""
    own = index.of_sweep(sweep_id)
    plan = None if sweep_id is None or not own else SweepPlans(results).read(sweep_id)
    if plan is None:
        return own
    known = {(one.config_id, one.repetition) for one in own if one.sound and one.series == plan.series}
    lacking = {(cell.config_id, cell.repetition) for cell in plan.cells} - known
    newest: dict[tuple[str, int], IndexEntry] = {}
    for one in index.of_configurations(config_id for config_id, _ in sorted(lacking)) if lacking else ():
        cell = one.config_id, one.repetition
        if one.sound and one.series == plan.series and cell in lacking and plan.counts(one):
            newest[cell] = one  # they come in order of attempt
    return [*own, *newest.values()]
