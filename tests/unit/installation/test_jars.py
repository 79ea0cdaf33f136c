"""Jars: lock format, verification of files, and fetching with a fake Ivy."""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from pathlib import Path

import pytest

from faultline.installation import jars
from faultline.installation.java import Java
from faultline.installation.software import LOCKS, file_hash, hashes, set_hashes
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import Settings
from tests.support.refusals import refused
from tests.support.scripts import script

ROOT = Path(__file__).resolve().parents[3]


def jar_bytes(content: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", content)
    return buffer.getvalue()


FILES_OF_PACKAGES = (
    "requirements.lock", "requirements.in", "requirements-test.lock", "requirements-test.in", "jars.lock",
    "requirements-flink.in", "requirements-flink.lock", "jars-flink.lock",
)  # fmt: skip
GOOD = {("kafka", "one-1.0.jar"): jar_bytes("one"), ("spark-kafka", "two-2.0.jar"): jar_bytes("two")}


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "jars.lock"
    lines = (
        f"{hashlib.sha256(content).hexdigest()}  org.example:{name[:3]}:{name[4:7]}  {name}  {group}\n"
        for (group, name), content in GOOD.items()
    )
    path.write_text("# a comment\n\n" + "".join(lines))
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A state directory with every jar in place."""
    home = tmp_path / "state"
    for (group, name), content in GOOD.items():
        path = home / "jars" / group / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    return home


def fake_java(tmp_path: Path, serves: dict[tuple[str, str], bytes]) -> Java:
    """Write a fake `java` that, run as Ivy, creates the given files."""
    lines = list[str]()
    for number, ((group, name), content) in enumerate(serves.items()):
        source = tmp_path / f"served-{number}"
        source.write_bytes(content)
        lines.append(f"mkdir -p out/{group} && cp '{source}' out/{group}/{name}")
    lines.append(f"cp ivy.xml '{tmp_path}/asked.xml'; echo \"$*\" >'{tmp_path}/arguments'")
    return Java(tmp_path, script(tmp_path / "java", "\n".join(lines)), "17.0.1", True)


def test_the_repositorys_lock_is_complete() -> None:
    listed = jars.read_lock()
    counts = {name: sum(jar.set == name for jar in listed) for name in jars.SETS}
    assert counts == {"kafka": 45, "kafka-tools": 1, "spark-kafka": 4, "hdfs": 0, "flink": 0}
    assert [jar.set for jar in jars.read_lock(ROOT / "jars-test.lock")] == ["hdfs"]
    assert [jar.set for jar in jars.read_lock(ROOT / "jars-flink.lock")] == ["flink"] * 4
    assert len({(jar.set, jar.filename) for jar in listed}) == len(listed)
    for jar in listed:
        # Ivy names the files so; a line that disagrees could never be fetched.
        assert jar.filename == f"{jar.artifact}-{jar.version}.jar"


@pytest.mark.parametrize("name", FILES_OF_PACKAGES)
def test_the_locks_name_no_registry(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert not re.findall(r"[\w-]+\.(?:org|com|io|net|dev)(?=[/:\s]|$)", text)
    assert not re.findall(r"(?:^|\s)/(?:home|root|tmp|work|Users)\b", text)


@pytest.mark.parametrize(
    "line",
    [
        "abc  g:a:1  a-1.jar  kafka",
        f"{'0' * 64}  g:a:1  a-1.jar  other-set",
        f"{'0' * 64}  g:a  a-1.jar  kafka",
        f"{'0' * 64}  g:a:1  ../a-1.jar  kafka",
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text(f"# comment\n{line}\n")
    with pytest.raises(ConfigError, match="jars.lock, line 2"):
        jars.read_lock(lock)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "missing"),
        (b"", "truncated"),
        (GOOD["kafka", "one-1.0.jar"][:-30], "truncated"),
        (jar_bytes("another"), "other content"),
    ],
)
def test_verify_names_jar_fault_and_remedy(home: Path, lock: Path, content: bytes | None, fault: str) -> None:
    jars.verify(home, lock)
    path, other = jars.classpath(home, "kafka", lock)[0], jars.classpath(home, "spark-kafka", lock)[0]
    path.unlink() if content is None else path.write_bytes(content)
    with refused(f"{path}: {fault};", "run `./faultline` again", *(["delete it"] if content is not None else [])):
        jars.verify(home, lock)
    other.unlink()
    with pytest.raises(ConfigError, match=rf"{fault} \(and 1 more\)"):
        jars.verify(home, lock)


def test_fetch_asks_only_for_what_is_missing(home: Path, lock: Path, tmp_path: Path) -> None:
    jars.fetch(home, Java(tmp_path, tmp_path / "no-java", "17", True), lock)  # nothing, and starts nothing
    (home / "jars" / "kafka" / "one-1.0.jar").unlink()
    jars.fetch(home, fake_java(tmp_path, GOOD), lock, ivy=tmp_path / "ivy.jar")
    jars.verify(home, lock)
    asked = (tmp_path / "asked.xml").read_text()
    assert 'name="one" rev="1.0"' in asked and 'name="two"' not in asked
    assert (tmp_path / "arguments").read_text().strip().endswith("-confs kafka")
    assert not (home / "ivy").exists()


@pytest.mark.parametrize("served", [jar_bytes("another"), GOOD["kafka", "one-1.0.jar"][:-30], b"<html>blocked</html>"])
def test_a_wrong_hash_is_never_put_in_place(home: Path, lock: Path, tmp_path: Path, served: bytes) -> None:
    path = home / "jars" / "kafka" / "one-1.0.jar"
    path.unlink()
    with pytest.raises(ConfigError, match=r"^one-1.0.jar: "):
        jars.fetch(home, fake_java(tmp_path, {("kafka", "one-1.0.jar"): served}), lock, ivy=tmp_path / "ivy.jar")
    assert not path.exists() and not (home / "ivy").exists()


def test_an_unavailable_jar_is_named_and_the_others_stay(home: Path, lock: Path, tmp_path: Path) -> None:
    for group, name in GOOD:
        (home / "jars" / group / name).unlink()
    first = dict(list(GOOD.items())[:1])
    with pytest.raises(InfrastructureError, match=r"^two-2.0.jar: "):
        jars.fetch(home, fake_java(tmp_path, first), lock, ivy=tmp_path / "ivy.jar")
    assert [jar.filename for jar in jars.missing_jars(home, lock)] == ["two-2.0.jar"]


def test_without_pyspark_the_remedy_is_named_and_a_set_that_is_none_refused(tmp_path: Path, lock: Path) -> None:
    with pytest.raises(ConfigError, match="one of kafka"):
        jars.classpath(tmp_path, "spark", lock)
    with pytest.raises(InfrastructureError, match="delete that directory"):
        jars.ivy_jar(tmp_path)


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({}, []),
        ({"https_proxy": "http://p.example:3128"}, ["-Dhttps.proxyHost=p.example", "-Dhttps.proxyPort=3128"]),
        ({"HTTP_PROXY": "p.example"}, ["-Dhttp.proxyHost=p.example", "-Dhttp.proxyPort=80"]),
        ({"HTTPS_PROXY": ""}, []),
    ],
)
def test_proxy_options(environ: dict[str, str], options: list[str]) -> None:
    assert jars.proxy_options(environ) == options


# ---- Hash of a set of jars ----


def jars_in(folder: Path, **named: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in named.items():
        (folder / f"{name}.jar").write_text(text)
    return folder


def test_a_set_has_the_hash_of_its_list(tmp_path: Path) -> None:
    folder = jars_in(tmp_path / "jars", b="two", a="one")
    made = (("a", b"one"), ("b", b"two"))
    lines = "".join(f"{hashlib.sha256(text).hexdigest()}  {name}.jar\n" for name, text in made)
    expected, spoilt = {"set": hashlib.sha256(lines.encode()).hexdigest()}, tmp_path / "spoilt.json"
    spoilt.write_text('{"set": ["of another form"]}')
    for cache in (tmp_path / "cache.json", tmp_path / "cache.json", spoilt, tmp_path / "no" / "folder" / "cache.json"):
        assert set_hashes({"set": folder, "none": tmp_path / "missing"}, cache) == expected, "only time is lost"


def test_a_cached_hash_is_valid_until_a_file_changes(tmp_path: Path) -> None:
    folder, cache = jars_in(tmp_path / "jars", a="one"), tmp_path / "cache.json"
    first = set_hashes({"set": folder}, cache)
    status = (folder / "a.jar").stat()
    (folder / "a.jar").write_text("eno")  # the same size and, put back, the same time
    os.utime(folder / "a.jar", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert set_hashes({"set": folder}, cache) == first
    os.utime(folder / "a.jar", ns=(1, 1))
    assert set_hashes({"set": folder}, cache) != first
    jars_in(folder, a="one")
    assert set_hashes({"set": folder}, cache) == first, "the creation time does not change a hash"


def test_an_installation_reports_its_locks_and_jars(settings: Settings) -> None:
    (settings.home / "jars" / "kafka").mkdir(parents=True)
    jars_in(settings.jars / "kafka", broker="broker")
    found = hashes(settings)
    assert set(found) == {*LOCKS, "spark", "kafka"}
    assert found["jars.lock"] == file_hash(ROOT / "jars.lock")
    assert hashes(settings) == found
