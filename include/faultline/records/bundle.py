"""Bundle: records and the raw files that they were computed from, in one compressed file that can be published.

It is a tar archive (xz) of a results folder. Its first member, `bundle.json`, lists the SHA-256 of every other file.
The recorder's journals are stored as columns (`journal_columns`). Every command can read the folder that
`scripts/unpack.py` writes (`FAULTLINE_RESULTS`). Equal members give a byte-identical archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import lzma
import os
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from pydantic import BaseModel, ConfigDict, ValidationError

from faultline.records.journal_columns import from_columns, to_columns
from faultline.records.record import Record
from faultline.records.record_problems import content_problem, place_problem
from faultline.system.errors import ConfigError

SUFFIX = ".tar.xz"
LISTING, ROOT = "bundle.json", "results"
# Journal that is stored as columns, and the suffix that its member then has.
JOURNAL, COLUMNS = "recorder.jsonl", ".columns"
# Large compression window: similar journals are adjacent, so most of a line repeats.
_PRESET = 9 | lzma.PRESET_EXTREME
# Limit of the unpacked size: a bundle may come from elsewhere.
MOST_BYTES = 4 * 2**30
_BROKEN = (tarfile.TarError, lzma.LZMAError, EOFError, ValueError)


@dataclass(frozen=True)
class Member:
    """File of a bundle: path below `results/` and content.

    If the file was reduced: `original`, the SHA-256 before that, and `how`, a description of the reduction.
    """

    path: str
    content: bytes
    original: str | None = None
    how: str = ""


class BundleEntry(BaseModel):
    """Entry of a file in a bundle. `original`: SHA-256 of the file before its reduction, if it was reduced."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str
    original: str | None = None
    how: str | None = None


class Listing(BaseModel):
    """`bundle.json`: the files by path."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bundle: int = 1
    files: dict[str, BundleEntry]


@dataclass(frozen=True)
class Bundle:
    """Content of a bundle; every file matches its hash."""

    path: Path
    files: Mapping[str, bytes]
    listing: Listing

    def records(self) -> list[Record]:
        """Return the records, sorted by attempt. Raises ConfigError naming file and key if one is invalid."""
        return sorted(self._records(), key=lambda record: record.attempt)

    def unpack(self, folder: Path) -> None:
        """Write the files to `folder`, a results folder. Raises ConfigError if a file cannot be written."""
        for name, content in self.files.items():
            target = folder / name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            except OSError as error:
                raise ConfigError(f"{self.path}: {name}: cannot be unpacked ({error.strerror})") from None

    def _records(self) -> Iterator[Record]:
        for name in sorted(self.files):
            if name.startswith("records/"):
                try:
                    record = Record.model_validate_json(self.files[name])
                except ValidationError as error:
                    problem = content_problem(error, "fix: create the bundle again")
                    raise ConfigError(f"{self.path}: {name}: {problem}") from None
                file = PurePosixPath(name)
                if misplaced := place_problem(record, file.parent.name, file.stem):
                    raise ConfigError(f"{self.path}: {name}: {misplaced}; fix: create the bundle again")
                yield record


def sha256(content: bytes) -> str:
    """Return the SHA-256 digest in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def write_bundle(path: Path, members: Iterable[Member]) -> None:
    """Write a bundle atomically. Raises ConfigError if the file cannot be written."""
    # Equally named files of different attempts are similar, so they compress better side by side.
    ordered = sorted(members, key=lambda member: (PurePosixPath(member.path).name, member.path))
    listing = _listing_of(ordered)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        contents = [(LISTING, listing), *map(_stored, ordered)]
        try:
            with os.fdopen(descriptor, "wb") as file, lzma.open(file, "wb", preset=_PRESET) as compressed:
                _write_archive(compressed, contents)
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); fix: name a writable file") from None


def _stored(member: Member) -> tuple[str, bytes]:
    """Return name and content of a member in the archive."""
    name = f"{ROOT}/{member.path}"
    if PurePosixPath(name).name == JOURNAL:
        with contextlib.suppress(UnicodeDecodeError):
            return name + COLUMNS, to_columns(member.content)
    return name, member.content


def _write_archive(target: IO[bytes], members: Iterable[tuple[str, bytes]]) -> None:
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))


def read_bundle(path: Path) -> Bundle:
    """Read a bundle and compare every file with its hash.

    Raises ConfigError naming the file if it is not a bundle or was changed.
    """
    found: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(path, "r:xz") as archive:
            for member in archive:
                total += member.size
                if total > MOST_BYTES or member.issparse():
                    raise ConfigError(
                        f"{path}: {member.name}: expected regular files of at most {MOST_BYTES} bytes in total"
                    )
                file = archive.extractfile(member) if member.isfile() else None
                is_columns = PurePosixPath(member.name).name == JOURNAL + COLUMNS
                name = member.name.removesuffix(COLUMNS) if is_columns else member.name
                if file is None or name in found:
                    raise ConfigError(f"{path}: {member.name}: got an unexpected member; fix: get the bundle again")
                content = file.read()
                found[name] = from_columns(content, MOST_BYTES - total) if is_columns else content
                total += len(found[name]) - len(content)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}); expected a bundle") from None
    except _BROKEN as error:
        raise ConfigError(f"{path}: got a damaged bundle ({error}); fix: get it again") from None
    listing = _read_listing(path, found.pop(LISTING, None))
    files = {name.removeprefix(f"{ROOT}/"): content for name, content in found.items()}
    for name in sorted(files.keys() ^ listing.files.keys()):
        problem = f"not listed in {LISTING}" if name in files else "missing"
        raise ConfigError(f"{path}: {name}: {problem}; fix: get the bundle again")
    for name, content in files.items():
        if sha256(content) != listing.files[name].sha256:
            raise ConfigError(f"{path}: {name}: SHA-256 differs from {LISTING}; fix: get the bundle again")
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            raise ConfigError(f"{path}: {name}: got a path outside the bundle; expected a relative path without ..")
    return Bundle(path, files, listing)


def _listing_of(members: Iterable[Member]) -> bytes:
    files = {
        member.path: BundleEntry(sha256=sha256(member.content), original=member.original, how=member.how or None)
        for member in members
    }
    content = Listing(files=dict(sorted(files.items()))).model_dump(mode="json", exclude_none=True)
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _read_listing(path: Path, content: bytes | None) -> Listing:
    if content is None:
        raise ConfigError(f"{path}: {LISTING}: missing; expected a bundle of `./faultline results --bundle`")
    try:
        return Listing.model_validate_json(content)
    except ValidationError as error:
        raise ConfigError(f"{path}: {LISTING}: {content_problem(error)}; fix: get the bundle again") from None
