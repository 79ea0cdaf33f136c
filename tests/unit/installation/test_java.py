"""Search for Java: accepted and refused versions, messages, and the cache."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from faultline.engines.runtime import Runtime
from faultline.engines.spark.engine import Spark
from faultline.engines.spark.jit_priority import link_spark_archive
from faultline.engines.spark.settings import batch_settings, workload_settings
from faultline.experiment.attempt import Attempt
from faultline.experiment.config import parse_configuration
from faultline.installation import cds_archive, java
from faultline.installation.cds_archive import archive_path, find_archive
from faultline.installation.java import Java, find_java
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings
from tests.support.scripts import script

MODULES = "java.base@17\njdk.incubator.vector@17\n"


@pytest.fixture(autouse=True)
def _no_package_lists(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """No queries of the real package lists, which take a second."""
    if not request.node.name.startswith("test_install_command"):
        monkeypatch.setattr(java, "_debian_major", lambda: 17)


def fake_java(home: Path, version: str, modules: str = MODULES, *, exit_code: int = 0) -> Path:
    """Write a script that answers like `java` and appends a line to `asked` at each call."""
    text = f"echo '    java.home = {home}' >&2; echo 'openjdk version \"{version}\" 2025-04-15' >&2"
    answers = f"case $1 in --list-modules) printf '%s' '{modules}' ;; *) {text} ;; esac"
    return script(home / "bin" / "java", f"echo asked >>'{home}/asked'\n{answers}\nexit {exit_code}")


def times_asked(home: Path) -> int:
    return len((home / "asked").read_text().splitlines())


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21", 21), ("21-ea", 21), ("1.8.0_392", 8), ("25.0.3", 25), ("", 0)]
)
def test_major(version: str, major: int) -> None:
    assert Java(Path("/"), Path("/bin/java"), version, True).major == major


def test_the_first_usable_one_of_java_home_path_and_places_is_taken(tmp_path: Path) -> None:
    executable = fake_java(tmp_path / "a", "21.0.2")
    for name in ("b", "c"):
        fake_java(tmp_path / name, "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "a"), "PATH": f"/nowhere:{tmp_path / 'b' / 'bin'}"}
    places = (str(tmp_path / "c*"),)
    assert find_java(environ=environ, places=places) == Java(tmp_path / "a", executable, "21.0.2", True)
    fake_java(tmp_path / "a", "11.0.2")
    assert find_java(environ=environ, places=places).home == tmp_path / "b", "an unusable one hides no other"
    assert find_java(environ={}, places=places).home == tmp_path / "c"


@pytest.mark.parametrize(
    ("version", "modules", "exit_code", "words"),
    [
        ("11.0.2", MODULES, 0, "is Java 11.0.2"),
        ("25.0.3", MODULES, 0, "is Java 25.0.3"),
        ("17.0.15", "java.base@17\njdk.incubator.vectors@17\n", 0, "without the module jdk.incubator.vector"),
        ("17.0.15", MODULES, 1, "fails with -version"),
        ("", b"\x00\x01", 0, "fails with -version"),
        ("", None, 0, "found none"),
    ],
)
def test_refusal_names_what_was_found_and_the_remedy(
    tmp_path: Path, version: str, modules: str | bytes | None, exit_code: int, words: str
) -> None:
    executable = fake_java(tmp_path, version, str(modules), exit_code=exit_code)
    if isinstance(modules, bytes):
        executable.write_bytes(modules)
    if modules is None:
        executable.unlink()
    with pytest.raises(ConfigError) as caught:
        find_java(environ={"PATH": str(executable.parent)}, places=())
    message = str(caught.value)
    assert words in message and f"fix: {java.install_command()}" in message and "\n" not in message
    assert (str(executable) in message) == (modules is not None)


def test_answers_are_kept_until_the_program_changes(tmp_path: Path) -> None:
    cache, home = tmp_path / "java.json", tmp_path / "jdk"
    fake_java(home, "17.0.1")
    environ = {"JAVA_HOME": str(home)}
    first = find_java(cache, environ=environ, places=())
    assert find_java(cache, environ=environ, places=()) == first
    assert times_asked(home) == 2
    fake_java(home, "11.0.22")
    with pytest.raises(ConfigError):
        find_java(cache, environ=environ, places=())


def test_a_damaged_or_read_only_cache_is_ignored(tmp_path: Path) -> None:
    cache, executable = tmp_path / "java.json", fake_java(tmp_path / "jdk", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "jdk")}
    for content in ("", "[]", '{"x": 1}', "null", json.dumps({str(executable): {"identity": "else"}})):
        cache.write_text(content)
        assert find_java(cache, environ=environ, places=()).executable == executable
    assert find_java(tmp_path / "no" / "java.json", environ=environ, places=()).major == 17


@pytest.mark.parametrize(("offered", "major"), [((17, 21), 17), ((21,), 21), ((), 17)])
def test_install_command_fits_the_system_and_its_package_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offered: tuple[int, ...], major: int
) -> None:
    cases = "".join(f"openjdk-{number}-jre-headless) echo Package ;; " for number in offered)
    for name, body in (("apt-get", "exit 0"), ("apt-cache", f"case $2 in {cases}*) exit 100 ;; esac")):
        script(tmp_path / name, body)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("faultline.installation.java.sys.platform", "linux")
    for user, before in ((0, ""), (1000, "sudo ")):
        monkeypatch.setattr("faultline.installation.java.os.geteuid", lambda user=user: user)
        assert java.install_command() == f"{before}apt-get install openjdk-{major}-jre-headless"
    monkeypatch.setattr("faultline.installation.java.sys.platform", "darwin")
    assert java.install_command() == "brew install openjdk@17"


# ---- CDS archive of a JVM ----

JAVA = Java(Path("/opt/java 17"), Path("/opt/java 17/bin/java"), "17.0.15", has_module=True)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """An installation with one jar, whose environment lies in a folder with a space."""
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "one.jar").write_text("classes")
    monkeypatch.setattr(cds_archive, "spark_home", lambda: tmp_path / "spark")
    monkeypatch.setattr(cds_archive, "find_java", lambda cache: JAVA)
    monkeypatch.setattr("sys.prefix", str(tmp_path / "an environment"))
    return Settings(tmp_path, tmp_path / "home", tmp_path / "results")


def make(settings: Settings) -> Path:
    path = archive_path(settings, JAVA)
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_an_archive_belongs_to_one_java_and_one_set_of_jars(settings: Settings, tmp_path: Path) -> None:
    first = archive_path(settings, JAVA)
    assert archive_path(replace(settings, home=tmp_path / "elsewhere"), JAVA) == first
    assert archive_path(settings, replace(JAVA, version="17.0.16")) != first
    os.utime(tmp_path / "spark" / "jars" / "one.jar", (1, 1))
    assert archive_path(settings, JAVA) != first


def test_a_jvm_gets_an_archive_only_if_it_exists(settings: Settings) -> None:
    def driver_options() -> str:
        return batch_settings(settings, archive=find_archive(settings))["spark.driver.extraJavaOptions"]

    assert find_archive(settings) is None and "Shared" not in driver_options()
    path = make(settings)
    assert find_archive(settings) == path and f'"-XX:SharedArchiveFile={path}"' in driver_options()


@pytest.mark.parametrize("fault", ["none", "executor", "driver"])
def test_the_archive_is_replaced_by_the_default_at_the_start_barrier(settings: Settings, fault: str) -> None:
    """Executors keep one command line, so the link that it names changes when the run starts."""
    attempt = Attempt(settings.attempts / "20261121T061500Z-3fa9c1")
    attempt.scratch.mkdir(parents=True)
    runtime = Runtime(JAVA.home, make(settings))
    config = parse_configuration({"fault": fault})
    found = workload_settings(settings, attempt, config, 4040, archive=link_spark_archive(attempt, runtime))
    link = attempt.scratch / "classes.jsa"
    for role in ("driver", "executor"):
        options = found[f"spark.{role}.extraJavaOptions"]
        assert f'"-Djava.io.tmpdir={attempt.scratch}"' in options and f'"-XX:SharedArchiveFile={link}"' in options
    assert os.readlink(link) == str(runtime.cds_archive)
    Spark().on_ready(SimpleNamespace(attempt=attempt), runtime)  # type: ignore[arg-type]
    assert os.readlink(link) == "/opt/java 17/lib/server/classes.jsa"
    link_spark_archive(attempt, runtime)
    assert os.readlink(link) == str(runtime.cds_archive), "a repeated step uses the archive again"


def test_without_an_archive_no_option_names_one(settings: Settings) -> None:
    attempt, runtime = Attempt(settings.attempts / "20261121T061500Z-3fa9c1"), Runtime(JAVA.home)
    assert link_spark_archive(attempt, runtime) is None
    Spark().on_ready(SimpleNamespace(attempt=attempt), runtime)  # type: ignore[arg-type]
    config = parse_configuration({"fault": "none"})
    assert "Shared" not in str(
        workload_settings(settings, attempt, config, 4040, archive=link_spark_archive(attempt, runtime))
    )
    assert not attempt.scratch.exists()


def test_the_connector_is_on_the_class_path_where_it_really_lies(settings: Settings, tmp_path: Path) -> None:
    shared = tmp_path / "shared" / "spark-kafka"
    shared.mkdir(parents=True)
    for name in ("kafka-clients.jar", "a.jar"):
        (shared / name).touch()
    settings.home.mkdir()
    settings.jars.symlink_to(tmp_path / "shared", target_is_directory=True)
    found = batch_settings(settings)
    assert found["spark.driver.extraClassPath"] == f"{shared / 'a.jar'}:{shared / 'kafka-clients.jar'}"
    assert found["spark.executor.extraClassPath"] == found["spark.driver.extraClassPath"]
    first = archive_path(settings, JAVA)
    (shared / "a.jar").write_text("other classes")
    assert archive_path(settings, JAVA) != first
