"""The recoveries of a record in words: each by its number, what does not count by its reason."""

from __future__ import annotations

from faultline.reports.views.story import recovery_lines, repeated_parts
from tests.unit.sample_records import CENSORED, RECOVERED, sample


def test_one_recovery_has_no_number_and_a_control_no_line() -> None:
    (line,) = recovery_lines(sample(recovery=RECOVERED))
    assert line.startswith("detected after 0.1 s; state loaded after ") and line.endswith("as before after 13.8 s")
    assert recovery_lines(sample(fault="none")) == []


def test_several_have_the_numbers_of_their_injections_and_what_does_not_count_its_reason() -> None:
    parts = [
        {**RECOVERED, "injection": 1},
        {"injection": 2, "note": "the baseline was not steady"},
        {**CENSORED, "injection": 3},
    ]
    record = sample(recovery=RECOVERED, recoveries=parts, injections=3, duration_s=600.0)
    first, third, note = recovery_lines(record)
    assert first.startswith("recovery 1: ") and third.startswith("recovery 3: ")
    assert third.endswith("not yet as before after 33.9 s")
    assert note == "recovery 2 does not count: the baseline was not steady"
    assert len(repeated_parts(record)) == 2


def test_faults_of_a_plan_are_no_repetitions_of_one() -> None:
    assert repeated_parts(sample(recovery=RECOVERED, recoveries=[RECOVERED, CENSORED])) == []
