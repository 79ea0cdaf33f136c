"""Work for a conductor under test, in place of an experiment's: it writes down that it was begun, and does as told."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def work(request: dict[str, Any], pipe: Connection) -> None:
    """`params`: `begun`, a file that gets a line each time; `lines`, how many it prints; `asks`, how often the DAG runs
    are counted; `dies`, at once or `asking`."""
    told = request["params"]
    with Path(told["begun"]).open("a") as file:
        file.write(f"{request['task']}\n")
    pipe.send({"log": f"begun {request['task']}"})
    for number in range(told.get("lines", 0)):
        pipe.send({"log": f"line {number} {'.' * 100}"})
    if told.get("dies") == "asking":
        pipe.send({"ask": "get_dr_count", "with": {}})
    if told.get("dies"):
        os._exit(7)
    answers = []
    for _ in range(told.get("asks", 0)):
        pipe.send({"ask": "get_dr_count", "with": {"dag_id": "experiment", "run_ids": ["r"]}})
        answers.append(pipe.recv()["answer"])
    pipe.send({"outcome": told.get("outcome", "done"), "value": told.get("value", answers), "why": "as it was told"})


def work_of_a_run(begun: str, request: dict[str, Any], pipe: Connection) -> None:
    """The steps of an experiment in which nothing is measured, with the Connections that each was given."""
    with Path(begun).open("a") as file:
        file.write(f"{request['task']} {','.join(sorted(request['connections']))}\n")
    pipe.send({"outcome": "done", "value": "20261126T010000Z-abcdef" if request["task"] == "prepare" else None})
