"""External HDFS: a name node and a data node of the version of PySpark's client."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from faultline.engines.spark.hdfs import HdfsFolder
from faultline.installation import jars
from faultline.installation.java import find_java
from faultline.installation.spark import spark_home
from faultline.system.errors import FaultlineError
from faultline.system.settings import HOST, ROOT, load_settings
from faultline.system.waiting import wait_until
from tests.support.external_cluster import process
from tests.support.installation import free_ports

LOCK = ROOT / "jars-test.lock"
_NODES = ("namenode.NameNode", "datanode.DataNode")


@dataclass(frozen=True)
class ExternalHdfs:
    """Addresses of the HDFS: `url` and `web` as in a Connection."""

    url: str
    web: str


@contextmanager
def external_hdfs(folder: Path) -> Iterator[ExternalHdfs]:
    """Yield a running HDFS. Skips the test if its jar is unavailable."""
    try:
        jars.fetch(load_settings().home, find_java(), LOCK)
    except FaultlineError as error:
        pytest.skip(f"needs the jar of HDFS: {error}")
    name, web, *data = free_ports(5)
    (folder / "conf").mkdir(parents=True)
    core = {"fs.defaultFS": f"hdfs://{HOST}:{name}", "hadoop.tmp.dir": folder / "tmp"}
    addresses = {"address": data[0], "http.address": data[1], "ipc.address": data[2]}
    own = {
        "dfs.namenode.name.dir": folder / "name",
        "dfs.datanode.data.dir": folder / "data",
        "dfs.namenode.http-address": f"{HOST}:{web}",
        "dfs.replication": 1,
        **{f"dfs.datanode.{key}": f"{HOST}:{port}" for key, port in addresses.items()},
    }
    _configuration(folder / "conf" / "core-site.xml", core)
    _configuration(folder / "conf" / "hdfs-site.xml", own)
    path = [folder / "conf", *jars.classpath(load_settings().home, "hdfs", LOCK), spark_home() / "jars" / "*"]
    java = [str(find_java().executable), "-Xmx256m", "-cp", ":".join(map(str, path))]
    classes = [f"org.apache.hadoop.hdfs.server.{one}" for one in _NODES]
    subprocess.run([*java, classes[0], "-format", "-nonInteractive"], check=True, capture_output=True, timeout=60)
    with ExitStack() as stack:
        running = [stack.enter_context(process([*java, one], folder / f"{one}.log")) for one in classes]
        wait_until(
            lambda: _takes_files(f"http://{HOST}:{web}"), timeout_s=60, every_s=0.2, what="the external HDFS",
            alive=lambda: None if all(one.poll() is None for one in running) else "a node exited",
        )  # fmt: skip
        made = ExternalHdfs(f"hdfs://{HOST}:{name}/faultline", f"http://{HOST}:{web}")
        HdfsFolder(made.url, made.web).make()
        yield made


def _configuration(file: Path, values: Mapping[str, object]) -> None:
    pairs = (f"<name>{key}</name><value>{escape(str(value))}</value>" for key, value in values.items())
    properties = "".join(f"<property>{one}</property>" for one in pairs)
    file.write_text(f"<configuration>{properties}</configuration>\n")


def _takes_files(web: str) -> bool:
    """Return whether a data node is live and safe mode is off."""
    query = f"{web}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(query, timeout=2) as answer:
            state = json.load(answer)["beans"][0]
    except (OSError, urllib.error.URLError, ValueError, LookupError):
        return False
    return bool(state["NumLiveDataNodes"] == 1 and state["FSState"] == "Operational")
