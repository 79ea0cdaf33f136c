"""Response times of the results pages with many records in the store."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from benchmarks.figure import BenchmarkFigure, summarise
from benchmarks.synthetic_records import MATRIX, made_record, write_record
from faultline.records.index import Index
from faultline.reports.pages.app import build_app
from faultline.reports.pages.site import ResultsSite
from faultline.system.text import Progress

RECORDS = 10_000


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Return figures in seconds: `first_look_s` without an index, `restart_s` for the first page of a new process.

    In addition, one figure per page, measured 20 times, or 5 times if `quick`. The store always has 10,000 records.
    """
    with tempfile.TemporaryDirectory(prefix="faultline-pages-") as folder:
        results = Path(folder)
        progress(f"writing {RECORDS} records")
        for number in range(RECORDS):
            write_record(results, made_record(number))
        figures = {"first_look_s": [_timed(_app(results), "/")], "restart_s": [_timed(_app(results), "/")]}
        app = _app(results)
        for name, address in _addresses().items():
            _timed(app, address)
            figures[f"{name}_s"] = [_timed(app, address) for _ in range(5 if quick else 20)]
            progress(f"{address}: {max(figures[f'{name}_s']):.3f} s at most")
    return {name: summarise(values, "s") for name, values in figures.items()}


def _addresses() -> dict[str, str]:
    first = made_record(0)
    return {
        "overview": "/",
        "sweep": "/sweeps/sweep-0000",
        "matrix": f"/matrices/{MATRIX}",
        "experiment": f"/experiments/{first.attempt}",
        "compare": "/compare?a=sweep-0000&b=sweep-0001",
        "csv": "/experiments.csv?sweep=sweep-0000",
    }


def _app(results: Path) -> FastAPI:
    site = ResultsSite(Index(results), results, prefix="")
    return build_app(lambda request: site, lambda: None)


def _timed(app: FastAPI, address: str) -> float:
    """Return the seconds until the whole response. Raises RuntimeError if its status is not 200."""
    path, _, query = address.partition("?")
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": [],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    began = time.perf_counter()
    asyncio.run(app(scope, receive, send))
    duration_s = time.perf_counter() - began
    if statuses != [200]:
        raise RuntimeError(f"{address}: answered {statuses}")
    return duration_s
