"""Java compiler and jar tool without a JDK: a Java runtime includes their modules."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from faultline.installation.java import find_java
from faultline.installation.spark import spark_home


def compile_for_spark(source: Path, into: Path) -> None:
    """Compile a class against Spark into a folder."""
    jars = os.pathsep.join(map(str, (spark_home() / "jars").glob("*.jar")))
    _run("jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-cp", jars, "-d", str(into), str(source))


def pack_jar(jar: Path, folder: Path, *names: str) -> None:
    """Create a jar from files in a folder."""
    _run("jdk.jartool/sun.tools.jar.Main", "--create", "--file", str(jar), "-C", str(folder), *names)


def _run(module: str, *arguments: str) -> None:
    java = find_java()
    done = subprocess.run(
        [str(java.executable), "-m", module, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
