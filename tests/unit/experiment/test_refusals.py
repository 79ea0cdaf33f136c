"""What is refused, and under which key: 3,178 configurations, and the identities of those that are accepted.

`refusals.json.gz` holds [configuration, "ok IDENTITY" or "refused KEY"]. An answer that changes on purpose is changed
there, too, in the commit that changes it.
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
        key, separator, why = str(error).partition(": ")
        assert separator and why and "\n" not in why, error
        return f"refused {key}"


def test_every_refusal_names_the_key_that_it_named_and_identities_are_what_they_were() -> None:
    known = json.loads(gzip.decompress(KNOWN.read_bytes()))
    assert len(known) > 3000 and sum(said.startswith("ok") for _, said in known) > 300
    changed = [(values, said, answer(values)) for values, said in known if answer(values) != said]
    assert not changed, f"{len(changed)} differ, the first: {changed[0]}"
