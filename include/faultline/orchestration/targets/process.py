"""Answers the command line, which is no part of Airflow, about Connections of this installation's Airflow.

    echo '{"ids": [...], "make": {...}, "remove": [...]}' | python -m faultline.orchestration.targets.process

`make`: Connections to make where they are missing; `remove`: ids of those to remove before, where `make` once made
them. The answer is JSON on standard output, which is a pipe, since Connections hold secrets: {"made": ids, "removed":
ids, "differing": {id: keys}, "said": {id: Connection, or null where there is none}}.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict

from faultline.orchestration.targets.connections import make_missing, remove_made, said_outside


def main() -> None:
    asked = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):  # whatever Airflow says as it starts
        removed = remove_made(asked["remove"]) if asked["remove"] else []
        made, differing = make_missing(asked["make"]) if asked["make"] else ([], {})
        said = said_outside(asked["ids"])
    answer = {name: None if one is None else {**asdict(one), "extra": dict(one.extra)} for name, one in said.items()}
    print(json.dumps({"made": made, "removed": removed, "differing": differing, "said": answer}))


if __name__ == "__main__":
    main()
