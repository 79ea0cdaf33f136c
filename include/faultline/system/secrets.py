"""Secrets of an installation: created once, in files that only their owner can read.

Other users of the machine can open every loopback port but cannot read these files. No secret appears in a command
line, an environment or a result: programs receive file paths.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from faultline.system.errors import ConfigError
from faultline.system.files import reject_damaged, write_private

# Users of the broker: the broker itself, the harness (creates and reads topics), and the workload.
BROKER, HARNESS, WORKLOAD = "broker", "harness", "workload"
USERS = (BROKER, HARNESS, WORKLOAD)
MECHANISM = "SCRAM-SHA-256"
PROTOCOL = "SASL_PLAINTEXT"
FILE = "secrets.json"


@dataclass(frozen=True)
class Secrets:
    """Secrets of one installation.

    `spark`: shared by Master, workers and applications. `kafka`: a password for each of USERS. `proof`: the key by
    which the API server authenticates itself.
    """

    spark: str
    kafka: Mapping[str, str]
    proof: str


def make_secrets(folder: Path) -> Secrets:
    """Return the secrets in `folder`; create them if missing. Raises ConfigError as `read_secrets`."""
    make_private(folder)
    if not (folder / FILE).exists():
        made = {"spark": _new_password(), "kafka": {user: _new_password() for user in USERS}, "proof": _new_password()}
        write_private(folder / FILE, json.dumps(made))
    return read_secrets(folder)


def read_secrets(folder: Path) -> Secrets:
    """Return the secrets in `folder`. Raises ConfigError if missing, or accessible by others."""
    file = folder / FILE
    require_private(folder)
    require_private(file)
    with reject_damaged(file, "./faultline down, delete it, and `up` makes new ones"):
        return Secrets(**json.loads(file.read_text()))


def login_file(folder: Path, user: str) -> Path:
    """Return the path of a user's librdkafka settings: a JSON object, empty without authentication."""
    return folder / f"{user}.json"


def jaas_file(folder: Path, user: str) -> Path:
    """Return the path of a user's `java.security.auth.login.config` for Java clients."""
    return folder / f"{user}.jaas"


def options_file(folder: Path) -> Path:
    """Return the path of a target's additional options for Java clients, a JSON object."""
    return folder / "java-kafka.json"


def write_logins(folder: Path, known: Secrets) -> None:
    """Write the credential files of each broker user."""
    for user in USERS:
        password = known.kafka[user]
        login = {"security.protocol": PROTOCOL, "sasl.mechanism": MECHANISM}
        login |= {"sasl.username": user, "sasl.password": password}
        write_private(login_file(folder, user), json.dumps(login))
        write_private(jaas_file(folder, user), f"KafkaClient {{\n  {scram_module(user, password)}\n}};\n")


def write_no_logins(folder: Path) -> None:
    """Write empty credential files, for a broker without authentication."""
    for user in USERS:
        write_private(login_file(folder, user), "{}")
        jaas_file(folder, user).unlink(missing_ok=True)


def scram_module(user: str, password: str) -> str:
    """Return the login module line of a JAAS configuration."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return f'{module} required username="{user}" password="{password}";'


def require_logins(folder: Path) -> None:
    """Raise ConfigError if the secrets or credential files are missing or accessible by others."""
    read_secrets(folder)
    for user in USERS:
        require_private(login_file(folder, user))


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can enter, or restrict an existing one.

    Raises ConfigError for a link or another user's folder.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ConfigError(f"{folder}: not a folder of this user; fix: remove it, or name another")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)


def require_private(path: Path) -> None:
    """Raise ConfigError unless the path belongs to this user and others have no access."""
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; fix: `./faultline up` creates it") from None
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{path}: owned by user {found.st_uid}; expected this user; fix: remove it")
    if mode & 0o077:
        right = "0700" if stat.S_ISDIR(found.st_mode) else "0600"
        raise ConfigError(f"{path}: got mode {mode:04o}; expected no access for others; fix: chmod {right} {path}")


def properties(values: Mapping[str, str]) -> str:
    """Return the text of a Java properties file."""
    return "".join(f"{key}={value}\n" for key, value in values.items())


def _new_password() -> str:
    return secrets.token_hex(24)
