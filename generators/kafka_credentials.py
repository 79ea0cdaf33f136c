"""Kafka credentials of a generator, read from a file that the environment names."""

from __future__ import annotations

import json
import os
from pathlib import Path

# Variable with the path of a JSON object of librdkafka settings; unset if the broker needs no login.
CREDENTIALS_ENV = "FAULTLINE_KAFKA_LOGIN"


def load_credentials() -> dict[str, str]:
    """Return librdkafka's settings for this process's user; empty without credentials.

    Raises OSError or ValueError if the file cannot be read.
    """
    named = os.environ.get(CREDENTIALS_ENV)
    return read_credentials(Path(named)) if named else {}


def read_credentials(file: Path) -> dict[str, str]:
    """Return the settings in a credentials file. Raises OSError or ValueError as `load_credentials`."""
    return dict(json.loads(file.read_text()))
