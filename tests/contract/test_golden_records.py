"""Golden attempts: judging them gives the same bytes, whatever changes in the core.

`golden/NAME.tar.xz` holds the raw files of one attempt, and `record.json`, `series.json` and `audit.json` as the build
that introduced schema 2 wrote them. They are compared under the names of schema 3 (`renames`). Paths and host names
are placeholders. A commit that changes figures writes them again and names the differences, or adds them to
`on_purpose`.

Attempts of Spark have no `plan.json`; unpacking migrates them. List a new workload or fault action in PENDING until an
attempt of it has been measured. Take that from a bundle (`./faultline results --sweep SWEEP --bundle FILE`), which
replaces paths and names; add its three JSON files.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fault.registry import ACTIONS
from faultline.experiment.common_parameters import Common
from faultline.experiment.config import Configuration
from faultline.experiment.workloads.registry import WORKLOADS
from faultline.experiment.workloads.topology_rules import MECHANISMS
from faultline.records.judge.judge import judge
from faultline.records.record import Record
from faultline.records.renames import renamed_audit, renamed_series
from faultline.system.measured_window import NS
from tests.support.attempts import unpacked

# Attempt: number of offsets that were not committed at its end.
UNDRAINED = {"topo-bp": 20_866}
# Attempts whose generator was late only outside the measured window.
LATE_OUTSIDE_WINDOW = {"topo-bp", "topo-replay"}
# Workloads, fault actions and commit modes without a golden attempt.
PENDING: frozenset[str] = frozenset()
GOLDEN = sorted(Path(__file__).with_name("golden").glob("*.tar.xz"))


def canonical(value: object) -> bytes:
    """Return JSON with sorted keys, since registries determine the order of the parameters."""
    return json.dumps(value, sort_keys=True).encode()


def on_purpose(name: str, record: dict[str, Any]) -> None:
    """Add the intended differences to an old record.

    The audit's; `durable_s`, which ends at t5 with batches; `schedule-lag`, which now counts the measured window only.
    """
    metrics = record["metrics"]
    change_audit(name, metrics["audit"])
    if name in LATE_OUTSIDE_WINDOW:
        record["reasons"] = [one for one in record["reasons"] if not one.startswith("schedule-lag:")]
    instants = {event["name"]: event["wall_ns"] for event in record["timeline"]}
    if "t5" in instants and "durable" not in instants:
        for recovery in (metrics["recovery"], *metrics["recoveries"]):
            recovery["durable_s"] = (instants["t5"] - instants["t0"]) / NS


def change_audit(name: str, audit: dict[str, Any]) -> None:
    """Add the intended differences to an old audit: it now distinguishes undrained from lost input."""
    if audit["expected"] is not None:
        audit["undrained"] = UNDRAINED.get(name, 0)
    if name in UNDRAINED:
        audit["lost"] = None


def configuration(archive: Path) -> dict[str, object]:
    with tarfile.open(archive) as files:
        plans = [name for name in files.getnames() if name.endswith("/plan.json")]
        (name,) = plans or (name for name in files.getnames() if name.endswith("/attempt.json"))
        file = files.extractfile(name)
        assert file is not None
        content = json.load(file)
        return dict(content["order"]["config"] if plans else content["config"])


@pytest.mark.parametrize("archive", GOLDEN, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_judging_again_gives_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    attempt = unpacked(archive, tmp_path)
    record = judge(attempt).as_dict()
    # Newer keys are null in the stored record, and must be null after judging again.
    golden = Record.model_validate_json((tmp_path / "record.json").read_bytes()).as_dict()
    # Newer parameters had their defaults.
    golden["config"] = {name: field.default for name, field in Configuration.model_fields.items()} | golden["config"]
    name = archive.name.removesuffix(".tar.xz")
    on_purpose(name, golden)
    # Newer than the stored records; a unit test holds it.
    golden["metrics"]["cpu_by_phase"] = record["metrics"]["cpu_by_phase"]
    assert canonical(record) == canonical(golden)
    series = renamed_series(json.loads((tmp_path / "series.json").read_bytes()))
    assert (attempt / "series.json").read_text() == json.dumps(series)
    found, before = (json.loads((folder / "audit.json").read_text()) for folder in (attempt, tmp_path))
    before = renamed_audit(before)
    change_audit(name, before)
    if name in UNDRAINED:
        before["offenders"] = [one for one in before["offenders"] if one["kind"] != "lost"]
    assert found == before


def test_the_set_has_every_workload_victim_action_and_commit_mode() -> None:
    found = [configuration(archive) for archive in GOLDEN]
    broken = [one for one in found if one["fault"] != "none"]
    workloads, actions = {one["workload"] for one in found}, {one["fault_action"] for one in broken}
    assert workloads == set(WORKLOADS) - PENDING
    # Actions on whole hosts need hosts with separate disks.
    assert (
        actions >= {name for name, one in ACTIONS.items() if not one.targets_hosts} - PENDING and not actions & PENDING
    )
    assert {one["fault"] for one in broken} == {"executor", "worker", "driver", "python_worker", "kafka"}
    modes = Common.model_json_schema()["properties"]["commit_mode"]["enum"]
    assert {one["commit_mode"] for one in found} == set(modes) - PENDING
    named = {name for one in found for name in str(one["mechanisms"]).split("+")}
    assert named >= {"all", *MECHANISMS} - {"delayed_persistence"}  # which `all` has in a chain with a store
