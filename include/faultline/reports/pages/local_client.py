"""Requests to the results app without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from fastapi import FastAPI


@dataclass(frozen=True)
class AsgiResponse:
    """Response of the app; names of `headers` in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def media_type(self) -> str:
        """Content type, such as `text/html; charset=utf-8`; empty if missing."""
        return self.headers.get("content-type", "")

    @property
    def text(self) -> str:
        """Body as text; invalid UTF-8 is replaced."""
        return self.body.decode("utf-8", "replace")


def fetch(app: FastAPI, address: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> AsgiResponse:
    """Send one request. `address` is path and query, sent unchanged: `..` is not resolved."""
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
