"""What the stages of a topology did after the gate, from their journal; and whether the store holds what they said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from faultline.records.record import StagesPart
from faultline.system.errors import InfrastructureError
from faultline.system.journal import Line, events
from faultline.system.window import NS, Window


def chain_work(lines: Sequence[Line], directory: Path, window: Window) -> StagesPart | None:
    """Of the journal's lines, and `stored.json` in the attempt's directory; None without stages."""
    if not lines:
        return None
    later = [line for line in lines if int(line["wall_ns"]) >= window.t0_ns]
    replaced = events(later, "replaced")
    names = {str(line["stage"]) for line in replaced}
    batches = [float(line["seconds"]) for line in events(later, "batch") if line["stage"] in names]
    queued = [int(line["most"]) for line in events(later, "queued")]
    return StagesPart(
        signals=sum(line["act"] == "slow" for line in events(later, "signal")),
        failed=_total(later, "failed"),
        set_aside=_total(later, "set_aside"),
        replacements=len(replaced),
        gap_s=max((float(line["gap_s"]) for line in replaced), default=None),
        batch_s=max(batches, default=None),
        most_queued=max(queued, default=None),
        unstored=unstored(directory),
    )


def acknowledging(lines: Sequence[Line]) -> pd.DataFrame | None:
    """Batches of the last stage, whose output is the result, in order: start_ns, end_ns. None without stages.

    The end is when the batch was reported, a little after it was committed.
    """
    if not lines:
        return None
    last = "persist" if _persists(lines) else "count"
    batches = [
        (int(line["wall_ns"]) - round(float(line["seconds"]) * NS), int(line["wall_ns"]))
        for line in events(lines, "batch")
        if line["stage"] == last
    ]
    return pd.DataFrame(batches, columns=["start_ns", "end_ns"]).sort_values("end_ns", ignore_index=True)


def store_was_not_read(lines: Sequence[Line], directory: Path) -> bool:
    """Whether a chain that persists ended before it had written what waited, and read its store back."""
    return _persists(lines) and not (directory / "stored.json").exists()


def unstored(directory: Path) -> int | None:
    """Keys that the store and the output topic do not agree on; None when the store was not read back."""
    path = directory / "stored.json"
    if not path.exists():
        return None
    try:
        stored: dict[str, int] = json.loads(path.read_text())
        counts = pd.read_parquet(directory / "harvest" / "counts.parquet", columns=["key", "final"])
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"{path}: cannot be read ({error}); run the experiment again") from error
    known = counts.dropna()
    final: dict[str, int] = dict(zip(known["key"], known["final"].astype("int64"), strict=True))
    return sum(stored.get(key) != final.get(key) for key in {*stored, *final})


def _persists(lines: Sequence[Line]) -> bool:
    return any("persist" in line["parallelism"] for line in events(lines, "started"))


def _total(lines: Sequence[Line], event: str) -> int:
    return sum(int(line["count"]) for line in events(lines, event))
