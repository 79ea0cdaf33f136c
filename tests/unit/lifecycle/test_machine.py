"""What the system says of the machine, from files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultline.lifecycle.machine import cgroup_limits, machine, processor
from faultline.records.environment import Environment


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


def test_the_processor_is_named_where_the_machine_says_it(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    assert processor(file) is None
    file.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2.50GHz\n\nprocessor\t: 1\nmodel name\t: Some CPU\n")
    assert processor(file) == "Some CPU @ 2.50GHz"
    file.write_text("processor\t: 0\nBogoMIPS\t: 48.00\n")  # as on ARM
    assert processor(file) is None


VERSION_2 = {
    "groups": "0::/user.slice/job",
    "fs/user.slice/job/cpu.max": "max 100000",
    "fs/user.slice/job/memory.max": "1073741824",
    "fs/user.slice/cpu.max": "150000 100000",
    "fs/user.slice/memory.max": "max",
}
VERSION_1 = {
    "groups": "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\n0::/",
    "fs/cpu,cpuacct/job/cpu.cfs_quota_us": "-1",
    "fs/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
    "fs/memory/job/memory.limit_in_bytes": str(512 * 2**20),
    "fs/memory/memory.limit_in_bytes": "9223372036854771712",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"groups": "0::/"}, {"cpus": None, "memory_mb": None}),
        (VERSION_2, {"cpus": 1.5, "memory_mb": 1024}),
        ({**VERSION_2, "fs/user.slice/job/cpu.max": "50000 100000"}, {"cpus": 0.5, "memory_mb": 1024}),
        ({**VERSION_2, "fs/user.slice/job/cpu.max": "a b c"}, {"cpus": 1.5, "memory_mb": 1024}),
        (VERSION_1, {"cpus": None, "memory_mb": 512}),
        ({**VERSION_1, "fs/cpu,cpuacct/job/cpu.cfs_quota_us": "250000"}, {"cpus": 2.5, "memory_mb": 512}),
        # As in a container: its path is that of the host, and what it sees is the root.
        ({"groups": "3:cpu:/docker/a\n", "fs/cpu/cpu.cfs_quota_us": "1000", "fs/cpu/cpu.cfs_period_us": "1000"},
         {"cpus": 1.0, "memory_mb": None}),
    ],
)  # fmt: skip
def test_the_tightest_limit_of_a_group_and_those_above_holds(
    tmp_path: Path, files: dict[str, str], expected: dict[str, float | None] | None
) -> None:
    write(tmp_path, files)
    assert cgroup_limits(tmp_path / "groups", tmp_path / "fs") == expected


def test_a_record_takes_what_this_machine_says() -> None:
    known = machine()
    unknown = {name: None for name, field in Environment.model_fields.items() if field.is_required()}
    found = Environment.model_validate({**unknown, **known})
    assert found.kernel and set(known) <= set(Environment.model_fields)
