"""The pure parts of the generator's benchmark."""

from __future__ import annotations

import pytest

from benchmarks.speed.generator import parse_jvm_rate, summarise
from faultline.system.errors import InfrastructureError


def test_the_last_rate_is_the_steady_one() -> None:
    output = "10 records sent, 5.5 records/sec (0.1 MB/sec)\n8 records sent, 700000.25 records/sec (66.7 MB/sec)\n"
    assert parse_jvm_rate(output) == 700000.25
    with pytest.raises(InfrastructureError, match="no rate"):
        parse_jvm_rate("Exception in thread main")


def test_summary() -> None:
    figure = summarise([3.0, 1.0, 2.0], "1")
    assert (figure.value, figure.low, figure.high, figure.n) == (2.0, 1.0, 3.0, 3)
