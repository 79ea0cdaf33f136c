"""Ending an attempt twice: the scheduler may die and have the step begun again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from faultline.base.attempt import Attempt
from faultline.base.journal import write_lines
from faultline.base.processes import end_ledger, spawn_detached
from faultline.runner.steps import _stop_recorder


@pytest.mark.parametrize(
    ("lines", "problems"),
    [
        ([{"kind": "start"}, {"kind": "machine"}], ["recorder: died before the end"]),
        ([{"kind": "start"}, {"kind": "machine"}, {"kind": "stop"}], []),
    ],
)
def test_a_recorder_that_was_told_to_stop_did_not_die(
    tmp_path: Path, lines: list[dict[str, Any]], problems: list[str]
) -> None:
    attempt = Attempt(tmp_path / "20261121T061500Z-3fa9c1")
    attempt.logs.mkdir(parents=True)
    spawn_detached(
        [sys.executable, "-c", "pass"],
        role="recorder",
        attempt=attempt.id,
        ledger=attempt.ledger,
        stdout=attempt.logs / "recorder.out",
        stderr=attempt.logs / "recorder.err",
        cwd=tmp_path,
    )
    end_ledger(attempt.ledger)
    write_lines(attempt.recorder_journal, lines)
    found: list[str] = []
    _stop_recorder(attempt, found)
    assert found == problems
