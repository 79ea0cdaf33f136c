"""Pages on a loopback port: those of a results folder, for a real browser, and made-up ones."""

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
    """The address of the pages over `results`, which nobody has to log in to."""
    site = ResultsSite(Index(results), results, prefix="")
    server = uvicorn.Server(uvicorn.Config(build_app(lambda request: site, lambda: None), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, timeout_s=120, what="the server of the pages")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(120)


@contextmanager
def pages(content: Callable[[str], str | None]) -> Iterator[str]:
    """The address of a server that gives a path (without slashes around it) this content, or 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = content(self.path.strip("/"))
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, serving(server):
        yield f"http://127.0.0.1:{server.server_port}"
