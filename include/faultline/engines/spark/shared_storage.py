"""What an attempt on a target keeps where all its hosts come: checkpoint, temporary files, executors' logs.

A link in the attempt's folder says where that is, and `checkpoint` is a link into it, so whoever reads the checkpoint
on this machine need not know. Executors write their logs there, since no worker's own folder can be read from here.
Where the storage is HDFS, checkpoints alone lie there; the rest lies beside the logins, which all hosts see.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from faultline.engines.spark.gc_log import EXECUTOR_FILE, gc_option
from faultline.engines.spark.hdfs import SCHEME, HdfsFolder
from faultline.experiment.attempt import Attempt, write_json
from faultline.system.endpoints import Endpoints
from faultline.system.errors import InfrastructureError
from faultline.system.files import make_private_folder, read_document, remove_private_folder

# The folder of the checkout that holds its programs.
PROGRAMS = "spark_jobs"
EXECUTORS, SCRATCH, CHECKPOINT, LOGGING, HDFS = "executors", "scratch", "checkpoint", "log4j2.properties", "hdfs.json"
# Spark puts both in when it starts an executor.
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
    """The attempt's folder there, the same at every call."""
    in_hdfs = endpoints.storage.startswith(SCHEME)
    folder = Path(endpoints.logins if in_hdfs else endpoints.storage) / "faultline" / attempt.id
    for name in (EXECUTORS, SCRATCH, CHECKPOINT):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / LOGGING).write_text(LOG4J)
    if in_hdfs:
        there = HdfsFolder(endpoints.storage, endpoints.storage_web) / "faultline" / attempt.id
        write_json(folder / HDFS, {"url": there.url, "web": there.web})
    for link, target in ((_shared_link(attempt), folder), (attempt.checkpoint, folder / CHECKPOINT)):
        if not link.is_symlink():
            link.symlink_to(target, target_is_directory=True)
    return folder


def find_shared(attempt: Attempt) -> Path | None:
    """The same; None of an attempt that has none."""
    return _shared_link(attempt).resolve() if _shared_link(attempt).is_symlink() else None


def find_hdfs(attempt: Attempt) -> HdfsFolder | None:
    """The attempt's folder in HDFS, of which `checkpoint` here is a copy; None of an attempt that has none."""
    folder = find_shared(attempt)
    if folder is None or not (folder / HDFS).exists():
        return None
    said = read_document(folder / HDFS)
    return HdfsFolder(str(said["url"]), str(said["web"]))


def checkpoint_url(attempt: Attempt, name: str) -> str:
    """A checkpoint of an attempt, as Spark is told where it lies."""
    there, folder = find_hdfs(attempt), find_shared(attempt)
    return (there / name).url if there is not None else str((folder or attempt.folder) / name)


def executor_options(folder: Path) -> list[str]:
    """JVM options by which an executor logs to the folder, in place of those that name files of a worker."""
    log = folder / EXECUTORS / _EXECUTOR_NAME
    return [
        f"-Dlog4j2.configurationFile={(folder / LOGGING).as_uri()}",
        f"-D{_LOG_PROPERTY}={log}.stderr",
        gc_option(f"{log}.gc.log"),
    ]


def executor_logs(attempt: Attempt) -> Iterator[tuple[str, str, str, Path]]:
    """Of each log there: application, executor, the name that it has among an attempt's raw files, and where it is."""
    folder = find_shared(attempt)
    for path in sorted((folder / EXECUTORS).glob("*")) if folder is not None else ():
        if match := _LOG.fullmatch(path.name):
            application, executor, kind = match.groups()
            yield application, executor, "stderr" if kind == "stderr" else EXECUTOR_FILE, path


def remove_shared(attempt: Attempt) -> None:
    """Removes the folder with all that it holds; harmless where there is none, or another's name."""
    folder, there = find_shared(attempt), find_hdfs(attempt)
    if there is not None and there.url.endswith(f"/{attempt.id}"):
        there.remove()
    if folder is not None and folder.name == attempt.id:
        shutil.rmtree(folder, ignore_errors=True)
    _shared_link(attempt).unlink(missing_ok=True)


def _shared_link(attempt: Attempt) -> Path:
    return attempt.folder / "shared"


# Where commit mode `none` keeps the checkpoints of an attempt's lineages: on the RAM disk, where there is one.


RAM_DISK = Path("/dev/shm")


def make_ephemeral_checkpoint(attempt: Attempt) -> Path:
    """The attempt's own folder there, the same at every call. Raises InfrastructureError."""
    return make_private_folder(_ram_link(attempt), RAM_DISK if RAM_DISK.is_dir() else Path(tempfile.gettempdir()))


def remove_ephemeral_checkpoint(attempt: Attempt) -> None:
    """Removes it with all that it holds; harmless when there is none. Raises InfrastructureError."""
    remove_private_folder(_ram_link(attempt))


def _ram_link(attempt: Attempt) -> Path:
    return attempt.folder / "throwaway"


# Where an attempt's checkpoint lies when checkpoints have a disk of their own: in a folder there.


def make_disk_checkpoint(attempt: Attempt, disk: Path) -> Path:
    """The attempt's own folder there, the same at every call. Raises InfrastructureError."""
    if not disk.is_mount():
        raise InfrastructureError(f"{disk}: is not mounted; ./faultline down, then up --hosts 3")
    folder = make_private_folder(_disk_link(attempt), disk)
    if not attempt.checkpoint.is_symlink():
        attempt.checkpoint.symlink_to(folder, target_is_directory=True)
    return folder


def has_disk_checkpoint(attempt: Attempt) -> bool:
    """Whether the attempt has a folder on such a disk."""
    return _disk_link(attempt).is_symlink()


def remove_disk_checkpoint(attempt: Attempt) -> None:
    """Removes it with all that it holds; harmless when there is none. Raises InfrastructureError."""
    remove_private_folder(_disk_link(attempt))


def _disk_link(attempt: Attempt) -> Path:
    return attempt.folder / "on-disk"
