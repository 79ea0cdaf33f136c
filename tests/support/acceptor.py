"""A loopback server for tests that passes each connection to a handler."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOCAL = "127.0.0.1"


@contextmanager
def accepting(handle: Callable[[socket.socket], object]) -> Iterator[int]:
    """Yield the port of a server that passes its connections to `handle`, one at a time."""
    with socket.create_server((LOCAL, 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                handle(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(120)
