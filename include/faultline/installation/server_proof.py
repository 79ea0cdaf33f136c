"""How the API server shows that it is this installation's: only its user can read the secret that the answer needs.

The password and tokens go to nobody else. Another user may have taken the port while the services were down; one who
hands the question on to the true server gets an answer for the true server's port, which is not his.
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
    """A question that was never asked before."""
    return secrets.token_hex(32)


def compute_proof(key: str, challenge: str, port: int) -> str | None:
    """What whoever listens at `port` and knows the secret says; None to what is no challenge."""
    if not _CHALLENGE.fullmatch(challenge):
        return None
    return hmac.new(key.encode(), f"{challenge} {port}".encode(), hashlib.sha256).hexdigest()


def require_proof(key: str, challenge: str, port: int, proof: str) -> None:
    """Raises InfrastructureError unless `proof` is the answer."""
    if not hmac.compare_digest(proof.encode(), str(compute_proof(key, challenge, port)).encode()):
        raise InfrastructureError(
            f"airflow: whoever listens at port {port} does not show that it is this installation's; "
            "./faultline down, and up"
        )


def require_own_listener(settings: Settings) -> None:
    """Raises InfrastructureError when it is another user who listens where Airflow is to be."""
    port = settings.ports["airflow"]
    owner = listener_of((HOST, port)) if can_identify() else os.geteuid()
    if owner not in (os.geteuid(), None):
        raise InfrastructureError(f"airflow: port {port} is user {owner}'s, not this installation's; ./faultline up")


def guard_tokens(clients: type[httpx.Client], settings: Settings) -> None:
    """From here on such clients, which bring a token along, send nothing to Airflow's port when another user listens
    there. They try again meanwhile as they do when nobody listens."""
    import httpx

    def check(event: str, info: Mapping[str, Any]) -> None:
        # Once more when it stands: whoever took the port in between has got no word yet.
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
