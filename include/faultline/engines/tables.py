"""The tables that every harvest leaves, whoever reads the topics: as `spark_jobs/harvest.py` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from faultline.system.files import unwritable

RECORDS = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), ("timestamp_ms", pa.int64()), ("primer", pa.bool_()),
     ("lineage", pa.int32()), ("batch", pa.int32()), ("late", pa.bool_())]
)  # fmt: skip
TUPLES = pa.schema(
    [("lineage", pa.int32()), ("batch", pa.int32()), ("produced_ms", pa.int64()), ("emitted_ms", pa.int64()),
     ("primer", pa.bool_()), ("n", pa.int64())]
)  # fmt: skip
COUNTS = pa.schema(
    [("key", pa.string()), ("expected", pa.int64()), ("undrained", pa.int64()), ("drawn", pa.int64()),
     ("final", pa.int64()), ("outputs", pa.int64()), ("reemitted", pa.int64()), ("unreadable", pa.int64())]
)  # fmt: skip


def write_tables(target: Path, tables: Mapping[str, pa.Table]) -> None:
    """Writes `NAME.parquet` of each into the folder, in this order; none is seen before it is whole.

    Raises InfrastructureError naming the one that cannot be written.
    """
    for name, table in tables.items():
        part, path = target / f".{name}.part", target / f"{name}.parquet"
        try:
            target.mkdir(parents=True, exist_ok=True)
            try:
                pq.write_table(table, part)
                part.rename(path)
            except OSError:
                part.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise unwritable(path, error) from None
