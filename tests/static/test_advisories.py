"""The locks contain no version that `advisories.json` lists as vulnerable, except accepted ones."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from faultline.system.settings import ROOT

FILE = Path(__file__).with_name("advisories.json")
# Maximum age of the file, which lacks newer advisories.
MOST_DAYS = 180
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)", re.MULTILINE)

Locked = Mapping[str, set[str]]


def locked(root: Path) -> dict[str, set[str]]:
    """Return the versions in the locks by package: a Python name or a Java `group:artifact`."""
    found: dict[str, set[str]] = {}
    for lock in ("requirements.lock", "requirements-test.lock"):
        for pin in _PIN.finditer((root / lock).read_text()):
            found.setdefault(canonical(pin["name"]), set()).add(pin["version"])
    for line in (root / "jars.lock").read_text().splitlines():
        if not line.startswith("#"):
            name, version = line.split()[1].rsplit(":", 1)
            found.setdefault(name, set()).add(version)
    return found


def canonical(name: str) -> str:
    """Return the normalized name of a Python package; a Java artifact is returned unchanged."""
    return name if ":" in name else re.sub(r"[-_.]+", "-", name).lower()


def affected(advisory: Mapping[str, Any], versions: Locked) -> list[str]:
    """Return the locked versions that an advisory affects."""
    ranges = [SpecifierSet(one) for one in advisory["affected"]]
    return [
        version
        for version in sorted(versions.get(canonical(advisory["package"]), ()))
        if any(one.contains(Version(version), prereleases=True) for one in ranges)
    ]


def known() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text())
    return content


def findings(content: Mapping[str, Any], versions: Locked, today: date) -> list[str]:
    """Return a line for each vulnerable locked version that is not accepted.

    Skips the test if the advisories are too old.
    """
    age = (today - date.fromisoformat(content["collected"])).days
    if age > MOST_DAYS:
        pytest.skip(f"{FILE.relative_to(ROOT)} is {age} days old, more than {MOST_DAYS}: update it")
    return [
        f"{one['package']} {', '.join(hit)}: {one['id']}: {one['summary']}"
        for one in content["advisories"]
        if not one.get("accepted") and (hit := affected(one, versions))
    ]


@pytest.mark.thorough
def test_no_locked_version_is_known_to_be_vulnerable() -> None:
    found = findings(known(), locked(ROOT), date.today())
    assert not found, "\n".join(found)


def test_every_advisory_is_complete_and_accepted_ones_still_apply() -> None:
    content, versions = known(), locked(ROOT)
    assert "by hand" in content["how"] and date.fromisoformat(content["collected"]) <= date.today()
    seen = set()
    for one in content["advisories"]:
        assert set(one) - {"accepted"} == {"package", "affected", "id", "summary"}
        assert re.fullmatch(r"(CVE-\d{4}-\d{4,}|PYSEC-\d{4}-\d+|GHSA(-[0-9a-z]{4}){3})", one["id"])
        assert one["summary"] and one["affected"] and "\n" not in one["summary"]
        assert canonical(one["package"]) in versions, f"{one['package']}: in no lock; remove it"
        assert not one.get("accepted") or affected(one, versions), (
            f"{one['id']}: affects no locked version; remove `accepted`"
        )
        seen.add((one["package"], one["id"]))
    assert len(seen) == len(content["advisories"])


@pytest.mark.parametrize(
    ("ranges", "version", "hit"),
    [
        (["<2.0"], "1.9", True), (["<2.0"], "2.0", False), (["<2.0"], "2.0rc1", False), (["<2.0"], "1.9.post1", True),
        ([">=1,<1.5", ">=2,<2.5"], "2.1", True), ([">=1,<1.5", ">=2,<2.5"], "1.7", False), (["==2.6.0"], "2.6", True),
        (["<1.5.6"], "1.5.6-10", False), (["<=1.5.6-11"], "1.5.6-10", True),
    ],
)  # fmt: skip
def test_ranges_of_versions(ranges: list[str], version: str, hit: bool) -> None:
    advisory = {"package": "Some_Package", "affected": ranges}
    assert bool(affected(advisory, {"some-package": {version}})) == hit


def test_all_entries_of_the_locks_are_read(tmp_path: Path) -> None:
    pinned = "a-b==1.0 ; python_version < '3.12' \\\n    --hash=sha256:x\n    # via c==9\n"
    (tmp_path / "requirements.lock").write_text(pinned)
    (tmp_path / "requirements-test.lock").write_text("A_B==2.0 \\\n")
    (tmp_path / "jars.lock").write_text("# c\nff  org.x:y:3.1  y-3.1.jar  kafka\n")
    assert locked(tmp_path) == {"a-b": {"1.0", "2.0"}, "org.x:y": {"3.1"}}
    names = locked(ROOT)
    assert len(names) > 200 and {"pyspark", "pytest", "org.apache.kafka:kafka-clients"} <= names.keys()


def test_vulnerable_versions_are_reported_unless_accepted_or_outdated() -> None:
    one = {"package": "a", "affected": ["<2"], "id": "CVE-2026-0001", "summary": "s"}
    content = {"collected": "2026-11-25", "advisories": [one, {**one, "id": "CVE-2026-0002", "accepted": "why"}]}
    last = date(2026, 11, 25) + timedelta(days=MOST_DAYS)
    assert findings(content, {"a": {"1.5", "2.0"}}, last) == ["a 1.5: CVE-2026-0001: s"]
    assert findings(content, {"a": {"2.0"}}, last) == []
    with pytest.raises(pytest.skip.Exception, match="advisories.json is 181 days old, more than 180"):
        findings(content, {"a": {"1.5"}}, last + timedelta(days=1))
