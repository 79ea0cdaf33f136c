"""A stage's orders and parallelism over the deaths of the program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

from tests.support.spark_session import PROGRAMS

assert str(PROGRAMS) in sys.path

from spark_jobs.dynamic.admission import Orders  # noqa: E402
from spark_jobs.dynamic.stage import Plan, Stage  # noqa: E402


def stage(folder: Path, parallelism: int = 1) -> Stage:
    plan = Plan("split", "b:1", {"eden": "t"}, 2, "o", folder, 1.0, 4, None, ends_chain=False)
    return Stage(cast(Any, None), plan, parallelism, None)


def test_what_an_earlier_program_ordered_does_not_outlive_it(tmp_path: Path) -> None:
    orders = tmp_path / "split.orders"
    Orders(limit=5.0, most=7, hold=True).write(orders)
    again = stage(tmp_path)
    assert Orders.read(orders) == Orders()
    again.limit(2.0)
    again.limit_batches(9)
    assert Orders.read(orders) == Orders(limit=2.0, most=9)
    again.limit(None)
    assert Orders.read(orders) == Orders(most=9)


def test_what_a_replacement_made_of_a_stage_outlives_the_program(tmp_path: Path) -> None:
    assert stage(tmp_path, 2).parallelism == 2
    (tmp_path / "split.parallelism").write_text("4")
    assert (stage(tmp_path, 2).parallelism, stage(tmp_path, 2).wanted) == (4, 4)


def test_the_batch_in_work_waits_no_more(tmp_path: Path) -> None:
    """A queue is what no batch has taken in; where to go on after a death is what a batch has committed."""
    one = stage(tmp_path)
    assert one.taken() == {} == one.progress.position
    for log, batches in (("offsets", 11), ("commits", 10)):
        (tmp_path / "split" / log).mkdir(parents=True)
        (tmp_path / "split" / log / ".12.crc").touch()
        (tmp_path / "split" / log / ".12.8a-7.tmp").touch()
        for batch in range(batches):
            (tmp_path / "split" / log / str(batch)).write_text(f'v1\n{{}}\n{{"eden": {{"0": {batch}}}, "to": "a"}}')
    again = stage(tmp_path)
    assert (again.taken(), again.progress.position) == ({"eden": {"0": 10}}, {"eden": {"0": 9}})
    (tmp_path / "split" / "offsets" / "11").write_text('v1\n{}\n{"eden": {"0": 30}, "to": "a"}')
    assert again.taken() == {"eden": {"0": 30}}


def test_the_room_below_is_by_how_many_tuples_come_of_each(tmp_path: Path) -> None:
    one = stage(tmp_path)
    assert one.progress.fan_out == 1.0
    # A report that came late has the tuples of two batches, and the next one none.
    for rows, emitted in ((10, None), (10, 200), (0, 0), (10, 0), (20, 280)):
        one.reported({}, rows, emitted, 2.0, 1)
    assert (one.progress.fan_out, one.progress.batches, one.progress.rows_per_s) == (12.0, 5, 10.0)
    assert stage(tmp_path).progress.fan_out == 12.0, "known from the first batch after a death on"
