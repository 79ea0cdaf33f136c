"""Selection of one side of a comparison: records of a sweep, a day, a Git revision, or a file."""

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
# Suffixes of files with records.
SAVED = (".json", ".json.gz", SUFFIX)
# Length of the commits in records.
COMMIT_DIGITS = 12


@dataclass(frozen=True)
class RecordGroup:
    """Usable records of one build. `name`: the name that selected them."""

    name: str
    entries: tuple[IndexEntry, ...]


def select_group(index: Index, name: str, root: Path, *, matrix: str | None = None) -> RecordGroup:
    """Return the records that `name` selects.

    `name` is a sweep's id, a day (2026-11-21: the nightly run of that logical date, else measurements on that day in
    UTC), a Git revision in the checkout `root`, or a file of saved records (a bundle, or the output of `results
    --json`); each may end in `@BUILD`. Raises ConfigError if there is no usable record, or if there are several builds.
    """
    what, build = _split_build(name)
    entries = _find_entries(index, what, root)
    chosen = [
        entry
        for entry in entries
        if entry.is_usable and matrix in (None, entry.matrix) and build in (None, entry.build)
    ]
    if not chosen:
        known = sorted({entry.build for entry in entries})
        if build is not None and entries and build not in known:
            raise ConfigError(f"{name}: got build {build}; expected one of {', '.join(known)}")
        if entries:
            narrowed = f" and of matrix {matrix}" if matrix else ""
            raise ConfigError(f"{name}: none of its {len(entries)} records is usable{narrowed}")
        _require_date(what)
        names = [str(tally.name) for tally in index.sweeps(SUGGESTED) if tally.name]
        raise ConfigError(f"{name}: no records; expected a sweep, a day or a revision{suggest(name, names)}")
    builds = sorted({entry.build for entry in chosen})
    if len(builds) > 1:
        raise ConfigError(
            f"{name}: got builds {', '.join(builds)}; expected one build; fix: for example {what}@{builds[0]}"
        )
    return RecordGroup(name, tuple(chosen))


def _split_build(name: str) -> tuple[str, str | None]:
    """Split a side's name from the build after its last `@`; Git's `@{…}` is not a build."""
    what, at, build = name.rpartition("@")
    return (what, build) if at and what and build and not build.endswith("}") else (name, None)


def require_disjoint(a: RecordGroup, b: RecordGroup) -> None:
    """Raise ConfigError if a record is on both sides."""
    if a.name == b.name:
        raise ConfigError(f"{b.name}: got the same name for both sides; expected two different ones")
    if shared := shared_records(a, b):
        raise ConfigError(f"{b.name}: shares {shared} records with {a.name}; expected disjoint sides")


def shared_records(a: RecordGroup, b: RecordGroup) -> int:
    """Return the number of records on both sides."""
    return len({entry.attempt for entry in a.entries} & {entry.attempt for entry in b.entries})


def _require_date(name: str) -> None:
    """Raise ConfigError if the name has the form of a day but is not a date."""
    if DAY.fullmatch(name):
        try:
            date.fromisoformat(name)
        except ValueError as error:
            raise ConfigError(f"{name}: expected a date such as 2026-11-21 ({error})") from None


def _find_entries(index: Index, name: str, root: Path) -> list[IndexEntry]:
    if name.endswith(SAVED) and Path(name).is_file():
        return [IndexEntry.of(record) for record in read_saved([Path(name)])]
    if index.has_sweep(name):
        return entries_of_sweep(index, index.root, name)
    if DAY.fullmatch(name):
        every = index.all()
        nightly = [entry for entry in every if (entry.logical_date or "").startswith(name)]
        manual = [entry for entry in every if entry.logical_date is None]
        return nightly or [entry for entry in manual if entry.measured_at.startswith(name)]
    commit = _commit(name, root)
    return [entry for entry in index.all() if commit and entry.commit == commit[:COMMIT_DIGITS]]


def _commit(name: str, root: Path) -> str | None:
    """Return the commit of a Git revision; None if it does not exist or Git is missing."""
    command = ["git", "-C", str(root), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


# Records of a sweep: its own measurements and earlier ones of its planned cells


def entries_of_sweep(index: Index, results: Path, sweep_id: str | None) -> list[IndexEntry]:
    """Return a sweep's own records, and a substitute for each planned cell without a usable one.

    The substitute is the newest usable record of the cell in the plan's series that the plan counts; another sweep may
    have measured it. Without a plan or an own record there are no substitutes.
    """
    own = index.of_sweep(sweep_id)
    plan = None if sweep_id is None or not own else SweepPlans(results).read(sweep_id)
    if plan is None:
        return own
    known = {(one.config_id, one.repetition) for one in own if one.is_usable and one.series == plan.series}
    missing = {(cell.config_id, cell.repetition) for cell in plan.cells} - known
    newest: dict[tuple[str, int], IndexEntry] = {}
    for one in index.of_configurations(config_id for config_id, _ in sorted(missing)) if missing else ():
        cell = one.config_id, one.repetition
        if one.is_usable and one.series == plan.series and cell in missing and plan.counts(one):
            newest[cell] = one  # records come in the order of attempts
    return [*own, *newest.values()]
