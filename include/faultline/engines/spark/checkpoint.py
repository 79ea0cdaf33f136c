"""Structured Streaming checkpoints on disk: commits, offsets and state sizes.

Spark writes `offsets/<batch>` when it plans a batch and `commits/<batch>` when the batch is done, so their modification
times are the instants of both.

A query may read several sources. Functions with `topic` return the offsets of that topic, and the smallest ones if
several sources read it. None selects the first Kafka source, or the events that the engine numbers itself.
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

# File suffixes of state stores; the in-memory store uses .snapshot and .delta.
ARCHIVE_SUFFIX = ".zip"
SNAPSHOT_SUFFIXES, CHANGELOG_SUFFIXES = (ARCHIVE_SUFFIX, ".snapshot"), (".changelog", ".delta")


def committed_batches(
    checkpoint: Path, *, since_ns: int | None = None, lineage: int = 0, topic: str | None = None
) -> list[Commit]:
    """Return the batches committed after `since_ns`, in order; empty before the first commit."""
    found = []
    for commit in _numbered(checkpoint / "commits"):
        offsets = checkpoint / "offsets" / commit.name
        try:
            committed = commit.stat().st_mtime_ns
            if since_ns is not None and committed <= since_ns:
                continue
            ends, planned = read_offsets(offsets, topic), offsets.stat().st_mtime_ns
        except (OSError, ValueError):
            continue  # purged, or being renamed: the next call sees it
        found.append(Commit(lineage, int(commit.name), planned, committed, ends))
    return found


def last_commit_ns(checkpoint: Path) -> int:
    """Return the instant of the last commit, in ns since the epoch; 0 before the first."""
    for commit in reversed(_numbered(checkpoint / "commits")):
        with contextlib.suppress(OSError):  # purged concurrently
            return commit.stat().st_mtime_ns
    return 0


def latest_offsets(checkpoint: Path, topic: str | None = None) -> dict[str, int]:
    """Return the end offsets of the newest commit; before the first, those where the query started, or none."""
    for commit in reversed(_numbered(checkpoint / "commits")):
        try:
            return read_offsets(checkpoint / "offsets" / commit.name, topic)
        except (OSError, ValueError):
            continue
    # A query that started at the end of its input has nothing to commit.
    return initial_offsets(checkpoint, topic) or {}


def read_offsets(path: Path, topic: str | None = None) -> dict[str, int]:
    """Return the end offsets by partition in an offset log (version, metadata, one line per source).

    Raises ValueError if the log is incomplete or does not contain the topic.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) < 3:
        raise ValueError(f"{path}: not a complete offset log")
    # A source that has not started has a dash.
    ends = ends_of([json.loads(line) for line in lines[2:] if line != "-"], topic)
    if ends is None:
        raise ValueError(f"{path}: no offsets of {topic or 'a topic'}")
    return ends


def ends_of(sources: Sequence[Any], topic: str | None = None) -> dict[str, int] | None:
    """Return the end offsets by partition from those of each source; None if no source has any."""
    known = [one for one in sources if isinstance(one, dict) and one]
    of_topics = [one for one in known if all(isinstance(ends, dict) for ends in one.values())]
    name = topic if topic is not None else next((name for one in of_topics for name in one), None)
    read = [one[name] for one in of_topics if name in one]
    if read:
        return {str(partition): min(int(one.get(partition, 0)) for one in read) for partition in read[0]}
    numbered = [one["offset"] for one in known if isinstance(one.get("offset"), int)]
    return {"0": numbered[0]} if numbered and not of_topics else None


def initial_offsets(checkpoint: Path, topic: str | None) -> dict[str, int] | None:
    """Return the offsets at which the query's source started; None if Spark has not recorded them."""
    found = []
    for source in _numbered(checkpoint / "sources"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The JSON text follows a zero byte and a version line.
            found.append(json.loads((source / "0").read_text(encoding="utf-8").split("\n", 1)[1]))
    return ends_of(found, topic) if found else None


def commits_of(checkpoint: Path, archived: Path, topic: str | None = None) -> list[Commit]:
    """Return the commits of all state epochs; `archived` holds one numbered folder per earlier epoch.

    Raises InfrastructureError if the start of a later epoch is not recorded.
    """
    commits: list[Commit] = []
    for number, folder in enumerate([*_numbered(archived), checkpoint]):
        found = committed_batches(folder, lineage=number, topic=topic)
        if number and found:
            start = initial_offsets(folder, topic)
            if start is None:
                raise InfrastructureError(f"{folder}: missing start of state epoch {number}; fix: rerun the experiment")
            found[0] = replace(found[0], starts=start)
        commits += found
    return commits


def copy_logs(checkpoint: Path, target: Path) -> None:
    """Copy the logs of an epoch into the new folder `target`, with their file times."""
    target.mkdir(parents=True)
    for name in ("offsets", "commits", "sources"):
        if (checkpoint / name).is_dir():
            shutil.copytree(checkpoint / name, target / name)  # preserves file times


def archive_epoch(checkpoint: Path, target: Path) -> None:
    """Copy the logs of an epoch to `target`, and delete its checkpoint."""
    copy_logs(checkpoint, target)
    shutil.rmtree(checkpoint, ignore_errors=True)


def state_document(checkpoint: Path) -> dict[str, Any]:
    """Return sizes of the newest snapshot and the later changelog, and upload times of all snapshots.

    {"snapshot_bytes", "changelog_bytes", "snapshots": [{"operator", "partition", "store", "version", "wall_ns"}]}

    Bytes are those that a recovery would read: snapshot archives and the table files that they reference.
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
    """Yield (operator, partition, store); a join has several stores in a partition, each in its own folder."""
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
    """Return the state version in a name such as 25.zip or 25_<unique id>.changelog."""
    return int(name.split(".")[0].split("_")[0])


def _table_bytes(archive: Path) -> int:
    with zipfile.ZipFile(archive) as content:
        metadata = json.loads(content.read("metadata").decode().split("\n", 1)[1])
    return sum(int(table["sizeBytes"]) for table in metadata["sstFiles"])


def _numbered(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
