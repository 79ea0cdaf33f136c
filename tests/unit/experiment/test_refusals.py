"""What is refused, and in which words: 3,178 configurations with what was said of them before the house had rooms.

`refusals.json.gz` holds [configuration, "ok IDENTITY" or "ConfigError: message"]. A message that changes on purpose is
changed there, too, in the commit that changes it.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from faultline.experiment.config import parse_configuration
from faultline.system.errors import ConfigError

KNOWN = Path(__file__).with_name("refusals.json.gz")


def answer(values: dict[str, object]) -> str:
    try:
        return f"ok {parse_configuration(values).config_id}"
    except ConfigError as error:
        return f"ConfigError: {error}"


def test_every_refusal_says_what_it_said_and_identities_are_what_they_were() -> None:
    known = json.loads(gzip.decompress(KNOWN.read_bytes()))
    assert len(known) > 3000 and sum(said.startswith("ok") for _, said in known) > 300
    changed = [(values, said, answer(values)) for values, said in known if answer(values) != said]
    assert not changed, f"{len(changed)} differ, the first: {changed[0]}"
