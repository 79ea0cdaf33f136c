"""One hash a set of jars, and what it hangs on."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from faultline.installation.software import LOCKS, file_hash, hashes, set_hashes
from faultline.system.settings import ROOT, Settings


def jars(folder: Path, **named: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in named.items():
        (folder / f"{name}.jar").write_text(text)
    return folder


def test_a_set_has_the_hash_of_its_list(tmp_path: Path) -> None:
    folder = jars(tmp_path / "jars", b="two", a="one")
    made = (("a", b"one"), ("b", b"two"))
    lines = "".join(f"{hashlib.sha256(text).hexdigest()}  {name}.jar\n" for name, text in made)
    expected = {"set": hashlib.sha256(lines.encode()).hexdigest()}
    cache = tmp_path / "cache.json"
    assert set_hashes({"set": folder, "none": tmp_path / "missing"}, cache) == expected
    assert set_hashes({"set": folder}, cache) == expected
    cache.write_text('{"set": ["of another form"]}')
    assert set_hashes({"set": folder}, cache) == expected
    assert set_hashes({"set": folder}, tmp_path / "no" / "folder" / "cache.json") == expected, "only time is lost"


def test_what_is_kept_is_believed_until_a_file_changes(tmp_path: Path) -> None:
    folder, cache = jars(tmp_path / "jars", a="one"), tmp_path / "cache.json"
    first = set_hashes({"set": folder}, cache)
    status = (folder / "a.jar").stat()
    (folder / "a.jar").write_text("eno")  # the same size and, put back, the same time
    os.utime(folder / "a.jar", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert set_hashes({"set": folder}, cache) == first
    os.utime(folder / "a.jar", ns=(1, 1))
    assert set_hashes({"set": folder}, cache) != first
    jars(folder, a="one")
    assert set_hashes({"set": folder}, cache) == first, "when it was made is no part of a hash"


def test_an_installation_tells_of_its_locks_and_jars(tmp_path: Path) -> None:
    settings = Settings(tmp_path, tmp_path / "home", tmp_path / "results")
    (settings.home / "jars" / "kafka").mkdir(parents=True)
    jars(settings.jars / "kafka", broker="broker")
    found = hashes(settings)
    assert set(found) == {*LOCKS, "spark", "kafka"}
    assert found["jars.lock"] == file_hash(ROOT / "jars.lock")
    assert hashes(settings) == found
