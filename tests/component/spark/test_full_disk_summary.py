"""Summary tables on a full disk: the old ones stay, and the next call writes new ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from faultline.records.store import Store
from tests.support.small_disk import small_disk
from tests.support.spark_session import PROGRAMS as PROGRAMS
from tests.unit.sample_records import sample

from aggregate import aggregate  # isort: skip  # a program's neighbour

pytestmark = pytest.mark.timeout(900)


@pytest.mark.thorough
def test_summaries_stay_on_a_full_disk(spark: SparkSession, tmp_path: Path) -> None:
    with small_disk(tmp_path, 16) as disk:
        results, target = disk.folder, disk.folder / "summary"
        arguments = ["--records", str(results / "records"), "--attempts", str(results / "attempts")]
        arguments += ["--target", str(target)]
        Store(results).write(sample(attempt="20261121T061500Z-000001"))
        aggregate(spark, arguments)
        before = target.resolve()
        Store(results).write(sample(attempt="20261121T061600Z-000002", repetition=1))
        disk.fill()
        with pytest.raises(Exception, match="No space left|ENOSPC|Job aborted|writing"):
            aggregate(spark, arguments)
        assert target.resolve() == before
        assert pq.read_table(target / "experiments.parquet").num_rows == 1
        assert [path for path in results.glob("summary-*") if path != before] == [], "nothing half made"
        disk.free()
        aggregate(spark, arguments)
        assert pq.read_table(target / "experiments.parquet").num_rows == 2 and not before.exists()
        shutil.rmtree(results / "records")
