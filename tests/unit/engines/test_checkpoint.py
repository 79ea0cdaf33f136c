"""What a recovery would read of a checkpoint: newest snapshots and later changelogs, of all operators and stores."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from faultline.engines.spark.checkpoint import read_offsets, state_document


def snapshot(folder: Path, version: int, table_bytes: int) -> int:
    """An archive that refers to one table file; its size and the table's."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{version}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": [{"sizeBytes": table_bytes}]}))
    return path.stat().st_size + table_bytes


def test_every_store_of_every_operator_counts(tmp_path: Path) -> None:
    state = tmp_path / "state"
    sums = snapshot(state / "0" / "0", 4, 1000)
    snapshot(state / "0" / "0", 2, 77_777)  # older
    (state / "0" / "0" / "4_x.changelog").write_bytes(b"x" * 500)  # within the snapshot
    (state / "0" / "0" / "5_x.changelog").write_bytes(b"x" * 30)
    left = snapshot(state / "1" / "0" / "left-keyWithIndexToValue", 3, 2000)
    (state / "1" / "1" / "right-keyWithIndexToValue").mkdir(parents=True)
    (state / "1" / "1" / "right-keyWithIndexToValue" / "1.changelog").write_bytes(b"x" * 4)
    (state / "0" / "_metadata").mkdir()
    found = state_document(tmp_path)
    assert (found["snapshot_bytes"], found["changelog_bytes"]) == (sums + left, 34)
    assert [(one["operator"], one["partition"], one["store"], one["version"]) for one in found["snapshots"]] == [
        (0, 0, "", 2), (0, 0, "", 4), (1, 0, "left-keyWithIndexToValue", 3),
    ]  # fmt: skip


def test_a_query_without_state_has_none(tmp_path: Path) -> None:
    assert state_document(tmp_path) == {"snapshot_bytes": 0, "changelog_bytes": 0, "snapshots": []}


def test_the_store_in_memory_counts_alike(tmp_path: Path) -> None:
    store = tmp_path / "state" / "0" / "0"
    store.mkdir(parents=True)
    for name, size in (("1.delta", 10), ("2.delta", 20), ("2.snapshot", 300), ("3.delta", 40)):
        (store / name).write_bytes(b"x" * size)
    found = state_document(tmp_path)
    assert (found["snapshot_bytes"], found["changelog_bytes"]) == (300, 40)


RATE, DASH = '{"offset":17}', "-"
KAFKA = '{"orders":{"0":5,"1":3}}'


@pytest.mark.parametrize(
    ("sources", "topic", "ends"),
    [
        ([KAFKA], None, {"0": 5, "1": 3}),
        ([KAFKA], "orders", {"0": 5, "1": 3}),
        (["17", KAFKA], "orders", {"0": 5, "1": 3}),
        ([RATE, KAFKA], None, {"0": 5, "1": 3}),
        ([RATE], None, {"0": 17}),
        ([DASH, KAFKA], "orders", {"0": 5, "1": 3}),
        (['{"prices":{"0":900}}', KAFKA], "orders", {"0": 5, "1": 3}),
        ([KAFKA, '{"orders":{"0":4,"1":9}}'], "orders", {"0": 4, "1": 3}),  # read twice: the slower reading counts
        ([KAFKA, '{"orders":{"0":4}}'], "orders", {"0": 4, "1": 0}),
        (['{"prices":{"0":900}}'], "orders", None),
        ([DASH], "orders", None),
        (["17"], None, None),
    ],
)
def test_offsets_are_found_by_their_source(
    tmp_path: Path, sources: list[str], topic: str | None, ends: dict[str, int] | None
) -> None:
    """A rate source, another topic, or one that has not begun is passed over, wherever it stands."""
    file = tmp_path / "0"
    file.write_text("\n".join(["v1", "{}", *sources]))
    if ends is None:
        with pytest.raises(ValueError, match="no offsets"):
            read_offsets(file, topic)
    else:
        assert read_offsets(file, topic) == ends
