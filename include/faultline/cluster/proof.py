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

from faultline.base.errors import InfrastructureError
from faultline.base.settings import HOST, Settings
from faultline.base.sockets import can_tell, listener_of

PREFIX = "/faultline-proof"
_CHALLENGE = re.compile(r"[0-9a-f]{64}")


def new_challenge() -> str:
    """A question that was never asked before."""
    return secrets.token_hex(32)


def answer(key: str, challenge: str, port: int) -> str | None:
    """What whoever listens at `port` and knows the secret says; None to what is no challenge."""
    if not _CHALLENGE.fullmatch(challenge):
        return None
    return hmac.new(key.encode(), f"{challenge} {port}".encode(), hashlib.sha256).hexdigest()


def require_proof(key: str, challenge: str, port: int, given: str) -> None:
    """Raises InfrastructureError unless `given` is the answer."""
    if not hmac.compare_digest(given.encode(), str(answer(key, challenge, port)).encode()):
        raise InfrastructureError(
            f"airflow: whoever listens at port {port} does not show that it is this installation's; "
            "./faultline down, and up"
        )


def require_own_listener(settings: Settings) -> None:
    """Raises InfrastructureError when it is another user who listens where Airflow is to be."""
    port = settings.ports["airflow"]
    owner = listener_of((HOST, port)) if can_tell() else os.geteuid()
    if owner not in (os.geteuid(), None):
        raise InfrastructureError(f"airflow: port {port} is user {owner}'s, not this installation's; ./faultline up")
