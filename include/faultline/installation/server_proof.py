"""Server authentication of the API server: a proof with a secret that only its user can read.

Password and tokens go to no other server. Another user may have taken the port while the services were down. A relayed
challenge is useless, since the proof includes the port of the true server.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from faultline.system.errors import InfrastructureError
from faultline.system.settings import HOST, Settings
from faultline.system.socket_owner import can_identify, listener_of

if TYPE_CHECKING:
    import httpx

PREFIX = "/faultline-proof"
_CHALLENGE = re.compile(r"[0-9a-f]{64}")


def new_challenge() -> str:
    """Return a random challenge."""
    return secrets.token_hex(32)


def compute_proof(key: str, challenge: str, port: int) -> str | None:
    """Return the proof for a challenge and port; None for an invalid challenge."""
    if not _CHALLENGE.fullmatch(challenge):
        return None
    return hmac.new(key.encode(), f"{challenge} {port}".encode(), hashlib.sha256).hexdigest()


def require_proof(key: str, challenge: str, port: int, proof: str) -> None:
    """Raise InfrastructureError unless `proof` is correct."""
    if not hmac.compare_digest(proof.encode(), str(compute_proof(key, challenge, port)).encode()):
        raise InfrastructureError(
            f"airflow: server authentication failed: wrong proof on port {port}; fix: `./faultline down`, then `up`"
        )


def require_own_listener(settings: Settings) -> None:
    """Raise InfrastructureError if another user listens on Airflow's port."""
    port = settings.ports["airflow"]
    owner = listener_of((HOST, port)) if can_identify() else os.geteuid()
    if owner not in (os.geteuid(), None):
        raise InfrastructureError(f"airflow: port {port} is owned by user {owner}; fix: `./faultline up`")


def guard_tokens(clients: type[httpx.Client], settings: Settings) -> None:
    """Patch a client class so that requests with a token never reach another user's listener on Airflow's port.

    Such requests fail and are retried as if the server were down.
    """
    import httpx

    def check(event: str, info: Mapping[str, Any]) -> None:
        # Check again after the connection: another user may have taken the port in between; no data was sent yet.
        if event in ("connection.connect_tcp.started", "connection.connect_tcp.complete"):
            try:
                require_own_listener(settings)
            except InfrastructureError as error:
                if connection := info.get("return_value"):
                    connection.close()
                raise httpx.ConnectError(str(error)) from None

    def send(self: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        if request.url.port == settings.ports["airflow"]:
            request.extensions = {**request.extensions, "trace": check}
        return httpx.Client.send(self, request, **options)

    clients.send = send  # type: ignore[method-assign]
