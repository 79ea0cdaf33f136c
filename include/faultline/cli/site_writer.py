"""`./faultline publish DIR`: the results as a static site.

Starting at the overview, every page of the results UI is rendered to a file with relative links. Parts that need a
server are left out: forms, downloads of all experiments and running experiments.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from posixpath import relpath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from faultline.reports.pages.local_client import AsgiResponse, fetch
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings
from faultline.system.text import Progress, pluralize

# This file marks a folder as one that a later call may replace; it is written last.
MARK = ".faultline-site"
PREFIX = "/site"
MOST_PAGES = 20_000
# Addresses without a static page: forms, live pages and pages of Airflow.
_LEFT_OUT = re.compile(rf"{PREFIX}/(live|now|metrics|runs|dags)\b|{PREFIX}/(compare|overlay)$|{PREFIX}/experiments\.")
_LINK = re.compile(r"""(?P<name>href|src|action)=(?P<quote>["'])(?P<address>.*?)(?P=quote)""")
_REFRESH = re.compile(r' data-refresh="[^"]*"')
_STATIC_STYLE = "<style>form.choice, .ask, #now { display: none }</style>"


def publish(settings: Settings, target: Path, progress: Progress) -> Path:
    """Write the site to the folder `target`, replacing an existing site; return the path of its first page.

    Raises ConfigError if the folder has other contents or is not writable.
    """
    _require_own_folder(target)
    building: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # A unique name, because the folder is removed on failure.
        building = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        building.chmod(0o755)
        pages = 0
        for address, answer in crawl(settings):
            path = building / file_of(address)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(answer.body)
            pages += answer.media_type.startswith("text/html")
        (building / MARK).write_text("Written by ./faultline publish, which may replace this folder.\n")
        shutil.rmtree(target, ignore_errors=True)
        building.rename(target)
    except OSError as error:
        raise ConfigError(f"{target}: write failed: {error.strerror}") from error
    finally:
        if building is not None:
            shutil.rmtree(building, ignore_errors=True)
    progress(f"{pluralize(pages, 'page')} in {target}; open {target / 'index.html'}")
    return target / "index.html"


def crawl(settings: Settings) -> Iterator[tuple[str, AsgiResponse]]:
    """Yield every reachable address of the site with its response; links in it are rewritten to files."""
    app, seen, waiting = _app(settings), {f"{PREFIX}/"}, deque([f"{PREFIX}/"])
    while waiting and len(seen) <= MOST_PAGES:
        address = waiting.popleft()
        answer = fetch(app, address.removeprefix(PREFIX))
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
        yield address, replace(answer, body=rewrite_links(text, address).encode("utf-8", "replace"))


def addresses_in(text: str) -> list[str]:
    """Return the addresses of static pages that a page links to."""
    named = (unescape(found["address"]).partition("#")[0] for found in _LINK.finditer(text))
    return [one for one in dict.fromkeys(named) if _is_kept(one)]


def rewrite_links(text: str, address: str) -> str:
    """Return a page with relative links to files; links to omitted pages are removed."""
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
    """Return the relative file path of an address: unique per address, and safe as a file name."""
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


def _require_own_folder(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: got a file; expected a folder")
    if target.is_dir() and any(target.iterdir()) and not (target / MARK).is_file():
        raise ConfigError(f"{target}: not empty; expected an empty folder, or a site written by publish")


def _app(settings: Settings) -> Any:
    from faultline.records.index import Index
    from faultline.reports.pages.app import build_app
    from faultline.reports.pages.site import ResultsSite

    index = Index(settings.results, settings.home)
    site = ResultsSite(index, settings.results, PREFIX, "", lambda dag_id, ids, beginnings: ())
    return build_app(lambda request: site, lambda: None)
