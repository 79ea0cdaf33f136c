"""A checkpoint on a disk of its own: where it lies, that the attempt leads there, and that nothing of it stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultline.engines.spark.collect import discard, keep_logs
from faultline.engines.spark.shared import lies_on_disk, make_on_disk
from faultline.experiment.attempt import Attempt, write_json
from faultline.system.errors import InfrastructureError
from faultline.system.settings import Settings


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    made = Attempt(tmp_path / "20261126T061500Z-3fa9c1")
    made.folder.mkdir()
    write_json(made.folder / "attempt.json", {"attempt": made.id})
    return made


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "checkpoints"
    made.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda self: self == made)
    return made


def test_a_checkpoint_lies_there_from_start_to_teardown_and_then_no_more(
    attempt: Attempt, disk: Path, tmp_path: Path
) -> None:
    folder = make_on_disk(attempt, disk)
    assert folder.parent == disk and make_on_disk(attempt, disk) == folder, "the same for each life of the driver"
    (folder / "offsets").mkdir()
    (folder / "offsets" / "0").write_text("v1")
    keep_logs(attempt)
    assert (attempt.checkpoint / "offsets" / "0").read_text() == "v1" and lies_on_disk(attempt)
    for _ in range(2):
        discard(attempt, Settings(tmp_path, tmp_path / "home", tmp_path / "results"))
    assert list(disk.iterdir()) == [] and not lies_on_disk(attempt)
    assert not attempt.checkpoint.is_symlink()


def test_a_disk_that_is_not_mounted_is_said_before_anything_is_written(attempt: Attempt, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="checkpoints: is not mounted; ./faultline down, then up --hosts 3"):
        make_on_disk(attempt, tmp_path / "checkpoints")
    assert [one.name for one in attempt.folder.iterdir()] == ["attempt.json"]
