"""Unsound runs beside an answer: their number, their reasons, and the effects that they would give if they counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from faultline.comparison.answer import PROGRAMS
from faultline.comparison.cells import axes_of, groups_of, points_of
from faultline.comparison.effects import Effect, effects_along
from faultline.records.record import JUDGED
from faultline.records.summary import Entry


@dataclass(frozen=True)
class Unsound:
    """Runs without a usable record, of the group that the answer is about.

    `entries`: one for each of them. `usable`: runs that have one. `codes`: runs by the code of their first reason.
    `effects`: of usable and unsound runs together, which support no claim.
    """

    entries: tuple[Entry, ...]
    usable: int
    codes: Mapping[str, int]
    effects: tuple[Effect, ...]

    @property
    def runs(self) -> int:
        """The number of these runs."""
        return len(self.entries)


def unsound_of(entries: Sequence[Entry]) -> Unsound | None:
    """The unsound runs among `entries`; None if each run has a usable record, or no figures.

    Of a run that was measured again without success, the newest record counts.
    """
    judged = [entry for entry in entries if entry.status in JUDGED]
    if not judged:
        return None
    group = groups_of([entry for entry in judged if entry.sound] or judged)[0]
    newest: dict[tuple[str, int], Entry] = {}
    for entry in sorted((one for one in judged if one.group == group), key=lambda one: (one.sound, one.attempt)):
        newest[entry.config_id, entry.repetition] = entry
    lacking = [entry for entry in newest.values() if not entry.sound and entry.metrics]
    if not lacking:
        return None
    points = points_of([entry if entry.sound else replace(entry, status="valid") for entry in newest.values()])
    axes = axes_of(points)
    return Unsound(
        entries=tuple(lacking),
        usable=sum(entry.sound for entry in newest.values()),
        codes=Counter(next(iter(entry.reasons), "unknown").partition(":")[0] for entry in lacking),
        effects=tuple(effects_along(points, axes, [axis for axis in axes if axis.key not in PROGRAMS])),
    )
