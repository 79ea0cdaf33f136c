"""Profile of a worker: samples of its JVM's threads (Java Flight Recorder), by part of the work."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from faultline.system.errors import InfrastructureError

# Frames that a sample keeps; the part of a deep stack is found near its top.
STACK_DEPTH = 48
_SAMPLES, _NATIVE, _COMPILER = "jdk.ExecutionSample", "jdk.NativeMethodSample", "jdk.CompilerStatistics"
_ROCKSDB = "org.rocksdb."
QUERY = "query"
# Packages by part; earlier parts come first, as a part's packages may lie within a later one's. A sample belongs to the
# part of its topmost frame that is listed, otherwise to the query.
PARTS: Mapping[str, tuple[str, ...]] = {
    "JSON": (
        "com.fasterxml.jackson.",
        "org.apache.spark.sql.catalyst.json.",
        "org.apache.spark.sql.catalyst.expressions.json.",
        "org.apache.flink.formats.json.",
        "org.apache.flink.shaded.jackson2.",
    ),
    "Kafka": ("org.apache.kafka.", "org.apache.spark.sql.kafka010.", "org.apache.flink.connector.kafka."),
    "RocksDB": (_ROCKSDB,),
    "state": (
        "org.apache.spark.sql.execution.streaming.state.",
        "org.apache.flink.state.",
        "org.apache.flink.runtime.state.",
    ),
    "Python": ("org.apache.spark.api.python.", "org.apache.spark.sql.execution.python.", "org.apache.arrow."),
    # Above the packages of the exchange, which are at the bottom of all stacks.
    QUERY: (
        "org.apache.spark.sql.catalyst.",
        "org.apache.spark.sql.execution.",
        "org.apache.flink.table.",
        "org.apache.flink.streaming.api.operators.",
        "StreamExec",
    ),
    "exchange": ("org.apache.spark.shuffle.", "org.apache.spark.storage.", "org.apache.flink.runtime.io.network."),
}


def recording_options(file: Path) -> list[str]:
    """Return the JVM's options that record it, and write `file` when it ends."""
    return [f"-XX:StartFlightRecording=filename={file},settings=default,dumponexit=true,maxsize=200m"]


def profile(java_home: Path, file: Path, since: float = 0.0) -> dict[str, Any]:
    """Return the number of samples, the share of each part in percent, and the seconds of compiling; remove the file.

    Samples before `since` (seconds since 1970) do not count; compiling does.
    Empty if this Java has no tool for recordings, as a JRE. Raises InfrastructureError if the recording cannot be read.
    """
    wanted = ",".join((_SAMPLES, _NATIVE, _COMPILER))
    tool = java_home / "bin" / "jfr"
    if not tool.exists():
        return {}
    command = [str(tool), "print", "--json", "--stack-depth", str(STACK_DEPTH), "--events", wanted, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"jfr: {file}: {done.stderr.strip()[-300:]}")
    file.unlink()
    return shares(json.loads(done.stdout)["recording"]["events"], since)


def shares(events: Iterable[Mapping[str, Any]], since: float = 0.0) -> dict[str, Any]:
    """Return the figures of `profile` for the events of a recording."""
    found: Counter[str] = Counter()
    compile_s = 0.0
    for event in events:
        values = event["values"]
        if event["type"] == _COMPILER:
            compile_s = max(compile_s, _seconds(values["totalTimeSpent"]))
            continue
        if datetime.fromisoformat(values["startTime"]).timestamp() < since:
            continue
        frames = (values["stackTrace"] or {}).get("frames", ())
        classes = [one["method"]["type"]["name"].replace("/", ".") for one in frames]
        # Other native calls wait.
        if classes and (event["type"] == _SAMPLES or classes[0].startswith(_ROCKSDB)):
            found[part_of(classes)] += 1
    total = sum(found.values())
    percent = {part: round(100 * count / total, 1) for part, count in found.most_common()}
    return {"samples": total, "percent": percent, "compile_s": round(compile_s, 1)}


def part_of(classes: Iterable[str]) -> str:
    """Return the part of a sample by the classes of its frames, the topmost first."""
    for name in classes:
        for part, packages in PARTS.items():
            if name.startswith(packages):
                return part
    return QUERY


def _seconds(duration: str) -> float:
    """Return the seconds of an ISO duration below an hour, such as `PT1M2.5S`."""
    minutes, _, seconds = duration.removeprefix("PT").removesuffix("S").rpartition("M")
    return 60 * float(minutes or 0) + float(seconds or 0)
