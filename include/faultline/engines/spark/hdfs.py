"""Checkpoints in HDFS, and their local copies with equal file times, read over WebHDFS.

Code that reads checkpoints expects local files, so changes are copied before each read. Content is copied only if it is
needed: offsets, source starts, and the newest archive of each store. Other files are represented by a local file
with equal name, size and time.
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
# Folders that need no copy, because the archives list their files.
SKIPPED_FOLDERS = ("SSTs", "logs")
_MS = 1_000_000
_UNREACHABLE = re.compile(r"host='([^']+)', port=(\d+)")

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class HdfsFolder:
    """HDFS folder or file. `url`: hdfs://HOST:PORT/PATH; `web`: WebHDFS address, http://HOST:PORT."""

    url: str
    web: str

    def __truediv__(self, name: str) -> HdfsFolder:
        return HdfsFolder(f"{self.url}/{name}", self.web)

    @property
    def path(self) -> str:
        """Path without scheme and host."""
        return urlsplit(self.url).path

    def entries(self) -> dict[str, Entry]:
        """Return the entries by name, each with `type`, `size` and `modificationTime` in ms.

        Empty if the folder does not exist. Raises FaultlineError.
        """

        def listed(client: Any) -> dict[str, Entry]:
            try:
                return {str(one["name"]).rpartition("/")[2]: one for one in client.ls(self.path, detail=True)}
            except FileNotFoundError:
                return {}

        found: dict[str, Entry] = self._request(listed)
        return found

    def read(self) -> bytes | None:
        """Return the content of the file; None if it does not exist.

        Raises FaultlineError.
        """

        def content(client: Any) -> bytes | None:
            try:
                # The public read calls of fsspec return an error page as content.
                return bytes(client._call("OPEN", path=self.path).content)
            except FileNotFoundError:
                return None

        found: bytes | None = self._request(content)
        return found

    def write(self, content: bytes) -> None:
        """Create the file.

        Raises FaultlineError.
        """
        self._request(lambda client: client.pipe_file(self.path, content))

    def make(self) -> None:
        """Create the folder.

        Raises FaultlineError.
        """
        self._request(lambda client: client.mkdir(self.path))

    def modified_ms(self) -> int | None:
        """Return its modification time by the name node's clock; None if missing.

        Raises FaultlineError.
        """

        def at(client: Any) -> int | None:
            try:
                return int(client.info(self.path)["modificationTime"])
            except FileNotFoundError:
                return None

        found: int | None = self._request(at)
        return found

    def remove(self) -> None:
        """Remove it recursively; do nothing if it does not exist.

        Raises FaultlineError.
        """
        self._request(lambda client: client.rm(self.path, recursive=True))

    def _request(self, call: Callable[[Any], Any]) -> Any:
        try:
            return call(_client(self.web))
        except PermissionError as error:
            raise ConfigError(f"storage: {self.url}: {one_line(error)}; fix: grant this user write access") from None
        except (OSError, RuntimeError, ValueError, LookupError) as error:  # `requests` raises subclasses of OSError
            unreachable = _UNREACHABLE.search(str(error))
            why = f"{unreachable[1]}:{unreachable[2]} does not answer" if unreachable else one_line(error)
            raise InfrastructureError(
                f"storage: {self.url}: {why}; fix: make WebHDFS of name node ({self.web}) and data nodes reachable"
            ) from None


@lru_cache(maxsize=4)
def _client(web: str) -> Any:
    """Return a client with request timeouts that acts as the user of Spark's programs."""
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    class TimeoutAdapter(HTTPAdapter):
        def send(self, *args: Any, **more: Any) -> Any:
            return super().send(*args, **{**more, "timeout": TIMEOUT_S})

    address, web_hdfs = urlsplit(web), importlib.import_module("fsspec.implementations.webhdfs")
    user = pwd.getpwuid(os.geteuid()).pw_name
    client: Any = web_hdfs.WebHDFS(address.hostname, address.port, user=user, skip_instance_cache=True)
    client.session.trust_env = False  # connect without a proxy
    client.session.mount("http://", TimeoutAdapter(max_retries=Retry(TRIES, backoff_factor=0.2)))
    return client


def copy_logs(remote: HdfsFolder, local: Path) -> None:
    """Copy new files of a checkpoint's logs; keep local copies of purged files.

    Raises FaultlineError.
    """
    # Commits are listed first and copied last, so that each copied commit has its offsets.
    committed = _numbered(remote / "commits")
    sources = [f"sources/{number}" for number in _numbered(remote / "sources", "directory")]
    for log in (*sources, "offsets"):
        _copy(remote / log, local / log, _numbered(remote / log), read=lambda _: True)
    _copy(remote / "commits", local / "commits", committed, read=lambda _: False)


def copy_state(remote: HdfsFolder, local: Path, *, operators: Iterable[str] | None = None) -> None:
    """Copy new state files of these operators; None: of all.

    Raises FaultlineError.
    """
    for operator in operators if operators is not None else _numbered(remote / "state", "directory"):
        for partition in _numbered(remote / "state" / operator, "directory"):
            _copy_stores(remote / "state" / operator / partition, local / "state" / operator / partition)


def _copy_stores(remote: HdfsFolder, local: Path) -> None:
    """Copy a partition; a join has several stores in it, each in its own folder."""
    found = remote.entries()
    kept = {name: one for name, one in found.items() if one["type"] == "file" and _is_state_file(name)}
    newest = max((version_of(name) for name in kept if name.endswith(ARCHIVE_SUFFIX)), default=None)
    _copy(remote, local, kept, read=lambda name: name.endswith(ARCHIVE_SUFFIX) and version_of(name) == newest)
    for name, one in found.items():
        if one["type"] == "directory" and name not in SKIPPED_FOLDERS:
            _copy_stores(remote / name, local / name)


def _numbered(folder: HdfsFolder, kind: str = "file") -> dict[str, Entry]:
    return {name: one for name, one in folder.entries().items() if one["type"] == kind and name.isdigit()}


def _copy(remote: HdfsFolder, local: Path, entries: Mapping[str, Entry], *, read: Callable[[str], bool]) -> None:
    """Copy new and rewritten files. `read`: returns whether a file's content is needed."""
    for name, one in entries.items():
        target, size, changed_ns = local / name, int(one["size"]), int(one["modificationTime"]) * _MS
        is_placeholder = not read(name)
        if target.exists() and (target.stat().st_size, target.stat().st_mtime_ns) == (size, changed_ns):
            if is_placeholder or not _is_placeholder(target):
                continue
        content = b"" if is_placeholder else (remote / name).read()
        if content is None or not (is_placeholder or len(content) == size):
            continue  # purged or rewritten concurrently: the next call sees it
        local.mkdir(parents=True, exist_ok=True)
        part = local / f".{name}.new"
        part.write_bytes(content)
        os.truncate(part, size)
        os.utime(part, ns=(changed_ns, changed_ns))
        part.rename(target)


def _is_placeholder(file: Path) -> bool:
    """Return whether only name, size and time of a file were copied, as for archives that are not the newest."""
    with file.open("rb") as content:
        return not content.read(4).strip(b"\0")


def _is_state_file(name: str) -> bool:
    return name[0].isdigit() and name.endswith((*SNAPSHOT_SUFFIXES, *CHANGELOG_SUFFIXES))
