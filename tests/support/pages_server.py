"""The pages of a results folder, served to a real browser on a loopback port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from faultline.records.index import Index
from faultline.reports.pages.app import build_app
from faultline.reports.pages.site import Site
from faultline.system.waiting import wait_until


@contextmanager
def served(results: Path) -> Iterator[str]:
    """The address of the pages over `results`, which nobody has to log in to."""
    site = Site(Index(results), results, prefix="")
    server = uvicorn.Server(uvicorn.Config(build_app(lambda request: site, lambda: None), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, timeout_s=120, what="the server of the pages")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(120)
