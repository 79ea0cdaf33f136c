"""Counts of bids by price rank, with distinct bidders and auctions, for queries 15 and 16.

Spark streams have no distinct counts, so `transformWithState` keeps the seen ids, in pieces of neighbouring ids: ids
grow with time, so a batch touches only the last pieces. All groups of a share are processed together in numpy, because
a call per group would cost more than the counting.

Spark passes single rows to state processors, and each row costs more than the work per bid. Therefore the bids of an
Arrow batch are packed into one row per share, as columns.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

Ints = npt.NDArray[np.int64]
# Rank 1 is below the first price, rank 3 from the second price on.
LIMITS = (10_000, 1_000_000)
KINDS = ("bidder", "auction")
# The first of the four columns of a kind counts all ranks.
COLUMNS = [
    f"{which}_{what}" for what in ("bids", "bidders", "auctions") for which in ("total", "rank1", "rank2", "rank3")
]
_CARRIED = ("minute", "price", "n", *KINDS)
_MOST_SHARES = 1024
_PIECE = 1 << 12
_WIDTH = 4


class DistinctCounts(StatefulProcessor):
    """Counts of the groups of one share of a day."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        # Group names, their latest minutes, and their counts.
        self._groups = handle.getValueState("groups", "content BINARY")
        self._seen = handle.getMapState("seen", "kind INT, piece LONG", "codes BINARY")

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,
    ) -> Iterator[pd.DataFrame]:
        packs = [pickle.loads(content) for table in rows for content in table["content"]]
        stored = self._groups.get()
        names, minutes, counts = pickle.loads(stored[0]) if stored else (pd.Index([]), np.empty(0, "int64"), None)
        for pack in packs:
            names = names.append(pd.Index(pack["names"]).difference(names, sort=False))
        group = np.concatenate([names.get_indexer(pack["names"])[pack["codes"]] for pack in packs]).astype("int64")
        bids = {name: np.concatenate([pack[name] for pack in packs]).astype("int64") for name in _CARRIED}
        grown = np.zeros((len(names), len(COLUMNS)), dtype=np.int64)
        if counts is not None:
            grown[: len(counts)] = counts
        latest = np.zeros(len(names), dtype=np.int64)
        latest[: len(minutes)] = minutes
        np.maximum.at(latest, group, bids["minute"])
        rank = np.digitize(bids["price"], LIMITS).astype("int64")
        grown[:, :_WIDTH] += _by_rank(group, rank, len(names))
        for kind, name in enumerate(KINDS):
            first = (kind + 1) * _WIDTH
            grown[:, first : first + _WIDTH] += self._new_ids(kind, group, rank, bids[name], len(names))
        self._groups.update((pickle.dumps((names, latest, grown)),))
        changed = np.unique(group)
        table = pd.DataFrame(grown[changed], columns=COLUMNS)
        newest = np.zeros(len(names), dtype=np.int64)
        np.maximum.at(newest, group, bids["n"])
        table["newest"] = newest[changed]
        table.insert(0, "minute", latest[changed])
        table.insert(0, "day", key[0])
        table.insert(0, "name", names[changed])
        yield table

    def _new_ids(self, kind: int, group: Ints, rank: Ints, ids: Ints, groups: int) -> Ints:
        """Return the number of new ids by group (rows), total and rank (columns), and store them as seen."""
        total = np.zeros((groups, _WIDTH), dtype=np.int64)
        pieces = ids // _PIECE
        # Group, id within its piece, and rank are one number, so that only numbers are sorted.
        coded = (group * _PIECE + ids % _PIECE) * _WIDTH + rank
        for piece in np.unique(pieces):
            new = np.unique(coded[pieces == piece])
            stored = self._seen.getValue((kind, int(piece)))
            seen: Ints = np.frombuffer(stored[0], dtype=np.int64) if stored else np.empty(0, dtype=np.int64)
            fresh = np.setdiff1d(new, seen, assume_unique=True)
            if not len(fresh):
                continue
            total += _by_rank(fresh // (_PIECE * _WIDTH), fresh % _WIDTH, groups, totals=False)
            whole = np.setdiff1d(np.unique(fresh // _WIDTH), np.unique(seen // _WIDTH), assume_unique=True)
            total[:, 0] += np.bincount(whole // _PIECE, minlength=groups)
            self._seen.updateValue((kind, int(piece)), (np.union1d(seen, fresh).tobytes(),))
        return total


def _by_rank(group: Ints, rank: Ints, groups: int, *, totals: bool = True) -> Ints:
    """Return counts by group (rows) of all ranks (0 unless `totals`), then by rank (columns)."""
    counts = np.bincount(group * _WIDTH + rank + 1, minlength=groups * _WIDTH).reshape(groups, _WIDTH)
    if totals:
        counts[:, 0] = counts.sum(axis=1)
    return counts


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a row for each day and share with bids in a batch.

    Its content: the names of its groups, the group of each bid, and the carried columns.
    """
    for batch in batches:
        day, share = (batch.column(name).to_numpy() for name in ("day", "share"))
        names = batch.column("name").dictionary_encode()
        columns = {name: batch.column(name).to_numpy() for name in _CARRIED}
        codes, known = names.indices.to_numpy(), names.dictionary.to_pylist()
        place = day.astype("int64") * _MOST_SHARES + share
        places, contents = np.unique(place), []
        for one in places:
            mine = np.flatnonzero(place == one)
            own, own_codes = np.unique(codes[mine], return_inverse=True)
            pack = {name: column[mine] for name, column in columns.items()}
            contents.append(pickle.dumps({**pack, "names": [known[code] for code in own], "codes": own_codes}))
        days, shares = (part.astype("int32") for part in np.divmod(places, _MOST_SHARES))
        yield pa.RecordBatch.from_arrays(
            [pa.array(days), pa.array(shares), pa.array(contents, pa.binary())],
            names=["day", "share", "content"],
        )


def count_distinct(bids: DataFrame, name: str, shares: int) -> DataFrame:
    """Return name, day, minute (latest, of the day), COLUMNS and newest: a row per batch and group with bids.

    `name`: the SQL expression of the group. `shares`: the number of tasks that can count in parallel.
    """
    minute = F.hour("dateTime") * 60 + F.minute("dateTime")
    rows = bids.select(
        F.unix_date(F.col("dateTime").cast("date")).alias("day"), minute.alias("minute"), "price", "n", *KINDS,
        F.expr(f"pmod(hash({name}), {shares})").alias("share"), F.expr(name).alias("name"),
    )  # fmt: skip
    schema = "name STRING, day INT, minute INT, " + ", ".join(f"{column} LONG" for column in COLUMNS) + ", newest LONG"
    packs = rows.mapInArrow(_packed, "day INT, share INT, content BINARY")
    found = packs.groupBy("day", "share").transformWithStateInPandas(
        DistinctCounts(), schema, outputMode="Update", timeMode="None"
    )
    day = F.date_format(F.date_from_unix_date("day"), "yyyy-MM-dd")
    return found.withColumn("day", day)
