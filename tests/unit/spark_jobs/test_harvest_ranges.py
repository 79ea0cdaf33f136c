"""Which offsets each batch took, over state lineages; the rest of the harvest is tested on real Spark."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.harvest import bucket_width, ranges_of


def batch(lineage: int, number: int, start: dict[str, int] | None = None, **ends: int) -> dict[str, Any]:
    """`ends` by partition, as p0=10."""
    offsets = {name.removeprefix("p"): end for name, end in ends.items()}
    return {"lineage": lineage, "batch": number, "end_offsets": offsets, "start_offsets": start}


def test_a_lineage_takes_nothing_from_before_its_start_whatever_its_first_batch_took() -> None:
    batches = [
        batch(0, 0, p0=10, p1=10),
        batch(1, 0, {"0": 30, "1": 40}, p0=35, p1=40),  # nothing arrived on partition 1 yet
        batch(1, 1, p0=36, p1=44),
    ]
    assert ranges_of(batches) == [
        (0, 0, 0, 0, 10),
        (0, 0, 1, 0, 10),
        (1, 0, 0, 30, 35),
        (1, 1, 0, 35, 36),
        (1, 1, 1, 40, 44),
    ]


@given(st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2), min_size=1, max_size=20))
def test_the_ranges_of_one_lineage_cover_every_offset_once(steps: list[list[int]]) -> None:
    ends, batches = [0, 0], []
    for number, step in enumerate(steps):
        ends = [end + more for end, more in zip(ends, step, strict=True)]
        batches.append(batch(0, number, p0=ends[0], p1=ends[1]))
    for partition, end in enumerate(ends):
        taken = [offset for _, _, p, low, high in ranges_of(batches) if p == partition for offset in range(low, high)]
        assert taken == list(range(end))


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=30))
def test_cut_at_the_borders_of_buckets_there_are_at_most_about_twice_as_many_pieces(lengths: list[int]) -> None:
    """However unequal the batches are: a replay takes in what a hundred others do."""
    ends, batches = 0, []
    for number, length in enumerate(lengths):
        ends += length
        batches.append(batch(0, number, p0=ends))
    ranges = ranges_of(batches)
    width = bucket_width(ranges)
    pieces = sum((high - 1) // width - low // width + 1 for *_, low, high in ranges)
    assert pieces <= 2 * len(ranges) + 1


def test_without_a_batch_a_bucket_has_some_width_all_the_same() -> None:
    assert bucket_width([]) == 1
