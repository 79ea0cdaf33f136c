"""Submission of an attempt's job to Flink: configuration, script, and the processes to start."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from faultline.engines.flink import sql
from faultline.engines.flink.cluster import (
    FINAL_STATUSES,
    LOGGING_FILE,
    JvmCommands,
    JvmOptions,
    Memory,
    Ports,
    attempt_settings,
    experiment_settings,
    job_id,
    write_configuration,
)
from faultline.engines.flink.distribution import FlinkDistribution
from faultline.engines.flink.tls import make_stores
from faultline.engines.flink.traces import DRIVER
from faultline.engines.runtime import Program, Runtime, Submission, SupervisedProgram
from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.common_parameters import EXACTLY_ONCE, MAX_RESTARTS
from faultline.experiment.run import Run
from faultline.system.kafka import kafka_options
from faultline.system.process_tags import RUN_MARK, run_option, run_token
from faultline.system.secrets import WORKLOAD, jaas_file

LAUNCHER = "faultline.engines.flink.launch"
# Prefix of the options of Spark's Kafka source.
_KAFKA = "kafka."


def folder_of(attempt: Attempt) -> Path:
    """Return the folder of the cluster's configuration and certificates."""
    return attempt.folder / "flink"


def checkpoints_of(attempt: Attempt) -> Path:
    """Return the folder of the job's checkpoints."""
    return attempt.checkpoint / job_id(attempt.id)


def submit(run: Run, runtime: Runtime) -> Submission:
    """Write the cluster's files and return the submission; see `faultline.engines.protocol.Engine`."""
    attempt, config, folder = run.attempt, run.config, folder_of(run.attempt)
    folder.mkdir(mode=0o700)
    attempt.checkpoint.mkdir(exist_ok=True)
    flink = FlinkDistribution(run.settings.home, run.settings.root)
    settings = {
        **experiment_settings(config),
        **run.plan.engine.settings,
        **attempt_settings(attempt.checkpoint, attempt.scratch, Ports(**run.plan.engine.addresses)),
        **make_stores(folder),
    }
    write_configuration(folder, settings)
    script = folder / "job.sql"
    script.write_text(script_of(run))
    commands = JvmCommands(
        java=runtime.java_home / "bin" / "java",
        flink=flink,
        folder=folder,
        options=JvmOptions(
            mark=run_option(attempt.id),
            logging=(folder / LOGGING_FILE).as_uri(),
            login=str(jaas_file(run.there.logins, WORKLOAD)),
            scratch=str(attempt.scratch),
        ),
    )
    restarts = max(MAX_RESTARTS, len(run.plan.faults))
    job_manager = {
        "command": commands.job_manager(job_id(attempt.id), script),
        "checkpoints": str(checkpoints_of(attempt)),
    }
    task_manager = commands.task_manager(Memory(config.executor_memory_mb))
    names = [f"taskmanager-{number}" for number in range(config.executors + config.spares)]
    launches: dict[str, Mapping[str, Any]] = {DRIVER: job_manager}
    launches |= {name: {"command": task_manager, "name": name} for name in names}
    environment = {**flink.environment(), "FLINK_CONF_DIR": str(folder), RUN_MARK: attempt.id}
    processes = []
    for role, specification in launches.items():
        file = folder / f"{role}.json"
        write_json(file, specification)
        command = (sys.executable, "-P", "-m", LAUNCHER, str(file), run_token(attempt.id))
        delay_s, final = run.plan.restart_delay_s, FINAL_STATUSES if role == DRIVER else {}
        processes.append(SupervisedProgram(Program(role, command, environment), restarts, delay_s, final))
    return Submission(tuple(processes), stops_on_request=False)


def script_of(run: Run) -> str:
    """Return the SQL script of the workload."""
    plan = run.plan
    options = {name.removeprefix(_KAFKA): value for name, value in kafka_options(run.there).items()}
    tables = sql.KafkaTables(
        bootstrap=plan.workload_bootstrap,
        input_topic=plan.topics["input"].name,
        output_topic=plan.topics["output"].name,
        group=f"faultline-{run.attempt.id}",
        properties=options,
        transactional=run.config.delivery_guarantee == EXACTLY_ONCE,
    )
    name = f"{plan.workload} {run.attempt.id}"
    if statements := plan.program.get("sql"):
        return sql.user_query(tables, name, statements, plan.program["output_mode"])
    return sql.word_count(tables, name)
