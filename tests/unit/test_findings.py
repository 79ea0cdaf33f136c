"""The papers' findings against made-up records: each verdict can be reached, and the page says what it rests on."""

from __future__ import annotations

from typing import Any

import pytest

from faultline.document import recovery_page
from faultline.errors import ConfigError
from faultline.findings import CLAIMS, Verdict, findings
from faultline.record import Record
from tests.unit.sample_records import sample


def kill(victim: str = "executor", interval_s: float = 2.0, state_mb: float = 1.0, **parts: Any) -> Record:
    recovery = {"recovered": True, "detection_s": 0.1, "reload_s": 4.0, "replay_s": 1.0, "macro_s": 9.0}
    config: dict[str, Any] = {"fault": victim, "checkpoint_interval_s": interval_s, "state_mb": state_mb}
    return sample(recovery={**recovery, **parts}, duration_s=100, **config)


def verdicts(*records: Record) -> dict[str, Verdict]:
    return {
        claim.split(": ", 1)[1].split(",")[0]: one.verdict for claim, one in zip(CLAIMS, findings(records), strict=True)
    }


RELOAD = "reload takes the larger part of a recovery"
HEARTBEAT = "reload takes about 45 s"
TOTAL = "a recovery takes less than 60 s"
STATE = "replay grows with the state"
RESTART = "starting the dead process again takes about 10 s"
INTERVAL = "recovery grows with the checkpoint interval"


def test_without_records_nothing_can_be_told() -> None:
    assert set(verdicts().values()) == {Verdict.CANNOT_TELL}
    assert set(verdicts(sample(fault="none"), kill().model_copy(update={"status": "invalid"})).values()) == {
        Verdict.CANNOT_TELL
    }


def test_reload_dominates_when_it_does_everywhere() -> None:
    assert verdicts(kill(), kill("worker"))[RELOAD] is Verdict.AGREES
    assert verdicts(kill(reload_s=1.0, replay_s=2.0))[RELOAD] is Verdict.DISAGREES
    assert verdicts(kill(), kill(reload_s=1.0, replay_s=2.0))[RELOAD] is Verdict.CANNOT_TELL
    assert verdicts(kill("driver"))[RELOAD] is Verdict.CANNOT_TELL, "the paper ended processes of the engine's workers"


def test_the_heartbeat_is_seen_in_length_and_in_detection() -> None:
    assert verdicts(kill(reload_s=45.0, detection_s=40.0))[HEARTBEAT] is Verdict.AGREES
    assert verdicts(kill(reload_s=45.0, detection_s=0.1))[HEARTBEAT] is Verdict.DISAGREES
    assert verdicts(kill())[HEARTBEAT] is Verdict.DISAGREES


def test_a_censored_recovery_is_no_proof_of_speed() -> None:
    censored = {"recovered": False, "macro_s": None}
    assert verdicts(kill())[TOTAL] is Verdict.AGREES
    assert verdicts(kill(), kill(**censored, censored_at_s=34.0))[TOTAL] is Verdict.CANNOT_TELL
    assert verdicts(kill(), kill(**censored, censored_at_s=79.0))[TOTAL] is Verdict.DISAGREES


def test_growth_needs_two_values_and_one_direction() -> None:
    assert verdicts(kill())[STATE] is Verdict.CANNOT_TELL
    assert verdicts(kill(replay_s=1.0), kill(state_mb=8, replay_s=2.0))[STATE] is Verdict.AGREES
    assert verdicts(kill(replay_s=2.0), kill(state_mb=8, replay_s=1.0))[STATE] is Verdict.DISAGREES
    mixed = [kill("worker", replay_s=2.0), kill("worker", state_mb=8, replay_s=1.0)]
    assert verdicts(kill(replay_s=1.0), kill(state_mb=8, replay_s=2.0), *mixed)[STATE] is Verdict.CANNOT_TELL
    assert verdicts(kill(macro_s=5.0), kill(interval_s=5, macro_s=9.0))[INTERVAL] is Verdict.AGREES
    assert verdicts(kill(macro_s=5.0), kill(interval_s=5, macro_s=None))[INTERVAL] is Verdict.CANNOT_TELL


def test_the_restart_is_the_replacements_registration() -> None:
    assert verdicts(kill(replacement_up_s=9.0))[RESTART] is Verdict.AGREES
    assert verdicts(kill(replacement_up_s=2.0))[RESTART] is Verdict.DISAGREES


def test_the_page_holds_table_machine_and_verdicts() -> None:
    invalid = sample(status="invalid", reasons=["not-steady: lag"], fault="executor", duration_s=100)
    text = recovery_page([kill(), kill("driver", interval_s=5), sample(fault="none"), invalid], title="T")
    assert text.startswith("# T\n")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert sum(line.startswith("| executor kill | 2 | 1 |") for line in rows) == 1
    assert sum(line.startswith("| driver kill | 5 | 1 |") for line in rows) == 1
    assert rows.index(next(line for line in rows if line.startswith("| control"))) == 4, "controls come last"
    assert all(claim in text for claim in CLAIMS)
    assert "not-steady (1)" in text and "pyspark 4.2.0" in text and "2 cores" in text


def test_no_record_no_page() -> None:
    with pytest.raises(ConfigError, match="^results: no record"):
        recovery_page([], title="T")
