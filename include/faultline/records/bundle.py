"""A bundle: records and the raw files that they were made of, in one compressed file that can be published.

It is a tar archive (xz) with the folders of `results/` under `results/`, and `bundle.json` as its first member, which
holds SHA-256 of every other one. Unpacked, it is a folder that every command reads (`FAULTLINE_RESULTS`). Equal members
give an equal archive, to the byte.
"""

from __future__ import annotations

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

from faultline.records.record import Record
from faultline.records.record_problems import content_problem, place_problem
from faultline.system.errors import ConfigError

SUFFIX = ".tar.xz"
LISTING, ROOT = "bundle.json", "results"
# A large window: journals of one kind are adjacent, so most of a line repeats.
_PRESET = 9 | lzma.PRESET_EXTREME
# Limit when unpacked: the sizes that a foreign bundle states are not trusted.
MOST_BYTES = 4 * 2**30
_BROKEN = (tarfile.TarError, lzma.LZMAError, EOFError)


@dataclass(frozen=True)
class Member:
    """File of a bundle: path below `results/` and content.

    `original`, `how`: SHA-256 of the file before its reduction, and the reduction in words.
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
    """A bundle that was read whole, each of its files as its hash says."""

    path: Path
    files: Mapping[str, bytes]
    listing: Listing

    def records(self) -> list[Record]:
        """Return the records of the bundle in order of attempt. Raises ConfigError naming file and key."""
        return sorted(self._records(), key=lambda record: record.attempt)

    def unpack(self, folder: Path) -> None:
        """Write its files; `folder` is a results folder then. Raises ConfigError for one that cannot be written."""
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
                    why = content_problem(error, "make the bundle again")
                    raise ConfigError(f"{self.path}: {name}: {why}") from None
                place = PurePosixPath(name)
                if problem := place_problem(record, place.parent.name, place.stem):
                    raise ConfigError(f"{self.path}: {name}: {problem}; make the bundle again")
                yield record


def sha256(content: bytes) -> str:
    """Return the SHA-256 digest in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def write_bundle(path: Path, members: Iterable[Member]) -> None:
    """Write a bundle, whole or not at all. Raises ConfigError for a file that cannot be written."""
    # Files of one name are adjacent across attempts, because they are alike.
    ordered = sorted(members, key=lambda one: (PurePosixPath(one.path).name, one.path))
    listing = _listing_of(ordered)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        made = Path(name)
        try:
            with os.fdopen(number, "wb") as file, lzma.open(file, "wb", preset=_PRESET) as packed:
                _write_archive(packed, [(LISTING, listing), *((f"{ROOT}/{one.path}", one.content) for one in ordered)])
            made.chmod(0o644)
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); name a file that can") from None


def _write_archive(packed: IO[bytes], members: Iterable[tuple[str, bytes]]) -> None:
    with tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for inside, content in members:
            about = tarfile.TarInfo(inside)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))


def read_bundle(path: Path) -> Bundle:
    """Read a bundle and holds every file against its hash.

    Raises ConfigError with one line that names the file if it is not a bundle or was changed.
    """
    found: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(path, "r:xz") as archive:
            for member in archive:
                total += member.size
                if total > MOST_BYTES or member.issparse():
                    raise ConfigError(f"{path}: {member.name}: is larger than a bundle may be; get it from elsewhere")
                file = archive.extractfile(member) if member.isfile() else None
                if file is None or member.name in found:
                    raise ConfigError(f"{path}: {member.name}: got an unexpected member; fix: get the bundle again")
                found[member.name] = file.read()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}); give a bundle") from None
    except _BROKEN as error:
        raise ConfigError(f"{path}: got a damaged bundle ({error}); fix: get it again") from None
    listing = _read_listing(path, found.pop(LISTING, None))
    files = {name.removeprefix(f"{ROOT}/"): content for name, content in found.items()}
    for name in sorted(files.keys() ^ listing.files.keys()):
        why = "is not listed" if name in files else "is missing"
        raise ConfigError(f"{path}: {name}: {why} in {LISTING}; get the bundle again")
    for name, content in files.items():
        if sha256(content) != listing.files[name].sha256:
            raise ConfigError(f"{path}: {name}: is not what {LISTING} says, by its SHA-256; get the bundle again")
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            raise ConfigError(f"{path}: {name}: leads out of the bundle; get it from elsewhere")
    return Bundle(path, files, listing)


def _listing_of(members: Iterable[Member]) -> bytes:
    files = {
        one.path: BundleEntry(sha256=sha256(one.content), original=one.original, how=one.how or None) for one in members
    }
    content = Listing(files=dict(sorted(files.items()))).model_dump(mode="json", exclude_none=True)
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _read_listing(path: Path, content: bytes | None) -> Listing:
    if content is None:
        raise ConfigError(f"{path}: has no {LISTING}; give a bundle that `./faultline results --bundle` made")
    try:
        return Listing.model_validate_json(content)
    except ValidationError as error:
        raise ConfigError(f"{path}: {LISTING}: {content_problem(error)}; get the bundle again") from None
