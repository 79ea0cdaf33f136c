"""Generator whose workers are tasks on Spark executors, which sends one schedule from several machines.

    spark-submit generate.py --errors FILE --config FILE --gate FILE --histogram FILE TOKEN

Except for `--errors`, command line, events and files equal those of `python -m generators`. The driver is the lead.
Each task of one stage sends a shard and has its own connection to the lead (`generators.worker_group`), because Spark
reports a task only at its end. The archive `faultline_code` ships the code; the executors' Python must have its
dependencies.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from generators.__main__ import main as generate
from generators.send_progress import EventOutput
from generators.spec import GeneratorSpec
from generators.worker_group import Address, ReportHandler, WorkerReport, Workers

# Time limit from the end of the last worker to the end of the Spark job.
END_S = 30.0


def send(spec_json: str, host: str, port: int, secret: str, member: int, _: Iterator[int]) -> Iterator[int]:
    """Send the shard `member` of the specification, as the task of an executor.

    Arguments are plain values, because the executor cannot import this code before it extracts the archive.
    """
    from pyspark import SparkFiles

    sys.path.insert(0, SparkFiles.get("faultline_code"))
    from generators.spec import GeneratorSpec
    from generators.worker import serve
    from generators.worker_group import Address

    serve(GeneratorSpec.model_validate_json(spec_json), member, Address(host, port, secret))
    yield member


class Executors:
    """Workers on executors; a thread waits for the Spark job that runs them."""

    def __init__(self, context: SparkContext, spec: GeneratorSpec) -> None:
        self._context, self._spec = context, spec
        self.host = str(context.getConf().get("spark.driver.host"))
        self._job = threading.Thread(target=lambda: None)

    def start(self, address: Address, report: ReportHandler) -> None:
        self._job = threading.Thread(target=self._run, args=(address, report), daemon=True)
        self._job.start()

    def _run(self, address: Address, report: ReportHandler) -> None:
        task = partial(send, self._spec.model_dump_json(), address.host, address.port, address.secret)
        # No barrier stage: the worker group waits for all workers anyway, and Spark checks only every 15 s whether a
        # barrier stage fits.
        stage = self._context.parallelize(range(self._spec.processes), self._spec.processes)
        try:
            stage.mapPartitionsWithIndex(task).collect()
        except Exception as error:
            # Required for workers that could not connect; the group already knows about the others.
            report(WorkerReport(0, {"event": "failed", "message": " ".join(str(error).split())[:500]}))

    def end(self) -> None:
        """Do nothing: tasks end with their connections."""

    def join(self) -> None:
        """Wait for the end of the job, which the end of the worker group causes."""
        self._job.join(END_S)


def main(arguments: Sequence[str]) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--errors", type=Path, required=True)
    options, rest = own.parse_known_args(arguments)
    # spark-submit merges both streams into standard output, which may only contain events.
    with options.errors.open("ab") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
    spark = SparkSession.builder.getOrCreate()
    EventOutput(sys.stdout).event("application", app_id=spark.sparkContext.applicationId)
    started: list[Executors] = []

    def make_workers(spec: GeneratorSpec) -> Workers:
        started.append(Executors(spark.sparkContext, spec))
        return started[-1]

    # The attempt ends spark-submit's JVM, and this program ends with it.
    status = generate([*rest, "--parent", str(os.getppid())], make_workers)
    for one in started:
        one.join()
    spark.stop()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
