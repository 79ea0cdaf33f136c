"""Judging the published part of an attempt gives the record of the whole attempt.

Tested with every golden attempt. If instants of tuples were aggregated over steps, latencies and figures derived from
them may differ by one step; everything else is equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.records.judge import file_reduction
from faultline.records.judge.file_reduction import largest_error_ms as one_off_ms
from faultline.records.judge.file_reduction import reduce_files
from faultline.records.judge.judge import judge_readonly
from tests.contract.test_golden_records import GOLDEN
from tests.support.attempts import unpacked


def differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for key in before:
            yield from differences(before[key], after[key], f"{path}.{key}" if path else key)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from differences(one, other, path)
    elif before != after:
        yield path, before, after


@given(st.lists(st.integers(0, 4_000), min_size=3, unique=True), st.integers(0, 4_000), st.integers(0, 3))
def test_tuples_due_at_a_fault_stay_apart(produced: list[int], fault: int, wait_ms: int) -> None:
    """The end of the replay depends on them."""
    due, t0_ms = pa.array([7_000 + at for at in produced]), 7_000
    table = pa.table({"produced_ms": due, "emitted_ms": pc.add(due, wait_ms), "n": [1] * len(produced)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_reduction, "MAX_ROWS", len(produced) // 3)
        reduced, how = file_reduction.round_to_steps(table, t0_ms, [t0_ms + fault])
    assert how, "instants are rounded"
    for one in (table, reduced):
        is_due = pc.less_equal(one["produced_ms"], t0_ms + fault)
        assert pc.sum(one.filter(is_due)["n"]).as_py() == (sum(at <= fault for at in produced) or None)


@pytest.mark.parametrize("archive", GOLDEN, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_the_record_of_what_is_published_is_the_same(archive: Path, tmp_path: Path) -> None:
    whole = unpacked(archive, tmp_path / "whole")
    part = tmp_path / "part" / whole.name
    kept = list(reduce_files(whole))
    for one in kept:
        (part / one.path).parent.mkdir(parents=True, exist_ok=True)
        (part / one.path).write_bytes(one.content)
    off_ms = max(one_off_ms(one.how) for one in kept)
    before, after = (comparable(judge_readonly(folder).record.as_dict()) for folder in (whole, part))
    for path, one, other in differences(before, after):
        assert abs(one - other) <= allowed(path, off_ms), path


def comparable(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without its list of files, and with numbers in sentences masked."""
    timeline = [{**event, "source": re.sub(r"[\d,.]+", "#", event["source"])} for event in record["timeline"]]
    reasons = [re.sub(r"[\d,.]+", "#", reason) for reason in record["reasons"]]
    return {**record, "artifacts": None, "timeline": timeline, "reasons": reasons}


def allowed(path: str, off_ms: int) -> float:
    """Return the tolerance of a figure; ends of intervals have twice the tolerance."""
    name = path.rpartition(".")[2]
    if name.endswith("_ns"):
        return off_ms * 1e6
    if name.endswith("ratio"):
        return off_ms / 1000
    # The ends of a phase move, and with them the records due in it.
    if "latency" in path or name.endswith("_ms") or "cpu_by_phase" in path:
        return 2 * off_ms
    return 2 * off_ms / 1000 if name.endswith("_s") else 0
