"""Local receivers of alerts: a web server and a mail server that store messages."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast


@contextmanager
def webhook(refusals: int = 0) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield a URL and the list of JSON values posted to it; the first `refusals` posts fail with status 503."""
    kept: list[dict[str, Any]] = []
    left = [refusals]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            refused = left[0] > 0
            left[0] -= refused
            if not refused:
                kept.append(json.loads(content))
            self.send_response(503 if refused else 200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Suppress the log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, serving(server):
        yield f"http://127.0.0.1:{server.server_port}/hook", kept


@contextmanager
def mailbox() -> Iterator[tuple[str, list[EmailMessage]]]:
    """Yield HOST:PORT of a mail server without encryption, and its accepted messages."""
    kept: list[EmailMessage] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 here")
            while line := self.rfile.readline():
                command = line[:4].upper().strip()
                if command == b"DATA":
                    self._say("354 continue")
                    content = b""
                    while (line := self.rfile.readline()) not in (b".\r\n", b""):
                        content += line[1:] if line.startswith(b"..") else line
                    kept.append(cast(EmailMessage, message_from_bytes(content, policy=policy.default)))
                self._say("221 bye" if command == b"QUIT" else "250 ok")

        def _say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server, serving(server):
        yield f"127.0.0.1:{server.server_address[1]}", kept


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    """Serve until the end of the block."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
