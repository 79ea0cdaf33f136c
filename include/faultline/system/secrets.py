"""The secrets of an installation: made once, and kept in files that only their owner may read.

Other users of the machine can open every loopback port; what they lack is these files. Nothing of them stands in a
command line, in an environment, or in anything that an experiment leaves behind: programs are given their paths.
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

# Of the broker: itself, whoever makes and reads topics, and whoever is measured.
BROKER, HARNESS, WORKLOAD = "broker", "harness", "workload"
USERS = (BROKER, HARNESS, WORKLOAD)
MECHANISM = "SCRAM-SHA-256"
PROTOCOL = "SASL_PLAINTEXT"
FILE = "secrets.json"


@dataclass(frozen=True)
class Secrets:
    """`spark`: shared by Master, workers and applications. `kafka`: a password for each of USERS. `proof`: by which the
    API server shows that it is this installation's."""

    spark: str
    kafka: Mapping[str, str]
    proof: str


def make_secrets(folder: Path) -> Secrets:
    """The secrets in `folder`, which are made when there are none yet. Raises ConfigError as `read_secrets`."""
    make_private(folder)
    if not (folder / FILE).exists():
        made = {"spark": _new_password(), "kafka": {user: _new_password() for user in USERS}, "proof": _new_password()}
        write_private(folder / FILE, json.dumps(made))
    return read_secrets(folder)


def read_secrets(folder: Path) -> Secrets:
    """The secrets in `folder`. Raises ConfigError when there are none, or others can read or change them."""
    file = folder / FILE
    require_private(folder)
    require_private(file)
    with reject_damaged(file, "./faultline down, delete it, and `up` makes new ones"):
        return Secrets(**json.loads(file.read_text()))


def login_file(folder: Path, user: str) -> Path:
    """How librdkafka logs in as a user of the broker: a JSON object of its settings, empty where nobody has
    to."""
    return folder / f"{user}.json"


def jaas_file(folder: Path, user: str) -> Path:
    """The same for Kafka's clients in Java, as `java.security.auth.login.config`."""
    return folder / f"{user}.jaas"


def options_file(folder: Path) -> Path:
    """What else Kafka's clients in Java are told where a target asks for more than a password, as a JSON object."""
    return folder / "java-kafka.json"


def write_logins(folder: Path, known: Secrets) -> None:
    """Writes what programs log in with at the broker, for each user."""
    for user in USERS:
        password = known.kafka[user]
        login = {"security.protocol": PROTOCOL, "sasl.mechanism": MECHANISM}
        login |= {"sasl.username": user, "sasl.password": password}
        write_private(login_file(folder, user), json.dumps(login))
        write_private(jaas_file(folder, user), f"KafkaClient {{\n  {scram_module(user, password)}\n}};\n")


def write_no_logins(folder: Path) -> None:
    """The same of an installation whose broker asks nobody who he is."""
    for user in USERS:
        write_private(login_file(folder, user), "{}")
        jaas_file(folder, user).unlink(missing_ok=True)


def scram_module(user: str, password: str) -> str:
    """The line of a JAAS configuration."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return f'{module} required username="{user}" password="{password}";'


def require_logins(folder: Path) -> None:
    """Raises ConfigError when the secrets, or what programs log in with, are missing, or others can read them."""
    read_secrets(folder)
    for user in USERS:
        require_private(login_file(folder, user))


def make_private(folder: Path) -> None:
    """A folder that only its owner can enter; one that is there is closed to others. Raises ConfigError for another
    user's, and for a link."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ConfigError(f"{folder}: is not a folder of this user's; name another, or remove it")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)


def require_private(path: Path) -> None:
    """Raises ConfigError unless it is this user's, and nobody else may read or change it."""
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; ./faultline up makes it") from None
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{path}: belongs to user {found.st_uid}, and holds secrets of this one; remove it")
    if mode & 0o077:
        right = "0700" if stat.S_ISDIR(found.st_mode) else "0600"
        raise ConfigError(f"{path}: has mode {mode:04o}, and others may not see it; chmod {right} {path}")


def properties(values: Mapping[str, str]) -> str:
    """The text of a Java properties file."""
    return "".join(f"{key}={value}\n" for key, value in values.items())


def _new_password() -> str:
    return secrets.token_hex(24)
