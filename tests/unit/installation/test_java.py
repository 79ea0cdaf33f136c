"""Finding Java: what is accepted, what is refused with which words, and that the answers are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from faultline.installation import java
from faultline.installation.java import Java, find_java
from faultline.system.errors import ConfigError

MODULES = "java.base@17\njdk.incubator.vector@17\n"


@pytest.fixture(autouse=True)
def _no_package_lists(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The real package lists take a second to ask; only the tests of the command itself look at them."""
    if not request.node.name.startswith("test_install_command"):
        monkeypatch.setattr("faultline.installation.java._debian_major", lambda: 17)


def fake_java(home: Path, version: str, modules: str = MODULES, *, exit_code: int = 0) -> Path:
    """A script that answers like `java` and writes a line into `asked` each time."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True, exist_ok=True)
    executable.write_text(
        "#!/bin/sh\n"
        f"echo asked >>'{home}/asked'\n"
        f"case $1 in --list-modules) printf '%s' '{modules}' ;; "
        f"*) echo '    java.home = {home}' >&2; echo 'openjdk version \"{version}\" 2025-04-15' >&2 ;; esac\n"
        f"exit {exit_code}\n"
    )
    executable.chmod(0o755)
    return executable


def times_asked(home: Path) -> int:
    asked = home / "asked"
    return len(asked.read_text().splitlines()) if asked.exists() else 0


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21", 21), ("21-ea", 21), ("1.8.0_392", 8), ("25.0.3", 25), ("", 0)]
)
def test_major(version: str, major: int) -> None:
    assert Java(Path("/"), Path("/bin/java"), version, True).major == major


@pytest.mark.parametrize("version", ["17.0.15", "21.0.2"])
def test_supported_versions_are_accepted(tmp_path: Path, version: str) -> None:
    executable = fake_java(tmp_path / "jdk", version)
    found = find_java(environ={"JAVA_HOME": str(tmp_path / "jdk")}, places=())
    assert found == Java(tmp_path / "jdk", executable, version, True)


def test_order_is_java_home_then_path_then_places(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        fake_java(tmp_path / name, "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "a"), "PATH": f"/nowhere:{tmp_path / 'b' / 'bin'}"}
    places = (str(tmp_path / "c*"),)
    assert find_java(environ=environ, places=places).home == tmp_path / "a"
    del environ["JAVA_HOME"]
    assert find_java(environ=environ, places=places).home == tmp_path / "b"
    assert find_java(environ={}, places=places).home == tmp_path / "c"


def test_an_unusable_java_home_does_not_hide_a_usable_java(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    fake_java(tmp_path / "good", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "good" / "bin")}
    assert find_java(environ=environ, places=()).home == tmp_path / "good"


@pytest.mark.parametrize(
    ("version", "modules", "exit_code", "words"),
    [
        ("11.0.2", MODULES, 0, "is Java 11.0.2"),
        ("25.0.3", MODULES, 0, "is Java 25.0.3"),
        ("17.0.15", "java.base@17\njdk.incubator.vectors@17\n", 0, "without the module jdk.incubator.vector"),
        ("17.0.15", MODULES, 1, "does not answer"),
    ],
)
def test_refusal_names_what_was_found_and_the_remedy(
    tmp_path: Path, version: str, modules: str, exit_code: int, words: str
) -> None:
    executable = fake_java(tmp_path, version, modules, exit_code=exit_code)
    with pytest.raises(ConfigError) as caught:
        find_java(environ={"PATH": str(executable.parent)}, places=())
    message = str(caught.value)
    assert str(executable) in message and words in message and java.install_command() in message
    assert "\n" not in message


def test_no_java_at_all() -> None:
    with pytest.raises(ConfigError, match="found: none. Install it with: "):
        find_java(environ={"PATH": "/nowhere"}, places=())


def test_a_file_that_is_no_program_is_refused(tmp_path: Path) -> None:
    executable = tmp_path / "java"
    executable.write_bytes(b"\x00\x01")
    executable.chmod(0o755)
    with pytest.raises(ConfigError, match="does not answer"):
        find_java(environ={"PATH": str(tmp_path)}, places=())


def test_answers_are_kept_until_the_program_changes(tmp_path: Path) -> None:
    cache, home = tmp_path / "java.json", tmp_path / "jdk"
    fake_java(home, "17.0.1")
    environ = {"JAVA_HOME": str(home)}
    first = find_java(cache, environ=environ, places=())
    assert times_asked(home) == 2
    assert find_java(cache, environ=environ, places=()) == first
    assert times_asked(home) == 2
    fake_java(home, "11.0.22")
    with pytest.raises(ConfigError):
        find_java(cache, environ=environ, places=())


@pytest.mark.parametrize("content", ["", "[]", '{"x": 1}', "null"])
def test_a_spoilt_cache_is_ignored(tmp_path: Path, content: str) -> None:
    cache, home = tmp_path / "java.json", tmp_path / "jdk"
    executable = fake_java(home, "17.0.1")
    cache.write_text(content)
    environ = {"JAVA_HOME": str(home)}
    assert find_java(cache, environ=environ, places=()).executable == executable
    cache.write_text(json.dumps({str(executable): {"identity": "else"}}))
    assert find_java(cache, environ=environ, places=()).executable == executable


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    fake_java(tmp_path, "17.0.1")
    cache = tmp_path / "no" / "such" / "java.json"
    assert find_java(cache, environ={"JAVA_HOME": str(tmp_path)}, places=()).major == 17


def test_install_command_fits_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faultline.installation.java.sys.platform", "darwin")
    assert java.install_command() == "brew install openjdk@17"
    monkeypatch.setattr("faultline.installation.java.sys.platform", "linux")
    monkeypatch.setattr("faultline.installation.java.shutil.which", {"apt-get": "/usr/bin/apt-get"}.get)
    monkeypatch.setattr("faultline.installation.java.os.geteuid", lambda: 0)
    assert java.install_command() == "apt-get install openjdk-17-jre-headless"
    monkeypatch.setattr("faultline.installation.java.os.geteuid", lambda: 1000)
    assert java.install_command() == "sudo apt-get install openjdk-17-jre-headless"


@pytest.mark.parametrize(("offered", "major"), [((17, 21), 17), ((21,), 21), ((), 17)])
def test_install_command_names_what_the_package_lists_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offered: tuple[int, ...], major: int
) -> None:
    cases = "".join(f"openjdk-{number}-jre-headless) echo Package ;; " for number in offered)
    for name, body in (("apt-get", "exit 0"), ("apt-cache", f"case $2 in {cases}*) exit 100 ;; esac")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("faultline.installation.java.sys.platform", "linux")
    assert java.install_command().endswith(f"apt-get install openjdk-{major}-jre-headless")
