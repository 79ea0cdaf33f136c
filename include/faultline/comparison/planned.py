"""The records that a sweep rests on: what it measured itself, and what was there already of the cells that it planned.

A sweep that is resumed measures only what is missing, so its own records are a part of what its plan asks for; and what
it did not come to, a later one of the same cells may have measured.
"""

from __future__ import annotations

from pathlib import Path

from faultline.records.index import Index
from faultline.records.manifest import Manifests
from faultline.records.summary import Entry


def entries_of_sweep(index: Index, results: Path, sweep_id: str | None) -> list[Entry]:
    """Its own records, and of each planned cell of which none is sound the newest sound one of its series that counts,
    whoever measured it. A sweep without a plan has its own; one that has left no record has none."""
    own = index.of_sweep(sweep_id)
    plan = None if sweep_id is None or not own else Manifests(results).read(sweep_id)
    if plan is None:
        return own
    known = {(one.config_id, one.repetition) for one in own if one.sound and one.series == plan.series}
    lacking = {(cell.config_id, cell.repetition) for cell in plan.cells} - known
    newest: dict[tuple[str, int], Entry] = {}
    for one in index.of_configurations(config_id for config_id, _ in sorted(lacking)) if lacking else ():
        cell = one.config_id, one.repetition
        if one.sound and one.series == plan.series and cell in lacking and plan.counts(one):
            newest[cell] = one  # they come in order of attempt
    return [*own, *newest.values()]
