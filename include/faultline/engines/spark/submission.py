"""Submission of an attempt's workload to Spark: program, its configuration and settings."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import generators
from faultline.engines.runtime import Program, Runtime, Submission, SupervisedProgram, write_program_configuration
from faultline.engines.spark.collect import APPLICATION, WARM_UP_CHECKPOINT
from faultline.engines.spark.conf_rules import reserved_settings
from faultline.engines.spark.distributions import distribution
from faultline.engines.spark.jit_priority import link_spark_archive
from faultline.engines.spark.settings import (
    driver_settings,
    logging_option,
    program,
    properties_file,
    spark_environment,
    workload_program,
    workload_settings,
)
from faultline.engines.spark.shared_storage import (
    CHECKPOINT,
    checkpoint_url,
    make_disk_checkpoint,
    make_ephemeral_checkpoint,
    make_shared,
)
from faultline.engines.spark.standalone import GENERATOR_MEMORY_MB
from faultline.engines.spark.state_epochs import control_files
from faultline.experiment.attempt import Attempt
from faultline.experiment.common_parameters import MAX_RESTARTS
from faultline.experiment.config import Configuration
from faultline.experiment.run import Run
from faultline.system.kafka import kafka_options
from faultline.system.process_tags import RUN_MARK, load_option, run_token
from faultline.system.secrets import HARNESS, login_file
from generators.kafka_credentials import CREDENTIALS_ENV


@dataclass(frozen=True)
class SparkProgram(Program):
    """Program for spark-submit, with its options; `command` is the program and its arguments."""

    name: str
    settings: Mapping[str, str]
    # Private file of further settings.
    properties: Path
    main_class: str | None = None
    # spark-submit of another Spark build. `master`: None for the embedded one.
    spark_submit: str | None = None
    master: str | None = None


def spark_submit_command(program: SparkProgram, master: str) -> list[str]:
    """Return the spark-submit command, as the Spark provider's hook builds it. `master`: the default."""
    conf = [part for key, value in program.settings.items() for part in ("--conf", f"{key}={value}")]
    main_class = [] if program.main_class is None else ["--class", program.main_class]
    return [
        *(program.spark_submit or "spark-submit", "--master", program.master or master, *conf),
        *("--properties-file", str(program.properties), "--name", program.name, *main_class),
        *("--deploy-mode", "client", *program.command),
    ]


def submit(run: Run, runtime: Runtime) -> Submission:
    """Write the program's configuration and return the submission; see `faultline.engines.protocol.Engine`."""
    attempt, plan, config, settings = run.attempt, run.plan, run.config, run.there
    shared = make_shared(attempt, plan.endpoints) if plan.endpoints.is_external else None
    by_spark = {**spark_entries(run), "kafka_options": kafka_options(settings)}
    config_file = write_program_configuration(run, by_spark)
    programs, ui_port = Path(plan.engine.programs), plan.engine.addresses["ui_port"]
    build = distribution(settings, config.spark_build)
    # The archive holds the installed Spark's classes and is local.
    archive = link_spark_archive(attempt, runtime) if build is None and shared is None else None
    conf = workload_settings(
        settings, attempt, config, ui_port, archive=archive, programs=programs, own=build, shared=shared
    )
    own = config.kind.application(attempt, config.own, config, {**by_spark, **plan.program})
    environment = spark_environment(settings, runtime.java_home, programs, build)
    driver = SparkProgram(
        role="driver",
        command=(),
        environment=environment,
        name=f"{plan.workload} {attempt.id}",
        properties=properties_file(settings),
        settings={
            **plan.engine.settings,
            **conf,
            # Teardown finds executors and their children by this variable; the driver inherits it.
            f"spark.executorEnv.{RUN_MARK}": attempt.id,
            **job_jars(attempt, config),
        },
        spark_submit=None if build is None else str(build.spark_submit),
        master=None if build is None and shared is None else plan.endpoints.engine,
    )
    if own is None:
        program = workload_program(programs, config)
        driver = replace(driver, command=(str(program), "--config", str(config_file), run_token(attempt.id)))
    else:
        driver = replace(
            driver,
            command=(str(own.path), *own.arguments),
            environment={**environment, **own.environment},
            main_class=own.main_class,
        )
    supervised = SupervisedProgram(driver, max(MAX_RESTARTS, len(plan.faults)), plan.restart_delay_s)
    return Submission((supervised,), stops_on_request=own is None)


