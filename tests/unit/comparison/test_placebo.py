"""How far recoveries can be relied on, by the controls."""

from __future__ import annotations

import math
from collections.abc import Sequence

from faultline.comparison.answer import Placebo, placebo_among
from faultline.records.record import Record
from faultline.records.summary import Entry
from tests.unit.pages_store import record
from tests.unit.swept_records import with_placebo


def among(records: Sequence[Record]) -> Placebo | None:
    return placebo_among([Entry.of(one) for one in records])


def control(number: int) -> Record:
    return record(f"c-{number}", fault="none", repetition=number)


def test_without_controls_nobody_knows() -> None:
    assert among([record("a"), control(1)]) is None


def test_controls_that_recover_at_once_let_recoveries_be_relied_on() -> None:
    found = among([with_placebo(control(n), 2.0) for n in range(20)])
    assert found is not None
    assert (found.controls, found.unrecovered, found.macro_s, found.relied_on) == (20, 0, 2.0, True)


def test_more_than_one_in_twenty_unrecovered_is_too_many() -> None:
    fine = [with_placebo(control(n), 2.0) for n in range(19)]
    one, two = with_placebo(control(19), None), with_placebo(control(20), None)
    assert (found := among([*fine, one])) is not None
    assert found.relied_on
    assert (found := among([*fine, one, two])) is not None
    assert not found.relied_on
    assert (found := among([one, two])) is not None
    assert (found.macro_s, found.resolution_s, found.relied_on) == (math.inf, None, False)


def test_a_recovery_from_nothing_longer_than_it_is_known_is_too_long() -> None:
    found = among([with_placebo(control(n), 8.0, late_s=6.0) for n in range(20)])
    assert found is not None
    assert not found.relied_on
