"""When the broker is asked for its end offsets before a fault."""

from __future__ import annotations

import time

import pytest

from faultline.system.kafka import OFFSETS_LEAD_S, OffsetsWatch


class Broker:
    """Its offsets grow by one with each reading."""

    def __init__(self) -> None:
        self.asked_ns: list[int] = []

    def read(self, timeout_s: float) -> dict[str, int]:
        self.asked_ns.append(time.monotonic_ns())
        return {"0": len(self.asked_ns)}


@pytest.mark.parametrize(("in_s", "readings"), [(OFFSETS_LEAD_S / 2, 1), (OFFSETS_LEAD_S + 0.1, 2)])
def test_where_there_is_no_time_to_warm_up_the_first_answer_counts(in_s: float, readings: int) -> None:
    broker, due_ns = Broker(), time.monotonic_ns() + round(in_s * 1e9)
    answer = OffsetsWatch(broker, due_ns).result(5.0)
    assert answer is not None and answer[0] == {"0": readings}
    assert len(broker.asked_ns) == readings
    if readings == 2:
        assert broker.asked_ns[1] >= due_ns - round(OFFSETS_LEAD_S * 1e9)
