"""File `batches.json` of an attempt: its commits, from which the harvest knows the batch of each record.

Content (`lineage` is the state epoch):

{"method", "batches": [{"lineage", "batch", "planned_wall_ns", "committed_wall_ns", "end_offsets", "start_offsets"}],
"reached"}

For the fields see `faultline.engines.protocol.Commit` and `Traces`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from faultline.engines.protocol import Commit, Offsets, offsets_by_partition
from faultline.experiment.attempt import write_json
from faultline.system.errors import InfrastructureError
from faultline.system.files import read_document

BATCHES_FILE = "batches.json"


def write_batches(folder: Path, commits: Sequence[Commit], *, method: str, reached: Offsets) -> None:
    """Write the file into an attempt's folder.

    Raises InfrastructureError if there is no commit.
    """
    if not commits:
        raise InfrastructureError(f"{folder.name}: missing commits; fix: clear the whole run")
    write_json(folder / BATCHES_FILE, batches_document(commits, method=method, reached=reached))


def batches_document(commits: Iterable[Commit], *, method: str, reached: Offsets) -> dict[str, Any]:
    """Return the content of the file."""
    return {"method": method, "batches": [_row(commit) for commit in commits], "reached": dict(reached)}


def read_batches(folder: Path) -> tuple[str, tuple[Commit, ...], dict[str, int]]:
    """Return the method, the commits in order, and the offsets that were committed at the end.

    Raises InfrastructureError if the file is missing or not a JSON object.
    """
    content = read_document(folder / BATCHES_FILE)
    ordered = tuple(sorted(map(_commit, content["batches"]), key=lambda commit: (commit.epoch, commit.number)))
    reached = content.get("reached") or (ordered[-1].ends if ordered else {})
    return str(content["method"]), ordered, offsets_by_partition(reached)


def _row(commit: Commit) -> dict[str, Any]:
    return {
        "lineage": commit.epoch,
        "batch": commit.number,
        "planned_wall_ns": commit.planned_ns,
        "committed_wall_ns": commit.committed_ns,
        "end_offsets": dict(commit.ends),
        "start_offsets": None if commit.starts is None else dict(commit.starts),
    }


def _commit(line: dict[str, Any]) -> Commit:
    return Commit(
        int(line["lineage"]),
        int(line["batch"]),
        None if line.get("planned_wall_ns") is None else int(line["planned_wall_ns"]),
        int(line["committed_wall_ns"]),
        offsets_by_partition(line["end_offsets"]),
        None if line.get("start_offsets") is None else offsets_by_partition(line["start_offsets"]),
    )
