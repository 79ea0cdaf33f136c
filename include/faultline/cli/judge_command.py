"""`./faultline judge`: stored recoveries of a sweep next to those by the current definitions."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from faultline.experiment.common_parameters import RECOVERED_WITHIN
from faultline.records.bundle import SUFFIX, read_bundle
from faultline.records.format import NONE, WIDTH, macro, seconds, title_of
from faultline.records.judge.rejudge import RejudgedAttempt, rejudge, store_rejudged
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.system.errors import ConfigError
from faultline.system.settings import load_settings
from faultline.system.text import suggest


@dataclass(frozen=True)
class RejudgedSweep:
    """Result by attempt. `moved`: new path of the superseded record, or None if the record was not replaced."""

    found: tuple[RejudgedAttempt, ...]
    within: tuple[float, ...]
    moved: Mapping[str, Path | None]

    def rows(self) -> list[dict[str, Any]]:
        """Return a JSON object per attempt."""
        return [
            {
                "attempt": one.before.attempt,
                "config": title_of(one.before.config),
                "before": {"schema": one.before.schema_, **_figures(one.before)},
                "within": {f"{share:g}": _figures(record) for share, record in one.found.items()},
                "problem": one.problem or None,
                "moved_to": None if (path := self.moved.get(one.before.attempt)) is None else str(path),
            }
            for one in self.found
        ]

    def print(self) -> None:
        """Print a table on standard output."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("Experiment", overflow="fold")
        table.add_column("Attempt", no_wrap=True)
        for heading in ("Stored", *(f"Within {share:g}" for share in self.within)):
            table.add_column(heading, justify="right")
        table.add_column("Resolution", justify="right")
        table.add_column("Remark", overflow="fold")
        for one in self.found:
            table.add_row(*map(Text, self._cells(one)))
        console = Console(width=None if sys.stdout.isatty() else WIDTH)
        console.print(table)
        console.print(Text("Macro recovery of the first fault, s. `> 12.0`: censored at 12 s.", style="dim"))
        changed = sum(path is not None for path in self.moved.values())
        if self.moved:
            console.print(Text(f"{changed} records replaced; previous ones in results/superseded/."))

    def _cells(self, one: RejudgedAttempt) -> list[str]:
        found = [_macro(one.found.get(share)) for share in self.within]
        first = next(iter(one.found.values()), None)
        known = NONE if first is None else seconds(first.metrics.recovery.resolution_s)
        remark = one.problem or ("" if first is None or first.status == one.before.status else _changed(one, first))
        return [title_of(one.before.config), one.before.attempt, macro(one.before), *found, known, remark]


def judge_sweep(name: str, within: Sequence[float], *, write: bool) -> RejudgedSweep:
    """Judge a sweep, a bundle or one attempt again, with each value of `within` (default: RECOVERED_WITHIN).

    With `write`, changed records replace the stored ones. Raises ConfigError for an unknown name or a share outside
    (0, 10].
    """
    for share in within:
        if not (math.isfinite(share) and 0 < share <= 10):
            raise ConfigError(f"--within: got {share:g}; expected a share above 0, at most 10")
    shares = tuple(dict.fromkeys(within)) or (RECOVERED_WITHIN,)
    if name.endswith(SUFFIX):
        return _judge_bundle(Path(name), shares, write=write)
    settings = load_settings()
    records = Store(settings.results).read().records
    chosen = [record for record in records if name in (record.sweep_id, record.attempt)]
    if not chosen:
        known = {one.sweep_id for one in records if one.sweep_id}
        raise ConfigError(f"{name}: no such sweep or attempt{suggest(name, known)}")
    found = rejudge(chosen, settings, shares)
    moved = {one.before.attempt: store_rejudged(one, settings) for one in found if write and not one.problem}
    return RejudgedSweep(tuple(found), shares, moved)


def _judge_bundle(path: Path, shares: tuple[float, ...], *, write: bool) -> RejudgedSweep:
    if write:
        raise ConfigError(
            "--write: got a bundle, which is read-only; fix: unpack it with scripts/unpack.py and set FAULTLINE_RESULTS"
        )
    bundle = read_bundle(path)
    with TemporaryDirectory() as folder:
        settings = replace(load_settings(), results=Path(folder))
        bundle.unpack(settings.results)
        return RejudgedSweep(tuple(rejudge(bundle.records(), settings, shares)), shares, {})


def _macro(record: Record | None) -> str:
    return NONE if record is None else macro(record)


def _changed(one: RejudgedAttempt, now: Record) -> str:
    return f"{one.before.status}, now {now.status}" + (f": {now.reasons[0]}" if now.reasons else "")


def _figures(record: Record) -> dict[str, Any]:
    recovery = record.metrics.recovery
    kept = ("recovered", "macro_s", "censored_at_s", "resolution_s", "latency_limit_ms", "lag_limit", "hold_s")
    return {"status": record.status, **{key: getattr(recovery, key) for key in (*kept, "plateau_ratio")}}
