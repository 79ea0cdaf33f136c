"""A checkpoint that lies in HDFS, and its copy here: files as old as the ones there, read over HTTP (WebHDFS).

Whoever reads a checkpoint reads files, so what is new is copied before each look. Of the state only the newest archive
of each store is copied; of all other files nobody reads more than name, size and age.
"""

from __future__ import annotations

import getpass
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from faultline.base.errors import ConfigError, InfrastructureError
from faultline.base.text import one_line

SCHEME = "hdfs://"
# Offsets before commits: whoever sees a commit looks for its offsets.
LOGS = ("sources/0", "offsets", "commits")
ANSWER_S, TRIES = 10.0, 3
_MS = 1_000_000
ARCHIVES = (".zip", ".snapshot")


@dataclass(frozen=True)
class HdfsFolder:
    """`url`: as Spark is told it, hdfs://HOST:PORT/PATH; `web`: where WebHDFS answers, http://HOST:PORT."""

    url: str
    web: str

    def __truediv__(self, name: str) -> HdfsFolder:
        return HdfsFolder(f"{self.url}/{name}", self.web)

    @property
    def path(self) -> str:
        """Without scheme and host."""
        return urlsplit(self.url).path

    def files(self) -> list[Mapping[str, Any]]:
        """What lies in it, each with `name` (its whole path), `type`, `size` and `modificationTime` in ms; nothing
        where there is no such folder. Raises InfrastructureError."""

        def listed(client: Any) -> list[Mapping[str, Any]]:
            try:
                return list(client.ls(self.path, detail=True))
            except FileNotFoundError:
                return []

        return list(self._asked(listed))

    def read(self) -> bytes | None:
        """Of a file; None where it is gone. Raises InfrastructureError."""

        def content(client: Any) -> bytes | None:
            try:
                return bytes(client.cat_file(self.path))
            except FileNotFoundError:
                return None

        found: bytes | None = self._asked(content)
        return found

    def make(self) -> None:
        """Makes the folder, with those above it. Raises InfrastructureError."""
        self._asked(lambda client: client.makedirs(self.path, exist_ok=True))

    def changed_ms(self) -> int:
        """When it was changed last, by the clock of the name node. Raises InfrastructureError."""
        return int(self._asked(lambda client: client.info(self.path))["modificationTime"])

    def remove(self) -> None:
        """With all that lies in it; harmless where it is gone. Raises InfrastructureError."""
        self._asked(lambda client: client.exists(self.path) and client.rm(self.path, recursive=True))

    def _asked(self, ask: Callable[[Any], Any]) -> Any:
        try:
            return ask(_client(self.web))
        except PermissionError as error:
            raise ConfigError(f"storage: {self.url}: {one_line(error)}; let this user write there") from None
        except (OSError, RuntimeError, ValueError) as error:  # those of `requests` are the first, too
            why = "no answer" if "Max retries exceeded" in str(error) else one_line(error)
            raise InfrastructureError(f"storage: {self.web}: {why}; look whether WebHDFS is there") from None


@lru_cache(maxsize=4)
def _client(web: str) -> Any:
    """One that waits for no answer for ever."""
    web_hdfs: Any = importlib.import_module("fsspec.implementations.webhdfs")
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    class Patient(HTTPAdapter):
        def send(self, *args: Any, **more: Any) -> Any:
            return super().send(*args, **{**more, "timeout": ANSWER_S})

    address = urlsplit(web)
    client = web_hdfs.WebHDFS(address.hostname, address.port, user=getpass.getuser(), skip_instance_cache=True)
    client.session.trust_env = False  # no proxy stands between
    client.session.mount("http://", Patient(max_retries=Retry(TRIES, backoff_factor=0.2)))
    return client


def copy_logs(there: HdfsFolder, here: Path) -> None:
    """Copies what is new of a checkpoint's logs. What was purged there stays here. Raises InfrastructureError."""
    for log in LOGS:
        _copy_new(there / log, here / log, lambda name: name.isdigit(), lambda _: True)


def copy_state(there: HdfsFolder, here: Path) -> None:
    """Copies what is new of the state's files; see above. Raises InfrastructureError."""
    for store in _stores(there / "state", depth=3):
        names = [_name(one) for one in store.files() if one["type"] == "file" and _name(one).endswith(ARCHIVES)]
        newest = max(names, key=_version, default=None)
        local = here / str(Path(store.path).relative_to(there.path))
        _copy_new(store, local, lambda name: name[0].isdigit(), newest.__eq__)


def _stores(folder: HdfsFolder, depth: int) -> Iterator[HdfsFolder]:
    """`state/operator/partition`, and what lies in a partition for each store."""
    for one in folder.files():
        if one["type"] == "directory":
            inner = folder / _name(one)
            if depth < 3:
                yield inner
            if depth > 1:
                yield from _stores(inner, depth - 1)


def _copy_new(there: HdfsFolder, here: Path, wanted: Callable[[str], bool], is_read: Callable[[str], bool]) -> None:
    for one in sorted(there.files(), key=_name):
        name = _name(one)
        target = here / name
        if one["type"] != "file" or not wanted(name) or (target.exists() and not _is_hollow(target, is_read(name))):
            continue
        content = (there / name).read() if is_read(name) else b""
        if content is None:
            continue  # purged meanwhile
        here.mkdir(parents=True, exist_ok=True)
        made = here / f".{name}.new"
        made.write_bytes(content)
        os.truncate(made, one["size"])
        changed_ns = int(one["modificationTime"]) * _MS
        os.utime(made, ns=(changed_ns, changed_ns))
        made.rename(target)


def _is_hollow(file: Path, is_read: bool) -> bool:
    """Whether what is to be read now was noted by its size alone."""
    found = file.stat()
    return is_read and found.st_size > 0 and found.st_blocks == 0


def _name(one: Mapping[str, Any]) -> str:
    return str(one["name"]).rpartition("/")[2]


def _version(name: str) -> int:
    return int(name.split(".")[0].split("_")[0])
