"""The findings on recoveries on synthetic records."""

from __future__ import annotations

from typing import Any

import pytest

from faultline.comparison.findings import jiang
from faultline.comparison.findings.catalogue import correct_verdicts
from faultline.comparison.findings.claims import ClaimResult, ClaimVerdict, Test
from faultline.comparison.findings.predicates import Lies
from faultline.records.record import Record
from tests.unit.made_up_findings import (
    AGREES,
    DISAGREES,
    INCONCLUSIVE,
    NOISE,
    NOT_COVERED,
    RECOVERY,
    kill,
    of,
    verdict,
)
from tests.unit.sample_records import sample

RELOAD = "reload takes the larger part of a recovery"

HEARTBEAT = "reload takes about 45 s"

TOTAL = "a recovery takes less than 60 s"

REPLAY = "replay grows with the state"

ONCE = "every record is counted exactly once"

RESTART = "starting the dead process again takes about 10 s"

INTERVAL = "recovery grows with the checkpoint interval"


def test_reload_dominates_when_it_does_everywhere() -> None:
    assert verdict(RECOVERY, RELOAD, [kill(), kill(), kill("worker")]) is AGREES
    assert verdict(RECOVERY, RELOAD, [kill(reload_s=1.0, replay_s=2.0)] * 3) is DISAGREES
    assert verdict(RECOVERY, RELOAD, [kill(), kill(), kill(reload_s=1.0, replay_s=2.0)]) is INCONCLUSIVE
    assert verdict(RECOVERY, RELOAD, [kill()] * 2) is INCONCLUSIVE, "two agree by accident too often"
    assert verdict(RECOVERY, RELOAD, [kill("driver")] * 3) is NOT_COVERED, "the paper ended processes of the workers"


@pytest.mark.parametrize(
    ("test", "records", "held", "p"),
    [
        (Lies(jiang.shares_of_reload, low=0.5),
         [kill(reload_s=part, replay_s=1 - part) for part in (0.53, 0.62, 0.58, 0.66)], AGREES, 0.0393),
        (jiang.reload_waits_for_heartbeats, [kill(reload_s=45.0 + n, detection_s=40.0) for n in range(3)],
         AGREES, 0.0016),
        (jiang.reload_waits_for_heartbeats, [kill(reload_s=25.0 + n, detection_s=24.0) for n in range(3)],
         DISAGREES, 0.0202),
        (jiang.total_within_a_minute, [kill(macro_s=50.0 + 3 * n) for n in range(3)], INCONCLUSIVE, 0.0561),
        (Lies(jiang.restarts, 5.0, 20.0), [kill(replacement_up_s=8.0 + n) for n in range(3)], AGREES, 0.0202),
    ],
)  # fmt: skip
def test_verdicts_are_corrected_for_the_others(test: Test, records: list[Record], held: ClaimVerdict, p: float) -> None:
    found = test(records)
    assert (found.verdict, found.p) == (held, pytest.approx(p, abs=1e-4))
    corrected = correct_verdicts([found, ClaimResult(INCONCLUSIVE, "", 0.9), ClaimResult(INCONCLUSIVE, "", 0.9)])[0]
    assert corrected[0] is (held if 3 * p <= 0.05 else INCONCLUSIVE)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        *(
            ([kill(reload_s=reload_s, detection_s=0.8 * reload_s)] * 3, expected)
            for reload_s, expected in (
                (29.0, DISAGREES), (31.0, AGREES), (59.0, AGREES), (61.0, DISAGREES), (30.0, INCONCLUSIVE)
            )
        ),
        ([kill(reload_s=45.0, detection_s=0.1)] * 3, DISAGREES),
        ([kill()] * 3, DISAGREES),
        ([kill()] * 2, INCONCLUSIVE),
        ([kill(reload_s=45.0, detection_s=40.0), kill(), kill()], INCONCLUSIVE),
        # Half of a reload is mostly waiting, and no reload is not.
        ([kill(reload_s=45.0, detection_s=22.0)] * 5, DISAGREES),
        ([*[kill(reload_s=45.0, detection_s=23.0)] * 4, kill(reload_s=0.0, detection_s=0.0)], INCONCLUSIVE),
        ([kill(reload_s=45.0, detection_s=23.0)] * 5, AGREES),
    ],
)  # fmt: skip
def test_the_heartbeat_is_seen_in_a_reload_of_half_a_minute_to_a_minute_and_in_its_detection(
    records: list[Record], expected: ClaimVerdict
) -> None:
    assert verdict(RECOVERY, HEARTBEAT, records) is expected


