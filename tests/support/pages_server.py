"""Servers on a loopback port: results pages for a real browser, and synthetic pages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import uvicorn

from faultline.records.index import Index
from faultline.reports.pages.app import build_app
from faultline.reports.pages.site import ResultsSite
from faultline.system.waiting import wait_until
from tests.support.receivers import serving


@contextmanager
def served(results: Path) -> Iterator[str]:
    """Yield the address of the results pages over `results`, without login."""
    site = ResultsSite(Index(results), results, prefix="")
    server = uvicorn.Server(uvicorn.Config(build_app(lambda request: site, lambda: None), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, timeout_s=120, what="the server of the results pages")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(120)


@contextmanager
def pages(content: Callable[[str], str | None]) -> Iterator[str]:
    """Yield the address of a server that returns `content(path)`, or 404 for None; paths have no outer slashes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = content(self.path.strip("/"))
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *_: object) -> None:
            """Suppress the log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, serving(server):
        yield f"http://127.0.0.1:{server.server_port}"