def job_jars(attempt: Attempt, config: Configuration) -> dict[str, str]:
    """Return the setting for the copied jars of a user job or program."""
    jars = ",".join(str(attempt.job / jar.name) for jar in config.kind.jars(config.own))
    return {"spark.jars": jars} if jars else {}


def spark_entries(run: Run) -> dict[str, Any]:
    """Return Spark's entries of a program's configuration."""
    attempt, plan, is_user_job = run.attempt, run.plan, run.config.kind.of_the_user
    is_ephemeral, disk = plan.commit_mode == "none", plan.places.checkpoint_disk
    checkpoint = make_ephemeral_checkpoint(attempt) if is_ephemeral else attempt.checkpoint
    if disk and not is_ephemeral:
        checkpoint = make_disk_checkpoint(attempt, Path(disk))
    user_entries = {"own_settings": reserved_settings(), "application": str(attempt.folder / APPLICATION)}
    return {
        # A path that all hosts of a target reach.
        "checkpoint": checkpoint_url(attempt, CHECKPOINT) if plan.endpoints.is_external else str(checkpoint),
        "listener_log": str(attempt.listener_journal),
        **(user_entries if is_user_job else {}),
        **_generator_entries(run),
    }


def _generator_entries(run: Run) -> dict[str, Any]:
    """Return the entries for a program that reads generated records and warms up with the preload."""
    attempt, plan, config = run.attempt, run.plan, run.config
    if config.kind.warms_itself or not plan.paced:
        return {}
    lineages = {name: str(file) for name, file in control_files(attempt).items()}
    return {
        "real_time_s": plan.checkpoint_interval_s if config.commit_mode == "unaligned" else None,
        "executors": config.executors,
        "lineages": lineages if config.commit_mode == "none" else None,
        # Created by the first incarnation, so that a restarted driver does not warm up again.
        "first": str(attempt.folder / "warmed"),
        "warm_up": {
            "topic": plan.topics["warmup"].name,
            "checkpoint": checkpoint_url(attempt, WARM_UP_CHECKPOINT),
            "records_per_batch": -(-config.primer_records // config.kind.warm_up_batches),
        },
    }


# The generator as a Spark job, whose executors connect as the harness.


# Name that `spark_jobs/generate.py` expects.
CODE = "faultline_code"


def generator_job(run: Run, runtime: Runtime, arguments: tuple[str, ...]) -> SparkProgram:
    """Return the generator as a Spark job, with one one-core executor per process, and pack its code.

    `arguments`: arguments of the generator.
    """
    attempt, settings = run.attempt, run.there
    return SparkProgram(
        role="generator",
        command=(str(program(settings, "generate")), "--errors", str(attempt.logs / "generator.err"), *arguments),
        environment={
            **spark_environment(settings, runtime.java_home),
            "PYTHONPATH": str(settings.root),
            CREDENTIALS_ENV: str(login_file(settings.logins, HARNESS)),
        },
        name=f"generator {attempt.id}",
        master=settings.endpoints.engine if settings.endpoints.is_external else None,
        properties=properties_file(settings),
        settings={
            **driver_settings(settings.endpoints.here),
            "spark.archives": f"{_pack_generators(attempt)}#{CODE}",
            "spark.cores.max": str(run.config.generator_processes),
            "spark.executor.cores": "1",
            "spark.executor.memory": f"{GENERATOR_MEMORY_MB}m",
            # A failed worker has already sent records, so a retry would duplicate them.
            "spark.task.maxFailures": "1",
            "spark.stage.maxConsecutiveAttempts": "1",
            f"spark.executorEnv.{CREDENTIALS_ENV}": str(login_file(settings.logins, HARNESS)),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraJavaOptions": logging_option(settings),
            f"spark.executorEnv.{RUN_MARK}": attempt.id,
            "spark.executor.extraJavaOptions": f"{load_option(attempt.id)} {logging_option(settings)}",
        },
    )


def _pack_generators(attempt: Attempt) -> Path:
    """Return an archive of the package `generators` with its data, in the attempt's scratch folder."""
    attempt.scratch.mkdir(exist_ok=True)
    package = Path(generators.__file__).parent
    return Path(shutil.make_archive(str(attempt.scratch / CODE), "zip", package.parent, package.name))
