"""A replay: which record comes when and where is a function of data, seed and repetition alone."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from generators.chance import murmur2, partition_of
from generators.data_files import Data
from generators.pacing import MS, Listed, Stripe
from generators.spec import GeneratorSpec
from generators.state import Fillers
from generators.stream import Replay, Stream, make_source

times = st.lists(st.integers(0, 5_000), min_size=1, max_size=12).map(sorted)


@given(times, st.sampled_from([0.5, 1.0, 3.0, 10.0]), st.floats(0.01, 30))
def test_a_listed_schedule_is_its_list_over_and_over(at_ms: list[int], speed: float, seconds: float) -> None:
    """Against a plain walk through all of its records."""
    round_ms = Data(values=[b""] * len(at_ms), times_ms=at_ms).round_ms
    listed = Listed.over(at_ms, round_ms, speed, seconds)
    length = max(round((at_ms[-1] - at_ms[0]) * MS / speed) + 1, round(round_ms * MS / speed))
    due, k = [], 0
    while len(due) <= 2000:
        cycle, place = divmod(k, len(at_ms))
        at = cycle * length + round((at_ms[place] - at_ms[0]) * MS / speed)
        if at >= round(seconds * 1e9):
            break
        due.append(at)
        k += 1
    assert listed.count == len(due) or len(due) > 2000
    assert [listed.due_ns(n) for n in range(len(due))] == due
    assert listed.due_array(0, 1, len(due)).tolist() == due
    for at in {0, *due[:5], *(one + 1 for one in due[:5])}:
        assert listed.due_count(at) == min(listed.count, sum(one <= at for one in due))


def test_keys_lie_where_kafkas_own_clients_put_them() -> None:
    """Kafka's own test values of its hash (Utils.murmur2), as unsigned numbers."""
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
    assert {key: murmur2(key) for key in known} == {key: value % 2**32 for key, value in known.items()}
    assert partition_of(b"foobar", 7) == (-790332482 & 0x7FFFFFFF) % 7


def spec(path: Path, **more: object) -> GeneratorSpec:
    told = {"bootstrap": "x", "topic": "t", "partitions": 3, "rate": 100, "seconds": 2, "source": "data"}
    return GeneratorSpec.model_validate({**told, "data": str(path), **more})


def sent(one: GeneratorSpec, stripe: Stripe | None = None) -> list[tuple[object, ...]]:
    """(partition, key, value, headers, due) of all records of a stripe."""
    stream = Stream(make_source(one), Fillers(0, 0, 1, 0), one, stripe or Stripe())
    rows: list[tuple[object, ...]] = []
    while len(rows) < stream.total:
        chunk = stream.take(17)
        n = len(chunk.payloads)
        keys, headers = chunk.keys or [None] * n, chunk.headers or [None] * n
        rows += zip(chunk.partitions, keys, chunk.payloads, headers, chunk.due_ns.tolist(), strict=True)
    return rows


def test_recorded_times_decide_and_cycles_move_the_times_in_values(tmp_path: Path) -> None:
    rows = [{"at": 1_795_608_000 + second} for second in (0, 1, 4)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    one = spec(tmp_path / "a.jsonl", data_time="at", data_pace="recorded", data_speed=4.0)
    assert [row[4] for row in sent(one)][:4] == [0, 250_000_000, 1_000_000_000, 1_500_000_000]
    values = [json.loads(bytes(row[2]))["at"] - 1_795_608_000 for row in sent(one)]  # type: ignore[arg-type]
    assert values == [0, 1, 4, 6, 7], "the second cycle begins a mean gap after the end of the first"


def test_the_primer_of_data_with_times_makes_nothing_late() -> None:
    data = Data(values=[b"a", b"b"], times_ms=[1, 2])
    assert list(Replay(data, 1, 0).primer(3)) == [b"a", b"a", b"a"]
    plain, keyed = Replay(Data(values=[b"a", b"b"]), 1, 0), Replay(Data([b"a", b"b"], [b"k", None]), 1, 0)
    assert list(plain.primer(3)) == [b"a", b"b", b"a"] and plain.primer_key(0) is None
    assert [keyed.primer_key(number) for number in range(3)] == [b"k", None, b"k"]


def test_a_round_is_as_long_as_its_times_whatever_their_order() -> None:
    assert Data(values=[b"a"] * 3, times_ms=[100, 500, 90]).round_ms == 410 + 205
    assert Data(values=[b"a"] * 2, times_ms=[7, 7]).round_ms == 1000
    assert Data(values=[b"a"] * 2, times_ms=[0, 86_400_000], resolution_ms=86_400_000).round_ms == 2 * 86_400_000
