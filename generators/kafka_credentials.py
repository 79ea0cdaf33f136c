"""How a generator logs in at the broker: by a file that the environment names, so that no secret stands in either."""

from __future__ import annotations

import json
import os
from pathlib import Path

# Names a JSON object of librdkafka's settings; without it, the broker asks nobody who he is.
LOGIN = "FAULTLINE_KAFKA_LOGIN"


def login() -> dict[str, str]:
    """librdkafka's settings of this process's user. Raises OSError or ValueError for a file that cannot be read."""
    named = os.environ.get(LOGIN)
    return read_login(Path(named)) if named else {}


def read_login(file: Path) -> dict[str, str]:
    """The settings in such a file: none where the broker asks nobody. Raises OSError or ValueError as `login`."""
    return dict(json.loads(file.read_text()))
