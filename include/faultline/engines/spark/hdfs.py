"""A checkpoint that lies in HDFS, and its copy here: files as old as the ones there, read over HTTP (WebHDFS).

Whoever reads a checkpoint reads files, so what is new is copied before each look. Content is copied where somebody
reads it: of offsets, of where the query began, and of the newest archive of each store. Of all other files name, size
and age are enough.
"""

from __future__ import annotations

import importlib
import os
import pwd
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from faultline.engines.spark.checkpoint import ARCHIVE_SUFFIX, CHANGELOG_SUFFIXES, SNAPSHOT_SUFFIXES, version_of
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.text import one_line

SCHEME = "hdfs://"
TIMEOUT_S, TRIES = 5.0, 2
# Of a store's table files and logs, which its archives name.
SKIPPED_FOLDERS = ("SSTs", "logs")
_MS = 1_000_000
_UNREACHABLE = re.compile(r"host='([^']+)', port=(\d+)")

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class HdfsFolder:
    """Or a file. `url`: as Spark is told it, hdfs://HOST:PORT/PATH; `web`: where WebHDFS answers, http://HOST:PORT."""

    url: str
    web: str

    def __truediv__(self, name: str) -> HdfsFolder:
        return HdfsFolder(f"{self.url}/{name}", self.web)

    @property
    def path(self) -> str:
        """Without scheme and host."""
        return urlsplit(self.url).path

    def entries(self) -> dict[str, Entry]:
        """What lies in it by name, each with `type`, `size` and `modificationTime` in ms; nothing where there is no
        such folder. Raises FaultlineError."""

        def listed(client: Any) -> dict[str, Entry]:
            try:
                return {str(one["name"]).rpartition("/")[2]: one for one in client.ls(self.path, detail=True)}
            except FileNotFoundError:
                return {}

        found: dict[str, Entry] = self._asked(listed)
        return found

    def read(self) -> bytes | None:
        """Of a file; None where it is gone. Raises FaultlineError."""

        def content(client: Any) -> bytes | None:
            try:
                # What the public calls of fsspec read takes the page of an error for the file.
                return bytes(client._call("OPEN", path=self.path).content)
            except FileNotFoundError:
                return None

        found: bytes | None = self._asked(content)
        return found

    def write(self, content: bytes) -> None:
        """Makes a file. Raises FaultlineError."""
        self._asked(lambda client: client.pipe_file(self.path, content))

    def make(self) -> None:
        """Makes the folder. Raises FaultlineError."""
        self._asked(lambda client: client.mkdir(self.path))

    def modified_ms(self) -> int | None:
        """When it was changed last, by the name node's clock; None where it is not there. Raises FaultlineError."""

        def at(client: Any) -> int | None:
            try:
                return int(client.info(self.path)["modificationTime"])
            except FileNotFoundError:
                return None

        found: int | None = self._asked(at)
        return found

    def remove(self) -> None:
        """With all that lies in it; harmless when it is gone. Raises FaultlineError."""
        self._asked(lambda client: client.rm(self.path, recursive=True))

    def _asked(self, ask: Callable[[Any], Any]) -> Any:
        try:
            return ask(_client(self.web))
        except PermissionError as error:
            raise ConfigError(f"storage: {self.url}: {one_line(error)}; let this user write there") from None
        except (OSError, RuntimeError, ValueError, LookupError) as error:  # those of `requests` are the first, too
            silent = _UNREACHABLE.search(str(error))
            why = f"{silent[1]}:{silent[2]} does not answer" if silent else one_line(error)
            raise InfrastructureError(
                f"storage: {self.url}: {why}; let this machine reach WebHDFS, of name node ({self.web}) and data nodes"
            ) from None


@lru_cache(maxsize=4)
def _client(web: str) -> Any:
    """One that waits for no answer for ever, and is the user that Spark's programs are."""
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    class Patient(HTTPAdapter):
        def send(self, *args: Any, **more: Any) -> Any:
            return super().send(*args, **{**more, "timeout": TIMEOUT_S})

    address, web_hdfs = urlsplit(web), importlib.import_module("fsspec.implementations.webhdfs")
    user = pwd.getpwuid(os.geteuid()).pw_name
    client: Any = web_hdfs.WebHDFS(address.hostname, address.port, user=user, skip_instance_cache=True)
    client.session.trust_env = False  # no proxy stands between
    client.session.mount("http://", Patient(max_retries=Retry(TRIES, backoff_factor=0.2)))
    return client


def copy_logs(there: HdfsFolder, here: Path) -> None:
    """Copies what is new of a checkpoint's logs. What was purged there stays here. Raises FaultlineError."""
    # Listed first and copied last: whoever sees a commit looks for its offsets.
    committed = _numbered(there / "commits")
    sources = [f"sources/{number}" for number in _numbered(there / "sources", "directory")]
    for log in (*sources, "offsets"):
        _copy(there / log, here / log, _numbered(there / log), read=lambda _: True)
    _copy(there / "commits", here / "commits", committed, read=lambda _: False)


def copy_state(there: HdfsFolder, here: Path, *, operators: Iterable[str] | None = None) -> None:
    """Copies what is new of the state of these operators, or of all; see above. Raises FaultlineError."""
    for operator in operators if operators is not None else _numbered(there / "state", "directory"):
        for partition in _numbered(there / "state" / operator, "directory"):
            _copy_stores(there / "state" / operator / partition, here / "state" / operator / partition)


def _copy_stores(there: HdfsFolder, here: Path) -> None:
    """A join keeps several stores in a partition, each in a folder of its own."""
    found = there.entries()
    kept = {name: one for name, one in found.items() if one["type"] == "file" and _is_state_file(name)}
    newest = max((version_of(name) for name in kept if name.endswith(ARCHIVE_SUFFIX)), default=None)
    _copy(there, here, kept, read=lambda name: name.endswith(ARCHIVE_SUFFIX) and version_of(name) == newest)
    for name, one in found.items():
        if one["type"] == "directory" and name not in SKIPPED_FOLDERS:
            _copy_stores(there / name, here / name)


def _numbered(folder: HdfsFolder, kind: str = "file") -> dict[str, Entry]:
    return {name: one for name, one in folder.entries().items() if one["type"] == kind and name.isdigit()}


def _copy(there: HdfsFolder, here: Path, entries: Mapping[str, Entry], *, read: Callable[[str], bool]) -> None:
    """Those that are new, or were written anew. `read`: whether somebody reads what is in them."""
    for name, one in entries.items():
        target, size, changed_ns = here / name, int(one["size"]), int(one["modificationTime"]) * _MS
        hollow = not read(name)
        if target.exists() and (target.stat().st_size, target.stat().st_mtime_ns) == (size, changed_ns):
            if hollow or not _is_placeholder(target):
                continue
        content = b"" if hollow else (there / name).read()
        if content is None or not (hollow or len(content) == size):
            continue  # purged or written anew meanwhile: the next look sees it
        here.mkdir(parents=True, exist_ok=True)
        made = here / f".{name}.new"
        made.write_bytes(content)
        os.truncate(made, size)
        os.utime(made, ns=(changed_ns, changed_ns))
        made.rename(target)


def _is_placeholder(file: Path) -> bool:
    """Whether only name, size and age of it were copied: an archive that is the newest of its version since."""
    with file.open("rb") as content:
        return not content.read(4).strip(b"\0")


def _is_state_file(name: str) -> bool:
    return name[0].isdigit() and name.endswith((*SNAPSHOT_SUFFIXES, *CHANGELOG_SUFFIXES))
