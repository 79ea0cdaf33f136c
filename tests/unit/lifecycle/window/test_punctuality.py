"""A rate that cannot be reached: told as soon as the judge's verdict is certain, and never before."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.experiment.attempt import Attempt
from faultline.lifecycle.window.punctuality import Punctuality
from faultline.records.judge.validity import SCHEDULE_LAG_MS
from faultline.system import journal
from faultline.system.errors import InvalidMeasurement
from faultline.system.journal import write_lines
from generators.lateness import Lateness, percentiles_ms

SPEC = {"bootstrap": "b:1", "topic": "t", "partitions": 2, "rate": 1000, "seconds": 75, "source": "zipf"}
TOTAL = 75_000


def attempt_with(folder: Path, *late: int) -> Attempt:
    """An attempt whose generator said so, second by second."""
    attempt = Attempt(folder)
    lines = [{"event": "progress", "due": n * 1000, "sent": n * 1000, "late": one} for n, one in enumerate(late)]
    write_lines(attempt.generator_journal, [{"event": "primed"}, *lines])
    return attempt


def plan(spec: dict[str, Any] | None = SPEC) -> Any:  # noqa: B006 - read only
    return SimpleNamespace(generator=spec)


def test_a_rate_that_is_never_reached_is_told_within_seconds(tmp_path: Path) -> None:
    message = r"^schedule-lag: 900 of 75,000 records were more than 50 ms late, .* 1,000 records/s"
    with pytest.raises(InvalidMeasurement, match=message):
        Punctuality(attempt_with(tmp_path, 0, 100, 900)).require(plan())


@pytest.mark.parametrize("late", [(), (0, 0), (0, 750)])
def test_a_pause_that_the_percentile_bears_is_left_to_the_judge(tmp_path: Path, late: tuple[int, ...]) -> None:
    Punctuality(attempt_with(tmp_path, *late)).require(plan())


def test_what_has_no_generator_or_one_of_before_is_never_late(tmp_path: Path) -> None:
    Punctuality(Attempt(tmp_path)).require(plan(None))
    attempt = Attempt(tmp_path)
    write_lines(attempt.generator_journal, [{"event": "progress", "due": 1000, "sent": 1}])
    Punctuality(attempt).require(plan())


def test_along_a_curve_the_share_is_of_what_the_curve_sends(tmp_path: Path) -> None:
    moving = SPEC | {"rate_curve": {"kind": "step", "at_s": 10, "to": 10_000}}
    Punctuality(attempt_with(tmp_path, 900)).require(plan(moving))  # of 660,000


def test_each_look_reads_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = attempt_with(tmp_path, 0, 100)
    followed = Punctuality(attempt)
    assert (followed.number_late(), followed.number_late()) == (100, 100), "and knows what it has read"
    parsed: list[bytes] = []
    monkeypatch.setattr(journal, "parse_line", lambda raw: parsed.append(raw) or json.loads(raw))
    with attempt.generator_journal.open("a") as file:
        file.write('{"event":"progress","late":900}\n{"event":"progress","la')
    assert followed.number_late() == 900 and len(parsed) == 1


@given(late_ms=st.lists(st.floats(0, 200), min_size=1, max_size=400), more=st.integers(0, 200))
def test_it_is_certain_exactly_when_the_judge_would_say_so(
    tmp_path_factory: pytest.TempPathFactory, late_ms: list[float], more: int
) -> None:
    """With what is to come all punctual: then the percentile of the whole is the judge's."""
    import numpy as np

    counted = Lateness()
    for one in [*late_ms, *[0.0] * more]:
        counted.record(round(one * 1e6), np.zeros(1, dtype=np.int64))
    total = len(late_ms) + more
    spec = SPEC | {"rate": total, "seconds": 1}
    attempt = attempt_with(tmp_path_factory.mktemp("attempt"), counted.number_late())
    try:
        Punctuality(attempt).require(plan(spec))
    except InvalidMeasurement:
        # The histogram keeps three digits, and tells a percentile by the upper end of its slot.
        assert percentiles_ms(counted.histogram())["p99"] > SCHEDULE_LAG_MS * 0.999
