"""A generator whose processes are tasks of Spark's executors, so that one schedule can be sent from several machines.

    spark-submit generate.py --config FILE --gate FILE --histogram FILE TOKEN

The same command line, events and files as `python -m generators`, which this is but for its members. The driver is the
lead; each task of one barrier stage sends a stripe, and talks with the lead over a connection of its own
(`generators.remote`), since Spark tells of a task only when it is done. The code comes along as the archive CODE; the
Python of the executors must have what the generators need.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from functools import partial

from pyspark import SparkContext
from pyspark.sql import SparkSession

from generators.__main__ import main
from generators.crew import Members
from generators.remote import Address, RemoteMembers
from generators.spec import GeneratorSpec

# The folder as which each executor finds the package `generators`.
CODE = "faultline_code"


def send(told: str, address: Address, member: int, _: Iterator[int]) -> Iterator[int]:
    """The task of an executor: sends the stripe `member` of the specification `told`."""
    from pyspark import SparkFiles

    sys.path.insert(0, SparkFiles.get(CODE))
    from generators.remote import serve

    serve(GeneratorSpec.model_validate_json(told), member, address)
    yield member


class Executors:
    """Starts the members, in a thread: the job lasts as long as they do."""

    def __init__(self, context: SparkContext, spec: GeneratorSpec) -> None:
        self._context, self._spec = context, spec

    def members(self) -> Members:
        """As many as the specification has processes."""
        host = str(self._context.getConf().get("spark.driver.host"))
        return RemoteMembers(self._spec.processes, host, self._launch)

    def _launch(self, address: Address) -> None:
        task = partial(send, self._spec.model_dump_json(), address)
        stage = self._context.parallelize(range(self._spec.processes), self._spec.processes).barrier()
        threading.Thread(target=stage.mapPartitionsWithIndex(task).collect, daemon=True).start()


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    # spark-submit's JVM is what the attempt knows and ends; this program ends with it.
    own = [*sys.argv[1:], "--parent", str(os.getppid())]
    status = main(own, lambda spec: Executors(spark.sparkContext, spec).members())
    spark.stop()
    sys.exit(status)
