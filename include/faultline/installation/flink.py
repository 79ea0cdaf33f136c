"""Installation of Flink: its jars from one wheel, and the Kafka connector and SQL driver from Maven."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

from faultline.engines.flink.distribution import ADD_COMMAND, LOCKS, VERSION, WORKLOADS, FlinkDistribution
from faultline.installation import jars
from faultline.installation.java import Java
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings
from faultline.system.text import Progress

REQUIRED_BYTES = 1_000_000_000


def describe_engines(settings: Settings) -> dict[str, str]:
    """Return for each engine whether it is installed, and what it runs."""
    flink = FlinkDistribution(settings.home, settings.root)
    state = f"{VERSION} installed" if flink.is_installed() else f"not installed; fix: {ADD_COMMAND}"
    return {
        "spark": "installed; runs every workload",
        "flink": f"{state}; runs {', '.join(WORKLOADS)} (engine=flink)",
    }


class PackageInstaller(Protocol):
    """Installer of pinned packages, as `faultline.bootstrap` has one."""

    def __call__(self, requirements: Path, *options: str) -> None: ...


def install_flink(
    flink: FlinkDistribution, java: Java, install: PackageInstaller, lock: int, progress: Progress
) -> None:
    """Install Flink, or what is missing of it; `lock`: descriptor of the bootstrap lock, which the caller holds.

    Raises ConfigError before anything is fetched if the disk lacks room, and for a fetched file with a wrong hash;
    InfrastructureError if something cannot be fetched. An interrupted installation is repeated, and damaged files are
    fetched again.
    """
    requirements, jar_lock = (flink.root / name for name in LOCKS)
    for path in flink.damaged_jars():
        path.unlink(missing_ok=True)
    if flink.is_installed() and not any(flink.damaged_packages()):
        jars.fetch(flink.home, java, jar_lock, keep_open=(lock,), command=ADD_COMMAND)
        progress(f"flink: {VERSION} is installed in {flink.folder}")
        return
    free = shutil.disk_usage(flink.home).free
    if free < REQUIRED_BYTES:
        raise ConfigError(
            f"flink: got {free / 1e9:.1f} GB of free disk in {flink.home}; expected {REQUIRED_BYTES / 1e9:.0f} GB; "
            "fix: free disk space"
        )
    progress(f"flink: fetching Flink {VERSION} (313 MB)")
    stage = flink.folder.with_name(f"{VERSION}.part")
    for folder in (stage, flink.folder):
        shutil.rmtree(folder, ignore_errors=True)
    install(requirements, "--target", str(stage))
    progress("flink: fetching the Kafka connector and the SQL driver")
    jars.fetch(flink.home, java, jar_lock, keep_open=(lock,), command=ADD_COMMAND)
    (stage / flink.stamp.name).write_text(flink.identity())
    stage.rename(flink.folder)
    progress(f"flink: installed {VERSION}; select it with engine=flink")
