"""Attempts that were measured, and what they came to: judging them gives the same bytes, whatever moves in the core.

`golden/NAME.tar.xz` holds the raw files of one attempt, and `record.json`, `series.json` and `audit.json` as the build
that introduced schema 2 wrote them. They are compared under the names of schema 3 (`renames`). Paths and host names in
them are placeholders. A commit that changes what is measured writes them again and names the differences, or names them
in `on_purpose`.

The attempts have no `plan.json`: what unpacks them migrates them. A new workload or fault action stands in PENDING
until an attempt of it was measured. Take that from a bundle (`./faultline results --sweep SWEEP --bundle FILE`), which
replaces paths and names; add its three JSON files.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from fault.registry import ACTIONS
from faultline.experiment.common_parameters import Common
from faultline.experiment.config import Configuration
from faultline.experiment.workloads.registry import WORKLOADS
from faultline.experiment.workloads.topology_rules import MECHANISMS
from faultline.records.judge.judge import judge
from faultline.records.record import Record
from faultline.records.renames import renamed_audit, renamed_series
from tests.support.attempts import unpacked

# Offsets that were not committed at the end of an attempt, of those that have any.
UNDRAINED = {"topo-bp": 20_866}
# Workloads and fault actions of which no attempt is here yet.
PENDING: frozenset[str] = frozenset()
GOLDEN = sorted(Path(__file__).with_name("golden").glob("*.tar.xz"))


def canonical(value: object) -> bytes:
    """Keys sorted: in which order the configuration lists its parameters follows from its registries."""
    return json.dumps(value, sort_keys=True).encode()


def on_purpose(name: str, audit: dict[str, object]) -> None:
    """What an audit says of these files since undrained input is told apart from lost one, which is unknown of a
    harvest from before."""
    if audit["expected"] is not None:
        audit["undrained"] = UNDRAINED.get(name, 0)
    if name in UNDRAINED:
        audit["lost"] = None


def configuration(archive: Path) -> dict[str, object]:
    with tarfile.open(archive) as files:
        (name,) = (name for name in files.getnames() if name.endswith("/attempt.json"))
        file = files.extractfile(name)
        assert file is not None
        return dict(json.load(file)["config"])


@pytest.mark.parametrize("archive", GOLDEN, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_judging_again_gives_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    attempt = unpacked(archive, tmp_path)
    record = judge(attempt).as_dict()
    # Read as any record: keys that are new since then are null in it, and must be so in what is judged again.
    golden = Record.model_validate_json((tmp_path / "record.json").read_bytes()).as_dict()
    # Parameters that are new since then had their defaults.
    golden["config"] = {name: field.default for name, field in Configuration.model_fields.items()} | golden["config"]
    name = archive.name.removesuffix(".tar.xz")
    on_purpose(name, golden["metrics"]["audit"])
    assert canonical(record) == canonical(golden)
    series = renamed_series(json.loads((tmp_path / "series.json").read_bytes()))
    assert (attempt / "series.json").read_text() == json.dumps(series)
    found, before = (json.loads((folder / "audit.json").read_text()) for folder in (attempt, tmp_path))
    before = renamed_audit(before)
    on_purpose(name, before)
    if name in UNDRAINED:
        before["offenders"] = [one for one in before["offenders"] if one["kind"] != "lost"]
    assert found == before


def test_the_set_has_every_workload_victim_action_and_commit_mode() -> None:
    found = [configuration(archive) for archive in GOLDEN]
    broken = [one for one in found if one["fault"] != "none"]
    workloads, actions = {one["workload"] for one in found}, {one["fault_action"] for one in broken}
    assert workloads == set(WORKLOADS) - PENDING
    # What is done to whole hosts takes some that share no disk with whoever reads this.
    assert (
        actions >= {name for name, one in ACTIONS.items() if not one.targets_hosts} - PENDING and not actions & PENDING
    )
    assert {one["fault"] for one in broken} == {"executor", "worker", "driver", "python_worker", "kafka"}
    modes = Common.model_json_schema()["properties"]["commit_mode"]["enum"]
    assert {one["commit_mode"] for one in found} == set(modes)
    named = {name for one in found for name in str(one["mechanisms"]).split("+")}
    assert named >= {"all", *MECHANISMS} - {"delayed_persistence"}  # which `all` has in a chain with a store
