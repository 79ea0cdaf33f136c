"""Attempts that have a record judged once more from their raw files: by today's definitions, or by other choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from faultline.records.judge.judge import judge, judged
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.system.errors import InfrastructureError
from faultline.system.settings import Settings
from faultline.system.text import one_line

# Beside `records`: what another judgement took the place of, by configuration, attempt and the schema it had.
SUPERSEDED = "superseded"


@dataclass(frozen=True)
class Again:
    """One attempt: its record as it stands, and by each `recovered_within` what its raw files come to today.

    `problem`: why they could not be judged; `found` is empty then.
    """

    before: Record
    found: dict[float, Record]
    problem: str = ""


def judge_again(records: Sequence[Record], settings: Settings, within: Sequence[float]) -> list[Again]:
    """Judges the attempts of `records` by each of `within`; writes nothing."""
    return [_again(record, settings.attempts / record.attempt, within) for record in records]


def keep(again: Again, settings: Settings) -> Path | None:
    """Puts the record of today in the place of the one that stands, which is kept in `superseded`.

    Returns where the old one lies now; None when nothing changed. The new one has the configuration's own
    `recovered_within`, and `series.json` and `audit.json` beside the raw files are made anew.
    """
    store = Store(settings.results)
    record = judge(settings.attempts / again.before.attempt)
    path = store.path(again.before)
    if record.as_json() == path.read_text(encoding="utf-8"):
        return None
    moved = settings.results / SUPERSEDED / path.parent.name / f"{path.stem}.schema-{again.before.schema_}.json"
    number = 1
    while moved.exists():
        number += 1
        moved = moved.with_name(f"{path.stem}.schema-{again.before.schema_}.{number}.json")
    store.replace(record, moved)
    return moved


def _again(record: Record, folder: Path, within: Sequence[float]) -> Again:
    if record.status in ("failed", "cancelled"):
        return Again(record, {}, f"{record.status}: it was not measured to its end")
    if not folder.is_dir():
        return Again(record, {}, "its raw files are gone")
    try:
        return Again(record, {share: judged(folder, within=share).record for share in within})
    except InfrastructureError as error:
        return Again(record, {}, one_line(str(error)))
