"""Files of an attempt that all hosts of a target reach: checkpoint, temporary files, executor logs.

A link in the attempt's folder points to the shared folder, and `checkpoint` links into it, so readers on this machine
use the same paths as for the embedded services. Executors log to the shared folder, because workers' folders are not
readable from here. If the storage is HDFS, only checkpoints are there; the rest is next to the credentials, which all
hosts see.

This module also locates checkpoints on the RAM disk (commit mode `none`) and on a separate disk.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from faultline.engines.gc_log import EXECUTOR_FILE, gc_option
from faultline.engines.spark.hdfs import SCHEME, HdfsFolder
from faultline.experiment.attempt import Attempt, write_json
from faultline.system.endpoints import Endpoints
from faultline.system.errors import InfrastructureError
from faultline.system.files import make_private_folder, read_document, remove_private_folder

# Folder of Spark programs in the checkout.
PROGRAMS = "spark_jobs"
EXECUTORS, SCRATCH, CHECKPOINT, LOGGING, HDFS = "executors", "scratch", "checkpoint", "log4j2.properties", "hdfs.json"
# Spark replaces both when it starts an executor.
_EXECUTOR_NAME = "{{APP_ID}}_{{EXECUTOR_ID}}"
_LOG = re.compile(r"(.+)_(\d+)\.(stderr|gc\.log)")
_LOG_PROPERTY = "faultline.log"
LOG4J = f"""\
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = ${{sys:{_LOG_PROPERTY}}}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}}{{UTC}}Z %p [%t] %c{{1}}: %m%n%ex
logger.kafka.name = org.apache.kafka
logger.kafka.level = WARN
logger.network.name = org.apache.kafka.clients.NetworkClient
logger.network.level = INFO
logger.codegen.name = org.apache.spark.sql.catalyst.expressions.codegen
logger.codegen.level = WARN
"""


def make_shared(attempt: Attempt, endpoints: Endpoints) -> Path:
    """Create the attempt's shared folder and return it; idempotent."""
    in_hdfs = endpoints.storage.startswith(SCHEME)
    folder = Path(endpoints.logins if in_hdfs else endpoints.storage) / "faultline" / attempt.id
    for name in (EXECUTORS, SCRATCH, CHECKPOINT):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / LOGGING).write_text(LOG4J)
    if in_hdfs:
        hdfs = HdfsFolder(endpoints.storage, endpoints.storage_web) / "faultline" / attempt.id
        write_json(folder / HDFS, {"url": hdfs.url, "web": hdfs.web})
    for link, target in ((_shared_link(attempt), folder), (attempt.checkpoint, folder / CHECKPOINT)):
        if not link.is_symlink():
            link.symlink_to(target, target_is_directory=True)
    return folder


def find_shared(attempt: Attempt) -> Path | None:
    """Return the attempt's shared folder; None if it has none."""
    return _shared_link(attempt).resolve() if _shared_link(attempt).is_symlink() else None


def find_hdfs(attempt: Attempt) -> HdfsFolder | None:
    """Return the attempt's folder in HDFS, of which the local `checkpoint` is a copy; None if it has none."""
    folder = find_shared(attempt)
    if folder is None or not (folder / HDFS).exists():
        return None
    location = read_document(folder / HDFS)
    return HdfsFolder(str(location["url"]), str(location["web"]))


def checkpoint_url(attempt: Attempt, name: str) -> str:
    """Return the location of a checkpoint of an attempt, as configured in Spark."""
    hdfs, folder = find_hdfs(attempt), find_shared(attempt)
    return (hdfs / name).url if hdfs is not None else str((folder or attempt.folder) / name)


def executor_options(folder: Path) -> list[str]:
    """Return JVM options by which an executor logs to the shared folder."""
    log = folder / EXECUTORS / _EXECUTOR_NAME
    return [
        f"-Dlog4j2.configurationFile={(folder / LOGGING).as_uri()}",
        f"-D{_LOG_PROPERTY}={log}.stderr",
        gc_option(f"{log}.gc.log"),
    ]


def executor_logs(attempt: Attempt) -> Iterator[tuple[str, str, str, Path]]:
    """Yield application, executor, raw file name and path of each log in the shared folder."""
    folder = find_shared(attempt)
    for path in sorted((folder / EXECUTORS).glob("*")) if folder is not None else ():
        if match := _LOG.fullmatch(path.name):
            application, executor, kind = match.groups()
            yield application, executor, "stderr" if kind == "stderr" else EXECUTOR_FILE, path


def remove_shared(attempt: Attempt) -> None:
    """Remove the shared folder; do nothing if there is none, or if its name is not the attempt's."""
    folder, hdfs = find_shared(attempt), find_hdfs(attempt)
    if hdfs is not None and hdfs.url.endswith(f"/{attempt.id}"):
        hdfs.remove()
    if folder is not None and folder.name == attempt.id:
        shutil.rmtree(folder, ignore_errors=True)
    _shared_link(attempt).unlink(missing_ok=True)


def _shared_link(attempt: Attempt) -> Path:
    return attempt.folder / "shared"


RAM_DISK = Path("/dev/shm")


def make_ephemeral_checkpoint(attempt: Attempt) -> Path:
    """Create the attempt's folder on the RAM disk; idempotent.

    Raises InfrastructureError.
    """
    return make_private_folder(_ram_link(attempt), RAM_DISK if RAM_DISK.is_dir() else Path(tempfile.gettempdir()))


def remove_ephemeral_checkpoint(attempt: Attempt) -> None:
    """Remove that folder; do nothing if there is none.

    Raises InfrastructureError.
    """
    remove_private_folder(_ram_link(attempt))


def _ram_link(attempt: Attempt) -> Path:
    return attempt.folder / "throwaway"


def make_disk_checkpoint(attempt: Attempt, disk: Path) -> Path:
    """Create the attempt's folder on the checkpoint disk; idempotent.

    Raises InfrastructureError.
    """
    if not disk.is_mount():
        raise InfrastructureError(f"{disk}: not mounted; fix: `./faultline down`, then `up --hosts 3`")
    folder = make_private_folder(_disk_link(attempt), disk)
    if not attempt.checkpoint.is_symlink():
        attempt.checkpoint.symlink_to(folder, target_is_directory=True)
    return folder


def has_disk_checkpoint(attempt: Attempt) -> bool:
    """Return whether the attempt has a folder on the checkpoint disk."""
    return _disk_link(attempt).is_symlink()


def remove_disk_checkpoint(attempt: Attempt) -> None:
    """Remove that folder; do nothing if there is none.

    Raises InfrastructureError.
    """
    remove_private_folder(_disk_link(attempt))


def _disk_link(attempt: Attempt) -> Path:
    return attempt.folder / "on-disk"
