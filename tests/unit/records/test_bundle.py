"""Bundles: byte-exact round trip, and refusal of changed, damaged or unsafe archives."""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.records import bundle
from faultline.records.bundle import LISTING, Member, read_bundle, sha256, write_bundle
from faultline.system.errors import ConfigError
from scripts import unpack
from tests.unit.sample_records import sample

NAME = st.text("abcdefgh-_.0123456789", min_size=1, max_size=8).filter(lambda name: name.strip(".") != "")
PATHS = st.lists(st.lists(NAME, min_size=1, max_size=3).map("/".join), unique=True, max_size=5)


@given(PATHS, st.data())
def test_bundle_round_trip_does_not_depend_on_member_order(
    tmp_path_factory: pytest.TempPathFactory, paths: list[str], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("bundle")
    members = [Member(path, data.draw(st.binary(max_size=50))) for path in paths]
    write_bundle(folder / "a.tar.xz", members)
    write_bundle(folder / "b.tar.xz", data.draw(st.permutations(members)))
    assert (folder / "a.tar.xz").read_bytes() == (folder / "b.tar.xz").read_bytes()
    assert read_bundle(folder / "a.tar.xz").files == {one.path: one.content for one in members}
    assert sorted(path.name for path in folder.iterdir()) == ["a.tar.xz", "b.tar.xz"]


def sample_bundle(folder: Path) -> Path:
    path = folder / "x.tar.xz"
    members = [Member("attempts/a/gate.json", b"{}"), Member("attempts/a/log", b"one line", sha256(b"two"), "1 of 2")]
    write_bundle(path, members)
    return path


def repack(path: Path, change: dict[str, bytes | None]) -> Path:
    """Rewrite the archive with members replaced, left out (None) or added."""
    with tarfile.open(path, "r:xz") as archive:
        found = {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]
    found |= {name: content for name, content in change.items() if content is not None}
    with tarfile.open(path, "w:xz") as archive:
        for name, content in found.items():
            if change.get(name, b"") is not None:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return path


def test_listing_holds_original_hash_and_reduction(tmp_path: Path) -> None:
    found = read_bundle(sample_bundle(tmp_path))
    log, gate = found.listing.files["attempts/a/log"], found.listing.files["attempts/a/gate.json"]
    assert (log.original, log.how) == (sha256(b"two"), "1 of 2")
    assert (gate.sha256, gate.original, gate.how) == (sha256(b"{}"), None, None)
    assert {name.split("/")[1] for name in found.files if name.startswith("attempts/")} == {"a"}


def test_unpacked_bundle_is_a_results_folder(tmp_path: Path) -> None:
    read_bundle(sample_bundle(tmp_path)).unpack(tmp_path / "results")
    assert (tmp_path / "results" / "attempts" / "a" / "log").read_bytes() == b"one line"
    with tarfile.open(sample_bundle(tmp_path), "r:xz") as archive:
        assert archive.getnames()[0] == LISTING


@pytest.mark.parametrize("content", [b"", b'{"a":1}\n{"a":2.5}\n', b"\xff"])
def test_a_journal_of_the_recorder_comes_back(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.tar.xz"
    write_bundle(path, [Member("attempts/a/recorder.jsonl", content)])
    assert read_bundle(path).files == {"attempts/a/recorder.jsonl": content}


def test_damaged_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.xz"
    write_bundle(path, [Member("attempts/a/recorder.jsonl", b"{}\n")])
    with pytest.raises(ConfigError, match="damaged bundle"):
        read_bundle(repack(path, {"results/attempts/a/recorder.jsonl.columns": b"{}"}))
    write_bundle(path, [Member("attempts/a/recorder.jsonl", b"{}\n")])
    with pytest.raises(ConfigError, match="unexpected member"):
        read_bundle(repack(path, {"results/attempts/a/recorder.jsonl": b"{}\n"}))


def test_script_unpacks_into_a_new_folder_only(tmp_path: Path) -> None:
    assert unpack.main([str(sample_bundle(tmp_path)), str(tmp_path / "results")]) == 0
    assert (tmp_path / "results" / "attempts" / "a" / "log").read_bytes() == b"one line"
    assert unpack.main([str(sample_bundle(tmp_path)), str(tmp_path / "results")]) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"results/attempts/a/log": b"another line"}, "attempts/a/log: SHA-256"),
        ({"results/attempts/a/log": None}, "attempts/a/log: missing"),
        ({"results/attempts/a/more": b""}, "attempts/a/more: not listed"),
        ({LISTING: None}, "bundle.json: missing"),
        ({LISTING: b'{"bundle": 1}'}, "bundle.json: files: .*required"),
        ({LISTING: b"no JSON"}, "bundle.json: file: "),
    ],
)  # fmt: skip
def test_changed_missing_or_unlisted_members_are_refused(
    change: dict[str, bytes | None], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_bundle(repack(sample_bundle(tmp_path), change))


def test_oversized_bundle_is_refused_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sample_bundle(tmp_path)
    monkeypatch.setattr(bundle, "MOST_BYTES", 100)
    with pytest.raises(ConfigError, match="bundle.json: "):
        read_bundle(path)


def test_record_under_another_name_is_refused(tmp_path: Path) -> None:
    one, path = sample(attempt="../elsewhere"), tmp_path / "x.tar.xz"
    write_bundle(path, [Member(f"records/{one.config_id}/a.json", one.as_json().encode())])
    with pytest.raises(ConfigError, match=r"attempt: got '\.\./elsewhere'"):
        read_bundle(path).records()


def test_unwritable_paths_are_named_in_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/x.tar.xz: cannot be written"):
        write_bundle(tmp_path / "file" / "x.tar.xz", [])
    path = tmp_path / "x.tar.xz"
    write_bundle(path, [Member("a", b""), Member("a/b", b"")])
    with pytest.raises(ConfigError, match="x.tar.xz: a/?b?: cannot be unpacked"):
        read_bundle(path).unpack(tmp_path / "there")


def test_path_outside_the_bundle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.xz"
    write_bundle(path, [Member("../out", b"")])
    with pytest.raises(ConfigError, match=r"\.\./out: "):
        read_bundle(path)


def test_symbolic_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        info = tarfile.TarInfo("results/link")
        info.type, info.linkname = tarfile.SYMTYPE, "elsewhere"
        archive.addfile(info)
    with pytest.raises(ConfigError, match="results/link: "):
        read_bundle(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x", lambda whole: b"", "x.tar.xz: got a damaged bundle"),
        ("x", lambda whole: b"text", "x.tar.xz: got a damaged bundle"),
        ("x", lambda whole: lzma.compress(b"text"), "x.tar.xz: got a damaged bundle"),
        ("x", lambda whole: whole[:200], "got a damaged bundle"),
        ("y", lambda whole: whole, "y.tar.xz: cannot be read"),
    ],
    ids=["empty", "text", "compressed text", "truncated", "missing"],
)
def test_damaged_or_missing_bundle_is_refused(
    tmp_path: Path, name: str, content: Callable[[bytes], bytes], message: str
) -> None:
    path = sample_bundle(tmp_path)
    path.write_bytes(content(path.read_bytes()))
    with pytest.raises(ConfigError, match=message):
        read_bundle(tmp_path / f"{name}.tar.xz")