def test_a_censored_recovery_is_no_proof_of_speed() -> None:
    censored = {"recovered": False, "macro_s": None}
    assert verdict(RECOVERY, TOTAL, [kill()] * 3) is AGREES
    assert verdict(RECOVERY, TOTAL, [kill()] * 2) is INCONCLUSIVE
    assert verdict(RECOVERY, TOTAL, [*[kill()] * 3, kill(**censored, censored_at_s=34.0)]) is INCONCLUSIVE
    assert verdict(RECOVERY, TOTAL, [kill(), kill(**censored, censored_at_s=79.0)]) is DISAGREES


def test_of_a_run_with_several_recoveries_the_longest_counts_and_the_run_once() -> None:
    def repeated(*macros: float | None) -> Record:
        one = kill(macro_s=20.0)
        parts = [one.metrics.recovery.model_copy(update={"macro_s": macro, "recovered": macro is not None,
                 "censored_at_s": 34.0 if macro is None else None}) for macro in macros]  # fmt: skip
        metrics = one.metrics.model_copy(update={"recoveries": parts})
        return one.model_copy(update={"metrics": metrics, "config": {**one.config, "injections": len(parts)}})

    assert verdict(RECOVERY, TOTAL, [repeated(20.0, 21.0, 22.0)] * 3) is AGREES
    assert verdict(RECOVERY, TOTAL, [repeated(20.0, 21.0, 22.0)] * 2) is INCONCLUSIVE, "six recoveries are two runs"
    assert verdict(RECOVERY, TOTAL, [repeated(20.0, 79.0, None)] * 3) is DISAGREES
    assert verdict(RECOVERY, TOTAL, [repeated(20.0, 21.0, None)] * 3) is INCONCLUSIVE


def test_growth_is_believed_from_repetitions_only() -> None:
    def pairs(figure: str, low: float, high: float, **ends: tuple[float, float]) -> list[Record]:
        ((name, values),) = ends.items()
        return [
            kill(**{name: at, figure: value * noise})
            for at, value in zip(values, (low, high), strict=True)
            for noise in NOISE
        ]

    assert verdict(RECOVERY, REPLAY, pairs("replay_s", 1, 2, state_mb=(1, 8))) is AGREES
    assert verdict(RECOVERY, REPLAY, pairs("replay_s", 2, 1, state_mb=(1, 8))) is DISAGREES
    assert verdict(RECOVERY, REPLAY, pairs("replay_s", 1, 2, state_mb=(1, 8))[::3]) is INCONCLUSIVE
    assert verdict(RECOVERY, INTERVAL, pairs("macro_s", 5, 9, checkpoint_interval_s=(2, 5))) is AGREES
    censored = kill(checkpoint_interval_s=5, macro_s=None, recovered=False, censored_at_s=70.0)
    assert verdict(RECOVERY, INTERVAL, [*pairs("macro_s", 5, 9, checkpoint_interval_s=(2, 5)), censored]) is NOT_COVERED


def test_what_is_noticed_within_a_second_waited_for_no_heartbeat() -> None:
    for reload_s, detection_s, is_detected in ((4.0, 0.9, True), (4.0, 1.1, False), (0.0, 0.0, True)):
        (found,) = [one for text, one in of(RECOVERY, [kill(reload_s=reload_s, detection_s=detection_s)] * 3).items()
                    if text.startswith(HEARTBEAT)]  # fmt: skip
        assert found.evidence.startswith(f"median reload {reload_s:.1f} s, of which detection {detection_s:.2f} s")
        assert ("by a broken connection" in found.evidence) is is_detected


def test_a_recovery_without_reload_and_replay_has_no_share_of_either() -> None:
    nothing = kill(reload_s=0.0, replay_s=0.0)
    found = of(RECOVERY, [nothing])["reload takes the larger part of a recovery"]
    assert (found.verdict, found.evidence) == (NOT_COVERED, "no usable record of such a kill")
    half_known = [kill(reload_s=None), kill(replay_s=None)]
    assert verdict(RECOVERY, RELOAD, half_known) is NOT_COVERED
    assert verdict(RECOVERY, RELOAD, [nothing, *half_known, *[kill()] * 3]) is AGREES
    assert verdict(RECOVERY, RELOAD, [kill(reload_s=0.6, replay_s=0.3)] * 3) is AGREES


@pytest.mark.parametrize(
    ("macro_s", "expected"), [(59.0, AGREES), (60.0, INCONCLUSIVE), (60.5, DISAGREES), (61.0, DISAGREES)]
)
def test_a_recovery_of_a_minute_is_the_limit(macro_s: float, expected: ClaimVerdict) -> None:
    assert verdict(RECOVERY, TOTAL, [kill(macro_s=macro_s)] * 3) is expected
    censored = of(RECOVERY, [kill(macro_s=None, recovered=False, censored_at_s=macro_s)])[TOTAL]
    assert censored.evidence == "longest macro recovery 0.0 s, 1 censored (n = 1)"
    assert censored.verdict is (DISAGREES if macro_s > 60 else INCONCLUSIVE)


