"""Installation of Flink: what is checked before anything is fetched, and the repair of damaged files."""

from __future__ import annotations

import hashlib
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from faultline.cli.build_command import add_engine
from faultline.engines.flink.distribution import ADD_COMMAND, LOCKS, FlinkDistribution
from faultline.installation import flink as installation
from faultline.installation import java
from faultline.installation.java import Java
from faultline.system.errors import ConfigError
from tests.support.scripts import script

JAR, CONTENT = "one-1.0.jar", b"a jar"
WHEEL = Path("pyflink/lib/flink-dist.jar")
Usage = namedtuple("Usage", "free")


class Machine:
    """State directory with locks, a fake Java that fetches the jar, and the calls of the package installer."""

    def __init__(self, folder: Path) -> None:
        self.flink = FlinkDistribution(folder / "home", folder)
        self.flink.home.mkdir()
        self.jar = self.flink.home / "jars" / "flink" / JAR
        (folder / LOCKS[0]).write_text("apache-flink-libraries==2.2.1\n")
        line = f"{hashlib.sha256(CONTENT).hexdigest()}  org.example:one:1.0  {JAR}  flink\n"
        (folder / LOCKS[1]).write_text(f"# comment\n{line}")
        served = folder / "served"
        served.write_bytes(CONTENT)
        fetches = f"mkdir -p out/flink && cp '{served}' out/flink/{JAR}; echo fetched >>'{folder}/fetches'"
        self.java = Java(folder, script(folder / "java", fetches), "17.0.1", True)
        self.installed: list[Path] = []
        self.fetches = folder / "fetches"

    def install(self) -> None:
        installation.install_flink(self.flink, self.java, self._packages, 0, lambda _: None)

    def _packages(self, requirements: Path, *options: str) -> None:
        self.installed.append(requirements)
        target = Path(options[1])
        (target / WHEEL).parent.mkdir(parents=True)
        (target / WHEEL).write_bytes(CONTENT)
        (target / "x.dist-info").mkdir()
        (target / "x.dist-info" / "RECORD").write_text(f"{WHEEL},sha256=x,{len(CONTENT)}\nx.dist-info/RECORD,,\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr("faultline.installation.jars.ivy_jar", lambda home: home / "ivy.jar")
    return Machine(tmp_path)


def test_a_full_disk_is_reported_before_anything_is_fetched(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(installation.REQUIRED_BYTES - 1))
    with pytest.raises(ConfigError, match="^flink: got 1.0 GB of free disk .*; expected 1 GB; fix: free disk space$"):
        machine.install()
    assert not machine.installed and not machine.fetches.exists()


def test_a_missing_java_is_reported_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_candidates", lambda environ, places: [])
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path / "home"))
    with pytest.raises(ConfigError, match="^java: found none; expected Java 17 or 21 .*; fix: "):
        add_engine("flink")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("damage", ["other jar", "no jar", "short package", "no package"])
def test_damage_is_refused_and_repaired_by_the_named_command(machine: Machine, damage: str) -> None:
    machine.install()
    machine.flink.require()
    path = machine.jar if "jar" in damage else machine.flink.folder / WHEEL
    path.unlink()
    if damage in ("other jar", "short package"):
        path.write_bytes(CONTENT[::-1] if damage == "other jar" else CONTENT[:-1])
    with pytest.raises(ConfigError) as refusal:
        machine.flink.require()
    assert str(refusal.value).startswith(f"engine: got flink with {path}, ")
    assert str(refusal.value).endswith(f"; fix: {ADD_COMMAND}")
    machine.install()
    machine.flink.require()
    assert len(machine.installed) == (2 if "package" in damage else 1), "an undamaged wheel is kept"


def test_a_jar_that_is_served_with_another_hash_is_rejected(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "served").write_bytes(b"another")
    with pytest.raises(ConfigError, match=f"^{JAR}: rejected: .* run `{ADD_COMMAND}` again$"):
        machine.install()
    assert not machine.flink.is_installed() and not machine.jar.exists()
