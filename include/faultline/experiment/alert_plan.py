"""Alerts of a nightly run: events and recipients, as its file lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from faultline.system.errors import ConfigError
from faultline.system.secrets import require_private
from faultline.system.text import suggest

# Events of a nightly run. `broken`: no valid record, missing cells, an inconclusive regression gate, or not started.
KINDS = ("worse", "better", "broken")
# Events of an alert without `when`.
USUAL = ("worse", "broken")
# Channels, each with a description of its value.
WAYS = {
    "webhook": "an address",
    "slack": "the address of an incoming webhook",
    "mail": "an object with to, from and server",
    "notifier": "an object with class and arguments",
}
SUBMISSION_PORT = 587
MAIL_KEYS = ("to", "from", "server", "user", "password_file", "tls")


@dataclass(frozen=True)
class AlertPlan:
    """One alert. `when`: its events; `way`: its channel; `target`: the value of the channel in the file."""

    when: tuple[str, ...]
    way: str
    target: Any

    @property
    def text(self) -> str:
        """Recipient as text, without the secret part of an address."""
        if self.way in ("webhook", "slack"):
            return f"{self.way} at {urlsplit(self.target).hostname}"
        if self.way == "mail":
            to = self.target["to"]
            return f"mail to {to if isinstance(to, str) else ', '.join(to)}"
        return f"notifier {str(self.target['class']).rpartition('.')[2]}"

    def check_here(self) -> None:
        """Raise ConfigError if the password file of a mail server is missing or readable by other users."""
        if self.way == "mail":
            password_file(self.target)


def password_file(target: Mapping[str, Any]) -> Path | None:
    """Return the password file of a mail server, or None.

    Raises ConfigError if it is missing or readable by other users.
    """
    name = target.get("password_file")
    if not name:
        return None
    file = Path(str(name))
    if not file.is_file():
        raise ConfigError(f"alerts.mail.password_file: got {file}; expected a file that holds the password")
    require_private(file)
    return file


def parse_alerts(given: Any) -> tuple[AlertPlan, ...]:
    """Return the alerts listed under the key `alerts` of a nightly file. Raises ConfigError naming the key."""
    if given is None:
        return ()
    if not isinstance(given, list):
        raise ConfigError(
            "alerts: got no list; expected entries with when: [worse, broken] and webhook, slack, mail or notifier"
        )
    return tuple(_alert(f"alerts[{index}]", alert) for index, alert in enumerate(given))


def _alert(where: str, given: Any) -> AlertPlan:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: got no object; expected `when` and one of {', '.join(WAYS)}")
    for key in given:
        if key not in ("when", *WAYS):
            raise ConfigError(f"{where}.{key}: unknown key{suggest(str(key), ('when', *WAYS))}")
    when = given.get("when", list(USUAL))
    when = [when] if isinstance(when, str) else when
    if not isinstance(when, list) or not when:
        raise ConfigError(f"{where}.when: got {when!r}; expected a list of {', '.join(KINDS)}")
    for kind in when:
        if kind not in KINDS:
            raise ConfigError(f"{where}.when: got {kind!r}; expected a known event{suggest(str(kind), KINDS)}")
    ways = [key for key in WAYS if key in given]
    if len(ways) != 1:
        raise ConfigError(
            f"{where}: got {' and '.join(ways) or 'no channel'}; expected exactly one of {', '.join(WAYS)}"
        )
    way = ways[0]
    return AlertPlan(tuple(when), way, _target(f"{where}.{way}", way, given[way]))


def _target(where: str, way: str, given: Any) -> Any:
    if way in ("webhook", "slack"):
        address = urlsplit(given) if isinstance(given, str) else urlsplit("")
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(f"{where}: got {given!r}; expected an address that starts with https://")
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: got no object; expected {WAYS[way]}")
    return _notifier(where, given) if way == "notifier" else _mail(where, given)


def _notifier(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(given.get("class"), str) or not isinstance(given.get("arguments", {}), Mapping):
        raise ConfigError(
            f"{where}: got {dict(given)!r}; expected class (import path of an Airflow notifier) and arguments (object)"
        )
    return {"class": given["class"], "arguments": dict(given.get("arguments", {}))}


def _mail(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    for key in given:
        if key not in MAIL_KEYS:
            raise ConfigError(f"{where}.{key}: unknown key{suggest(str(key), MAIL_KEYS)}")
    for key in ("to", "from", "server"):
        if not given.get(key):
            raise ConfigError(f"{where}.{key}: missing; expected a value such as {_EXAMPLE[key]}")
    try:
        mail_server(given)
    except ValueError:
        raise ConfigError(
            f"{where}.server: got {given['server']!r}; expected HOST:PORT, such as {_EXAMPLE['server']}"
        ) from None
    return dict(given)


def mail_server(target: Mapping[str, Any]) -> tuple[str, int]:
    """Return host and port of a mail server; the port defaults to SUBMISSION_PORT.

    Raises ValueError for an invalid address.
    """
    host, _, port = str(target["server"]).partition(":")
    if not host or (port and not port.isdigit()):
        raise ValueError(f"server: got {target['server']!r}; expected HOST:PORT")
    return host, int(port or SUBMISSION_PORT)


_EXAMPLE = {"to": "team@example.org", "from": "faultline@example.org", "server": "mail.example.org:587"}