@pytest.mark.parametrize(
    ("ups", "expected"),
    [
        ((4.8,) * 3, DISAGREES), ((5.5,) * 3, AGREES), ((19.5,) * 3, AGREES), ((20.5,) * 3, DISAGREES),
        ((9.0, 10.0, 11.0), AGREES), ((7.4, 16.7), INCONCLUSIVE),
    ],
)  # fmt: skip
def test_a_restart_between_5_and_20_seconds_is_about_ten(ups: tuple[float, ...], expected: ClaimVerdict) -> None:
    assert verdict(RECOVERY, RESTART, [kill(replacement_up_s=up) for up in ups]) is expected


def test_only_valid_kills_whose_recovery_was_watched_are_recoveries() -> None:
    """Nothing else is counted, whatever figures it has."""
    recovery = {"recovered": True, "reload_s": 1.0, "replay_s": 9.0, "macro_s": 99.0}
    others = [
        kill(recovered=None, reload_s=1.0, replay_s=9.0, macro_s=99.0),
        sample(fault="executor", fault_action="pause", duration_s=100, recovery=recovery),
        sample(fault="none", recovery=recovery),
        sample(fault="executor", duration_s=100, recovery=recovery, status="invalid"),
    ]
    assert {one.verdict for one in of(RECOVERY, others).values()} == {NOT_COVERED}
    assert verdict(RECOVERY, RELOAD, [*[kill()] * 3, *others]) is verdict(RECOVERY, TOTAL, [*[kill()] * 3, *others])
    assert verdict(RECOVERY, RELOAD, [*[kill()] * 3, *others]) is AGREES
    elsewhere = [kill("driver", replacement_up_s=1.0), kill("worker", replacement_up_s=1.0)]
    assert verdict(RECOVERY, RESTART, [*[kill(replacement_up_s=10.0)] * 3, *elsewhere]) is AGREES, "of an executor"


def test_replay_is_that_of_processes_of_the_engine_and_the_interval_is_asked_of_all() -> None:
    def records(victim: str) -> list[Record]:
        return [
            kill(
                victim, state_mb=at, checkpoint_interval_s=interval, replay_s=at * noise, macro_s=10 * interval * noise
            )
            for at, interval in ((1, 2), (8, 2), (1, 5))
            for noise in NOISE
        ]

    for victim, expected in (("any", AGREES), ("worker", AGREES), ("driver", NOT_COVERED)):
        assert verdict(RECOVERY, REPLAY, records(victim)) is expected
        assert verdict(RECOVERY, INTERVAL, records(victim)) is AGREES


def audited(**numbers: Any) -> Record:
    """Return a record of a kill with this audit and `config`."""
    record, config = kill("driver"), numbers.pop("config", {})
    audit = record.metrics.audit.model_copy(update={"lost": 0, "overcounted": 0, "unexpected": 0, **numbers})
    metrics = record.metrics.model_copy(update={"audit": audit})
    return record.model_copy(update={"metrics": metrics, "config": {**record.config, **config}})


EXACT = {"checksum_mismatches": 0}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([audited(**EXACT)] * 2, AGREES),
        ([audited(**EXACT)], INCONCLUSIVE),
        # One miscount is enough.
        *(
            ([audited(**EXACT), audited(**EXACT | {name: 1})], DISAGREES)
            for name in ("unexpected", "checksum_mismatches", "lost")
        ),
        # Counts alone do not show that each record was counted once.
        ([audited()] * 2, INCONCLUSIVE),
        ([audited(**EXACT), audited()], INCONCLUSIVE),
        # Outputs of one workload carry ids.
        ([audited(config={"workload": "pi"})] * 2, AGREES),
        ([audited(config={"workload": "of another version"})] * 2, INCONCLUSIVE),
        # Nothing was audited; and without checkpoints a loss is expected.
        ([audited(lost=None, unexpected=9)] * 2, NOT_COVERED),
        ([audited(**EXACT | {"lost": 5}, config={"commit_mode": "none"})] * 2, NOT_COVERED),
    ],
)
def test_each_record_is_shown_to_be_counted_once(records: list[Record], expected: ClaimVerdict) -> None:
    assert verdict(RECOVERY, ONCE, records) is expected


def test_an_audit_that_counted_only_losses_is_an_audit() -> None:
    found = of(RECOVERY, [audited(unexpected=None, overcounted=None)] * 2)
    assert [one.evidence for one in found.values() if "0 lost" in one.evidence] == [
        "0 lost, 0 overcounted, 0 unexpected (n = 2, of which 0 identify the counted tuples)"
    ]
