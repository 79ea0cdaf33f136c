"""All benchmarks of speed one after another, and the page on them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks.catalogue import BENCHMARKS
from benchmarks.speed.generator import parse_jvm_rate
from benchmarks.speed.performance import SPEED, Failure, page, run_all
from faultline.system.errors import InfrastructureError

MACHINE = {"cores": 2, "memory_mb": 24_000, "load_1m": 0.5}


def outcome(name: str, **values: float) -> dict[str, Any]:
    figures = {
        key: {"value": value, "unit": "1", "low": value - 0.5, "high": value + 0.5, "n": 5}
        for key, value in values.items()
    }
    return {"name": name, "figures": figures, "machine": MACHINE}


def test_every_benchmark_of_speed_is_one() -> None:
    assert set(SPEED) <= set(BENCHMARKS)


def test_one_that_fails_keeps_no_other_from_running() -> None:
    lines: list[str] = []

    def run(name: str) -> dict[str, Any]:
        if name == "b":
            raise InfrastructureError("kafka: away\nfor good")
        return outcome(name)

    outcomes, failures = run_all(run, lines.append, ("a", "b", "c"))
    assert [one["name"] for one in outcomes] == ["a", "c"]
    assert failures == [Failure("b", "kafka: away for good")]
    assert lines == ["bench a", "bench b", "bench b: kafka: away for good", "bench c"]


def test_the_page_has_each_figure_with_its_interval_and_whatever_failed() -> None:
    made = [outcome("generator", ratio_zipf=1.5), outcome("overhead", fixed_s=25_000.25)]
    text = page(
        made,
        [Failure("harvest", "kafka: away")],
        build="0123abc",
        quick=False,
        now=datetime(2026, 11, 24, 13, tzinfo=UTC),
    )
    assert (
        "| measured | 24 November 2026, 13:00 UTC |\n| build | 0123abc |\n| machine | cores 2, memory_mb 24000 |"
        in text
    )
    assert "| `ratio_zipf` | 1.5 | 1 | 2 | 5 | 1 |" in text
    assert f"## generator\n\n{SPEED['generator']}\n" in text
    assert text.index("## generator") < text.index("## overhead") < text.index("## harvest")
    assert "*No figures:* kafka: away" in text
    assert "in the quick form" in page(made, [], build="x", quick=True)


def test_the_last_rate_of_the_jvm_is_the_steady_one() -> None:
    output = "10 records sent, 5.5 records/sec (0.1 MB/sec)\n8 records sent, 700000.25 records/sec (66.7 MB/sec)\n"
    assert parse_jvm_rate(output) == 700000.25
    with pytest.raises(InfrastructureError, match="no rate"):
        parse_jvm_rate("Exception in thread main")
