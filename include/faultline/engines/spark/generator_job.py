"""The generator as a job on Spark's cluster: what is submitted, and how its executors are told from the workload's."""

from __future__ import annotations

import shutil
from pathlib import Path

import generators
from faultline.engines.running import Runtime
from faultline.engines.spark.settings import (
    driver_settings,
    logging_option,
    program,
    properties_file,
    spark_environment,
)
from faultline.engines.spark.standalone import GENERATOR_MEMORY_MB
from faultline.engines.spark.submission import SparkProgram
from faultline.experiment.attempt import Attempt
from faultline.experiment.run import Run
from faultline.system.marks import RUN_MARK, load_option
from faultline.system.secrets import HARNESS, login_file
from generators.login import LOGIN

# As `spark_jobs/generate.py` names it.
CODE = "faultline_code"


def generator_job(run: Run, runtime: Runtime, arguments: tuple[str, ...]) -> SparkProgram:
    """A job of an executor of one core for each process of the generator; packs the code that they run. `arguments`:
    the generator's."""
    attempt, settings = run.attempt, run.there
    return SparkProgram(
        role="generator",
        command=(str(program(settings, "generate")), "--errors", str(attempt.logs / "generator.err"), *arguments),
        environment={
            **spark_environment(settings, runtime.java_home),
            "PYTHONPATH": str(settings.root),
            LOGIN: str(login_file(settings.logins, HARNESS)),
        },
        name=f"generator {attempt.id}",
        master=settings.endpoints.engine if settings.endpoints.elsewhere else None,
        properties=properties_file(settings),
        settings={
            **driver_settings(settings.endpoints.here),
            "spark.archives": f"{_packed(attempt)}#{CODE}",
            "spark.cores.max": str(run.config.generator_processes),
            "spark.executor.cores": "1",
            "spark.executor.memory": f"{GENERATOR_MEMORY_MB}m",
            # A member that failed has sent records: another one that sent them again would be no help.
            "spark.task.maxFailures": "1",
            "spark.stage.maxConsecutiveAttempts": "1",
            f"spark.executorEnv.{LOGIN}": str(login_file(settings.logins, HARNESS)),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraJavaOptions": logging_option(settings),
            f"spark.executorEnv.{RUN_MARK}": attempt.id,
            "spark.executor.extraJavaOptions": f"{load_option(attempt.id)} {logging_option(settings)}",
        },
    )


def _packed(attempt: Attempt) -> Path:
    """The package `generators` with its data, as an archive in the attempt's scratch folder."""
    attempt.scratch.mkdir(exist_ok=True)
    package = Path(generators.__file__).parent
    return Path(shutil.make_archive(str(attempt.scratch / CODE), "zip", package.parent, package.name))
