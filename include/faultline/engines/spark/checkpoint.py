"""Reads a Structured Streaming checkpoint on disk: which batches committed, when, and how large the state is.

The files are Spark's own truth: `offsets/<batch>` is written when a batch is planned, and
`commits/<batch>` when it is done, so their modification times are the instants of both.

A query may read from several sources. Offsets are those of `topic`, read more than once the least of them; None: of
the first source of Kafka's, or of events that the engine numbers itself.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from faultline.engines.protocol import Commit
from faultline.system.errors import InfrastructureError

# Of state stores. The in-memory one has names of its own for both.
ARCHIVE_SUFFIX = ".zip"
SNAPSHOT_SUFFIXES, CHANGELOG_SUFFIXES = (ARCHIVE_SUFFIX, ".snapshot"), (".changelog", ".delta")


def committed_batches(
    checkpoint: Path, *, since_ns: int | None = None, lineage: int = 0, topic: str | None = None
) -> list[Commit]:
    """The committed batches, of those made after `since_ns`, in order; empty before the first commit."""
    found = []
    for commit in _numbered(checkpoint / "commits"):
        offsets = checkpoint / "offsets" / commit.name
        try:
            committed = commit.stat().st_mtime_ns
            if since_ns is not None and committed <= since_ns:
                continue
            ends, planned = read_offsets(offsets, topic), offsets.stat().st_mtime_ns
        except (OSError, ValueError):
            continue  # purged, or being renamed into place: the next look sees it
        found.append(Commit(lineage, int(commit.name), planned, committed, ends))
    return found


def last_commit_ns(checkpoint: Path) -> int:
    """When a batch was committed last, in ns since the epoch; 0 before the first commit."""
    for commit in reversed(_numbered(checkpoint / "commits")):
        with contextlib.suppress(OSError):  # purged meanwhile
            return commit.stat().st_mtime_ns
    return 0


def latest_offsets(checkpoint: Path, topic: str | None = None) -> dict[str, int]:
    """End offsets of the newest committed batch; before the first, where the query began, or nothing."""
    for commit in reversed(_numbered(checkpoint / "commits")):
        try:
            return read_offsets(checkpoint / "offsets" / commit.name, topic)
        except (OSError, ValueError):
            continue
    # A query that began at the end of its input has nothing to commit.
    return initial_offsets(checkpoint, topic) or {}


def read_offsets(path: Path, topic: str | None = None) -> dict[str, int]:
    """End offsets by partition in an offset-log file (version line, metadata, a line for each source).

    Raises ValueError for one that is not complete, or that has none of the topic.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) < 3:
        raise ValueError(f"{path}: not a complete offset log")
    # A source that has not begun has a dash.
    ends = ends_of([json.loads(line) for line in lines[2:] if line != "-"], topic)
    if ends is None:
        raise ValueError(f"{path}: no offsets of {topic or 'a topic'}")
    return ends


def ends_of(sources: Sequence[Any], topic: str | None = None) -> dict[str, int] | None:
    """Offsets by partition, of the offsets of each source; None where none of them has any."""
    known = [one for one in sources if isinstance(one, dict) and one]
    of_topics = [one for one in known if all(isinstance(ends, dict) for ends in one.values())]
    name = topic if topic is not None else next((name for one in of_topics for name in one), None)
    read = [one[name] for one in of_topics if name in one]
    if read:
        return {str(partition): min(int(one.get(partition, 0)) for one in read) for partition in read[0]}
    numbered = [one["offset"] for one in known if isinstance(one.get("offset"), int)]
    return {"0": numbered[0]} if numbered and not of_topics else None


def initial_offsets(checkpoint: Path, topic: str | None) -> dict[str, int] | None:
    """Where the query's source began, as Spark noted it; None when it did not get to that."""
    found = []
    for source in _numbered(checkpoint / "sources"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # A zero byte and a version stand before the JSON text.
            found.append(json.loads((source / "0").read_text(encoding="utf-8").split("\n", 1)[1]))
    return ends_of(found, topic) if found else None


def commits_of(checkpoint: Path, given_up: Path, topic: str | None = None) -> list[Commit]:
    """The commits of all lineages, those `given_up` first; that folder holds one for each, named by its number.

    Raises InfrastructureError when a later lineage does not say where it began.
    """
    commits: list[Commit] = []
    for number, folder in enumerate([*_numbered(given_up), checkpoint]):
        found = committed_batches(folder, lineage=number, topic=topic)
        if number and found:
            start = initial_offsets(folder, topic)
            if start is None:
                raise InfrastructureError(f"{folder}: lineage {number} does not say where it started; measure again")
            found[0] = replace(found[0], starts=start)
        commits += found
    return commits


def copy_logs(checkpoint: Path, target: Path) -> None:
    """Copies the logs of a lineage into the new folder `target`, with the times of their files."""
    target.mkdir(parents=True)
    for name in ("offsets", "commits", "sources"):
        if (checkpoint / name).is_dir():
            shutil.copytree(checkpoint / name, target / name)  # copies times, too


def archive_epoch(checkpoint: Path, target: Path) -> None:
    """Keeps the logs of a lineage in `target`, and deletes its checkpoint."""
    copy_logs(checkpoint, target)
    shutil.rmtree(checkpoint, ignore_errors=True)


def state_document(checkpoint: Path) -> dict[str, Any]:
    """Sizes of the newest snapshot and the changelog after it, and when each snapshot was uploaded.

    {"snapshot_bytes", "changelog_bytes", "snapshots": [{"operator", "partition", "store", "version", "wall_ns"}]};
    bytes are what a recovery would read: the snapshots' archives and the table files that they refer to.
    """
    snapshot_bytes = changelog_bytes = 0
    snapshots = []
    for operator, partition, store in _stores(checkpoint / "state"):
        archives = sorted(_files(store, *SNAPSHOT_SUFFIXES), key=_version)
        name = "" if store == partition else store.name
        where = {"operator": int(operator.name), "partition": int(partition.name), "store": name}
        snapshots += [{**where, "version": _version(path), "wall_ns": path.stat().st_mtime_ns} for path in archives]
        newest = archives[-1] if archives else None
        if newest:
            snapshot_bytes += newest.stat().st_size + (_table_bytes(newest) if newest.suffix == ARCHIVE_SUFFIX else 0)
        base = _version(newest) if newest else 0
        changes = _files(store, *CHANGELOG_SUFFIXES)
        changelog_bytes += sum(path.stat().st_size for path in changes if _version(path) > base)
    return {"snapshot_bytes": snapshot_bytes, "changelog_bytes": changelog_bytes, "snapshots": snapshots}


def _stores(state: Path) -> Iterator[tuple[Path, Path, Path]]:
    """(operator, partition, store): a join keeps several stores in a partition, each in a folder of its own."""
    for operator in _numbered(state):
        for partition in _numbered(operator):
            yield operator, partition, partition
            for store in sorted(partition.iterdir()):
                if store.is_dir():
                    yield operator, partition, store


def _files(store: Path, *suffixes: str) -> list[Path]:
    return [path for suffix in suffixes for path in store.glob(f"[0-9]*{suffix}")]


def _version(path: Path) -> int:
    return version_of(path.name)


def version_of(name: str) -> int:
    """The state version in names such as 25.zip and 25_<unique id>.changelog."""
    return int(name.split(".")[0].split("_")[0])


def _table_bytes(archive: Path) -> int:
    with zipfile.ZipFile(archive) as content:
        metadata = json.loads(content.read("metadata").decode().split("\n", 1)[1])
    return sum(int(table["sizeBytes"]) for table in metadata["sstFiles"])


def _numbered(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
