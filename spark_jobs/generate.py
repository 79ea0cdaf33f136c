"""A generator whose processes are tasks of Spark's executors, so that one schedule can be sent from several machines.

    spark-submit generate.py --errors FILE --config FILE --gate FILE --histogram FILE TOKEN

Beside `--errors` the same command line, events and files as `python -m generators`, which this is but for its members.
The driver is the lead; each task of one stage sends a stripe, and talks with the lead over a connection of its own
(`generators.worker_group`), since Spark tells of a task only when it is done. The code comes along as the archive
`faultline_code`; the Python of the executors must have what the generators need.
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

# From the end of the last member to the end of Spark's job.
END_S = 30.0


def send(told: str, host: str, port: int, secret: str, member: int, _: Iterator[int]) -> Iterator[int]:
    """The task of an executor: sends the stripe `member` of the specification `told`.

    What it is handed is plain: the executor has none of our code before it looks into the archive.
    """
    from pyspark import SparkFiles

    sys.path.insert(0, SparkFiles.get("faultline_code"))
    from generators.spec import GeneratorSpec
    from generators.worker import serve
    from generators.worker_group import Address

    serve(GeneratorSpec.model_validate_json(told), member, Address(host, port, secret))
    yield member


class Executors:
    """Starts the members, in a thread: the job lasts as long as they do."""

    def __init__(self, context: SparkContext, spec: GeneratorSpec) -> None:
        self._context, self._spec = context, spec
        self.host = str(context.getConf().get("spark.driver.host"))
        self._job = threading.Thread(target=lambda: None)

    def start(self, address: Address, report: ReportHandler) -> None:
        self._job = threading.Thread(target=self._run, args=(address, report), daemon=True)
        self._job.start()

    def _run(self, address: Address, report: ReportHandler) -> None:
        task = partial(send, self._spec.model_dump_json(), address.host, address.port, address.secret)
        # No barrier stage: the crew waits for all of its members anyway, and Spark for a quarter of a minute between
        # two looks whether there is room for one.
        stage = self._context.parallelize(range(self._spec.processes), self._spec.processes)
        try:
            stage.mapPartitionsWithIndex(task).collect()
        except Exception as error:
            # Of a member that has connected the crew knows already, and of one that never could, only by this.
            report(WorkerReport(0, {"event": "failed", "message": " ".join(str(error).split())[:500]}))

    def end(self) -> None:
        """The tasks end with their connections."""

    def join(self) -> None:
        """Wait for the end of the job, which the end of the crew has ended."""
        self._job.join(END_S)


def main(arguments: Sequence[str]) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--errors", type=Path, required=True)
    options, rest = own.parse_known_args(arguments)
    # spark-submit puts both streams of its program on its standard output, where only events may stand.
    with options.errors.open("ab") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
    spark = SparkSession.builder.getOrCreate()
    EventOutput(sys.stdout).event("application", app_id=spark.sparkContext.applicationId)
    hired: list[Executors] = []

    def hire(spec: GeneratorSpec) -> Workers:
        hired.append(Executors(spark.sparkContext, spec))
        return hired[-1]

    # spark-submit's JVM is what the attempt knows and ends; this program ends with it.
    status = generate([*rest, "--parent", str(os.getppid())], hire)
    for one in hired:
        one.join()
    spark.stop()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
