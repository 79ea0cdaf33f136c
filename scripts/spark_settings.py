"""Generator of the list of Spark settings, with the kind of their values, that the engine checks against.

.faultline/venv/bin/python scripts/spark_settings.py    rewrites include/faultline/engines/spark/known_settings.json
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "include"), str(ROOT)]

from faultline.engines.spark.conf_rules import KNOWN_SETTINGS_FILE
from faultline.installation.java import find_java
from faultline.system.settings import load_settings

# Objects in which Spark's core declares settings; loading an object registers its settings.
HOLDERS = (
    "package$", "UI$", "Python$", "R$", "Streaming$", "Status$", "History$", "Kryo$", "Network$", "Deploy$", "Worker$",
)  # fmt: skip
STATE = "org.apache.spark.sql.execution.streaming.state"
ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"
CONFIG = "org.apache.spark.internal.config"
# Kind of a setting, values that its converter accepts, values that it rejects.
PROBES = (
    ("true or false", ("true",), ("7", "10ms")),
    ("a whole number", ("7",), ("7.5", "abc", "10ms", "10kb")),
    ("a number", ("7", "7.5"), ("abc", "10ms")),
    ("a time, such as 10s", ("10ms", "7"), ("abc", "10kb")),
    ("a size, such as 64m", ("10kb", "7"), ("abc", "10ms")),
)
TEXT = "a text"


def kind_of(entry: Any) -> str:
    """Return the kind of an entry's values."""

    def takes(text: str) -> bool:
        try:
            entry.valueConverter().apply(text)
        except Exception:
            return False
        return True

    for kind, taken, refused in PROBES:
        if all(map(takes, taken)) and not any(map(takes, refused)):
            return kind
    return TEXT


def settings_of(jvm: Any) -> dict[str, str]:
    """Return every public setting of core and SQL by name."""
    loader = jvm.java.lang.Class
    for name in HOLDERS:
        try:
            loader.forName(f"{CONFIG}.{name}")
        except Exception:
            print(f"{name}: not found", file=sys.stderr)
    found: dict[str, str] = {}
    field = loader.forName(f"{CONFIG}.ConfigEntry$").getDeclaredField("knownConfigs")
    field.setAccessible(True)
    # Includes SQL settings, which the session has loaded.
    for entry in field.get(None).values():
        if str(entry.key()).startswith("spark."):
            found[str(entry.key())] = kind_of(entry)
    return dict(sorted({**found, **rocksdb_of(loader)}.items()))


def rocksdb_of(loader: Any) -> dict[str, str]:
    """Return the settings of the RocksDB state store, which reads them itself; kinds follow from the defaults."""
    holder = loader.forName(f"{STATE}.RocksDBConf$")
    module = holder.getDeclaredField("MODULE$").get(None)
    found = {}
    for field in holder.getDeclaredFields():
        field.setAccessible(True)
        entry = field.get(module)
        try:
            name, default = str(entry.name()), str(entry.default())
        except Exception:
            continue  # this field does not hold a setting
        kinds = ("true or false", r"true|false"), ("a whole number", r"-?\d+"), ("a number", r"-?\d*\.\d+")
        kind = next((kind for kind, pattern in kinds if re.fullmatch(pattern, default)), TEXT)
        found[f"{ROCKSDB}.{name}"] = kind
    return found


def main() -> None:
    """Write the settings of the installed Spark."""
    os.environ["JAVA_HOME"] = str(find_java(load_settings().home / "java.json").home)
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    found = settings_of(spark.sparkContext._jvm)
    KNOWN_SETTINGS_FILE.write_text(
        json.dumps({"pyspark": spark.version, "settings": found}, indent=1) + "\n", encoding="utf-8"
    )
    print(f"{len(found)} settings of Spark {spark.version}")
    spark.stop()


if __name__ == "__main__":
    main()
