"""`./faultline publish DIR`: the results as a static site, which needs no server and no network.

The pages that Airflow's UI shows are asked for one after another, from the overview on, and written with links from
file to file. What asks a server is left out: choices, downloads of all experiments, and what runs now.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape, unescape
from pathlib import Path
from posixpath import relpath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from faultline.system.errors import ConfigError
from faultline.system.settings import Settings
from faultline.system.text import Progress, pluralize

if TYPE_CHECKING:
    from fastapi import FastAPI

# Written last into a folder that is one of ours, so that a later call may replace it.
MARK = ".faultline-site"
PREFIX = "/site"
MOST_PAGES = 20_000
# Addresses that make no page of their own in a folder: they ask, change by themselves, or lead into Airflow.
_LEFT_OUT = re.compile(rf"{PREFIX}/(live|now|metrics|runs|dags)\b|{PREFIX}/(compare|overlay)$|{PREFIX}/experiments\.")
_LINK = re.compile(r"""(?P<name>href|src|action)=(?P<quote>["'])(?P<address>.*?)(?P=quote)""")
_REFRESH = re.compile(r' data-refresh="[^"]*"')
_STATIC_STYLE = "<style>form.choice, .ask, #now { display: none }</style>"


def publish(settings: Settings, target: Path, say: Progress) -> Path:
    """Writes the site to the folder `target`, in place of one that is there already; returns its first page.

    Raises ConfigError for a folder that holds anything else, or cannot be written.
    """
    _require_ours(target)
    building: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Of a name that nobody has, since it is removed in the end.
        building = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        building.chmod(0o755)
        pages = 0
        for address, answer in crawl(settings):
            path = building / file_of(address)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(answer.body)
            pages += answer.media_type.startswith("text/html")
        (building / MARK).write_text("Made by ./faultline publish, which may replace this folder.\n")
        shutil.rmtree(target, ignore_errors=True)
        building.rename(target)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written ({error.strerror}); name a folder that can") from error
    finally:
        if building is not None:
            shutil.rmtree(building, ignore_errors=True)
    say(f"{pluralize(pages, 'page')} in {target}; open {target / 'index.html'}")
    return target / "index.html"


def crawl(settings: Settings) -> Iterator[tuple[str, AsgiResponse]]:
    """Every address that a page of the site leads to, with what stands there, its links made into links of files."""
    app, seen, waiting = _app(settings), {f"{PREFIX}/"}, deque([f"{PREFIX}/"])
    while waiting and len(seen) <= MOST_PAGES:
        address = waiting.popleft()
        answer = ask(app, address.removeprefix(PREFIX))
        if answer.status != 200:
            continue
        if not answer.media_type.startswith("text/html"):
            yield address, answer
            continue
        text = answer.text
        for found in addresses_in(text):
            if found not in seen:
                seen.add(found)
                waiting.append(found)
        yield address, replace(answer, body=as_file(text, address).encode("utf-8", "replace"))


def addresses_in(text: str) -> list[str]:
    """The addresses of the site that a page names, without what only a server can answer."""
    named = (unescape(found["address"]).partition("#")[0] for found in _LINK.finditer(text))
    return [one for one in dict.fromkeys(named) if _is_kept(one)]


def as_file(text: str, address: str) -> str:
    """A page with its links leading to files beside it; links to what is left out become text that leads nowhere."""
    here = str(Path(file_of(address)).parent)

    def rewritten(found: re.Match[str]) -> str:
        named = unescape(found["address"])
        if named.startswith(("data:", "#", "http:", "https:")):
            return found[0]
        bare, hash_sign, fragment = named.partition("#")
        if not _is_kept(bare) or found["name"] == "action":
            return ""
        path = quote(relpath(file_of(bare), here), safe="/.-_~")
        return f'{found["name"]}="{escape(f"{path}{hash_sign}{fragment}")}"'

    text = _REFRESH.sub("", _LINK.sub(rewritten, text))
    return text.replace("</head>", f"{_STATIC_STYLE}</head>", 1)


def file_of(address: str) -> str:
    """The file that an address becomes, from the site's folder: distinct for distinct addresses, and safe as a name."""
    parts = urlsplit(address)
    path = unquote(parts.path).removeprefix(PREFIX).strip("/")
    if path.startswith("static/"):
        return path
    name = re.sub(r"[^A-Za-z0-9._/-]", "-", path).replace("..", "-")
    if parts.query or name != path:
        name = f"{name or 'index'}-{zlib.crc32(address.encode()):08x}"
    return f"{name or 'index'}.html"


def _is_kept(address: str) -> bool:
    return address.startswith(f"{PREFIX}/") and not _LEFT_OUT.match(address)


def _require_ours(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: is a file; name a folder for the site")
    if target.is_dir() and any(target.iterdir()) and not (target / MARK).is_file():
        raise ConfigError(f"{target}: holds something else; name an empty folder, or one that publish has made")


def _app(settings: Settings) -> Any:
    from faultline.records.index import Index
    from faultline.reports.pages.app import build_app
    from faultline.reports.pages.site import ResultsSite

    index = Index(settings.results, settings.home)
    site = ResultsSite(index, settings.results, PREFIX, "", lambda dag_id, ids, beginnings: ())
    return build_app(lambda request: site, lambda: None)


# What the app says to an address, without a server in between.


@dataclass(frozen=True)
class AsgiResponse:
    """What the app sent back; names of `headers` in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def media_type(self) -> str:
        """`text/html; charset=utf-8`; empty where none is said."""
        return self.headers.get("content-type", "")

    @property
    def text(self) -> str:
        """The body, with what is no UTF-8 replaced."""
        return self.body.decode("utf-8", "replace")


def ask(app: FastAPI, address: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> AsgiResponse:
    """One request. `address`, path and query, is sent as it stands: no client tidies `..` away."""
    path, _, query = address.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(),
        "root_path": "", "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    head = next(one for one in sent if one["type"] == "http.response.start")
    found = {name.decode().lower(): value.decode() for name, value in head["headers"]}
    body = b"".join(one.get("body", b"") for one in sent if one["type"] == "http.response.body")
    return AsgiResponse(int(head["status"]), found, body)
