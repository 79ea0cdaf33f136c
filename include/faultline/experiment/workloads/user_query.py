"""User query: a Python file with `def query(records, config)` or a SQL file, measured like built-in workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import Field

from faultline.experiment.common_parameters import Common
from faultline.experiment.job_file import COUNT, HEADER, ID, NEWEST, NOTHING, JobFile, is_sql, read_job
from faultline.experiment.prerequisites import Prepared
from faultline.experiment.workloads.protocol import Parameters, Workload
from faultline.system.errors import ConfigError

# Latency method by the part of an output that identifies its input.
METHODS = {COUNT: "batch", ID: "id", NEWEST: "newest", HEADER: "id", NOTHING: "none"}

# Timestamp lead of the records that close windows; Kafka rejects leads of an hour.
CLOSING_AHEAD_S = 3300.0
JARS = "Jars that the job or program needs: absolute paths, separated by commas."


class QueryParameters(Parameters):
    """Job file and its arguments."""

    job: str | None = Field(
        None, description="User job: a Python file with `def query(records, config)`, or a SQL file."
    )
    arguments: dict[str, Any] | None = Field(
        None, description='Arguments that the job declares, by name, such as {"window_s": 10}.'
    )
    jars: str | None = Field(None, description=JARS)


class UserQuery(Workload[QueryParameters]):
    """Run a user query from a Python or SQL file (`job`) like a built-in workload."""

    name = "query"
    order = 60
    section = "Your own job"
    parameters = QueryParameters
    capabilities = frozenset({"skewed", "stateful", "real_time", "data"})
    program = "user_query"
    of_the_user = True
    built_in_paths = MappingProxyType({"job": ""})

    def check(self, own: QueryParameters, common: Common) -> None:
        if not own.job:
            raise ValueError(
                "job: missing; expected a Python or SQL file; fix: create one with `./faultline job new NAME`"
            )
        if not own.job.startswith("/"):
            raise ValueError(f"job: got {own.job!r}; expected an absolute path")
        for jar in self.jars(own):
            if not jar.is_absolute():
                raise ValueError(f"jars: got {str(jar)!r}; expected an absolute path")

    def check_here(self, own: QueryParameters, common: Common) -> None:
        job = job_of(own)
        if common.commit_mode == "none" and (job.reflects != COUNT or job.output_mode != "update"):
            raise ConfigError(
                f"commit_mode: got none for {own.job} ({job.reflects!r}, {job.output_mode!r}); expected aligned, or a "
                "job with running counts in update mode"
            )

    def files(self, own: QueryParameters) -> Mapping[str, Path]:
        return join_files("job", job_of(own).files, jar_files(self.jars(own)))

    def jars(self, own: QueryParameters) -> tuple[Path, ...]:
        return jars_of(own.jars)

    def source(self, own: QueryParameters, common: Common, repetition: int) -> dict[str, Any]:
        job, usual = job_of(own), super().source(own, common, repetition)
        if job.event_time == "timestamp" and job.output_mode == "append":
            return {**usual, "closing": True, "closing_ahead_s": CLOSING_AHEAD_S}
        return usual

    def has_python_workers(self, own: QueryParameters) -> bool:
        # Unknown for Python before the run; a fault that finds no worker reports it.
        return not is_sql(own.job or "")

    def primed_batches(self, own: QueryParameters) -> int:
        return 2 if job_of(own).event_time else 1

    def drained_batches(self, own: QueryParameters) -> int:
        """Return 2 with event time, since the batch after the closing one outputs a window; else 1."""
        return 2 if job_of(own).event_time else 1

    def tuples(self, own: QueryParameters) -> dict[str, Any]:
        job = job_of(own)
        return {
            "tuples": "query",
            "job": job.path.name,
            "arguments": job.given(own.arguments),
            "reflects": job.reflects,
            "output_mode": job.output_mode,
            "event_time": job.event_time,
            "sink": job.has_sink,
            **job.statements(own.arguments),
        }

    def latency_method_of(self, own: QueryParameters) -> str:
        return METHODS[job_of(own).reflects]

    def program_configuration(self, prepared: Prepared, own: QueryParameters, common: Common) -> dict[str, Any]:
        job = job_of(own)
        return {
            "job": str(prepared.attempt.job / job.path.name),
            "arguments": job.given(own.arguments),
            "output_mode": job.output_mode,
            "sink": job.has_sink,
            "attempt": prepared.attempt.id,
            "folder": str(prepared.attempt.sink),
            **job.statements(own.arguments),
        }

    def title(self, config: Mapping[str, Any]) -> str | None:
        return f"{Path(str(config.get('job') or 'query')).stem}, interval {config.get('checkpoint_interval_s', '?')} s"

    def details(self, config: Mapping[str, Any]) -> list[str]:
        return [f"{name}={value}" for name, value in (config.get("arguments") or {}).items()]


def job_of(own: QueryParameters) -> JobFile:
    """Return the declarations of the job file. Raises ConfigError for an invalid file or argument."""
    try:
        job = read_job(own.job or "")
        job.given(own.arguments)
        return job
    except ValueError as error:
        raise ConfigError(str(error)) from None


def jars_of(text: str | None) -> tuple[Path, ...]:
    """Return the paths of a parameter `jars`."""
    return tuple(Path(one.strip()) for one in (text or "").split(",") if one.strip())


def jar_files(jars: Sequence[Path]) -> dict[str, Path]:
    """Return the jars by file name. Raises ConfigError for a missing jar, and for equal names."""
    for jar in jars:
        require_files("jars", str(jar))
    return join_files("jars", *({jar.name: jar} for jar in jars))


def require_files(key: str, *paths: str) -> None:
    """Raise ConfigError for a path that is not a file."""
    for path in paths:
        if not Path(path).is_file():
            raise ConfigError(f"{key}: got {path}; expected an existing file")


def join_files(key: str, *files: Mapping[str, Path]) -> dict[str, Path]:
    """Return files by name. Raises ConfigError for different files with equal names."""
    found: dict[str, Path] = {}
    for name, path in (item for some in files for item in some.items()):
        if found.setdefault(name, path) != path:
            raise ConfigError(f"{key}: got {path} and {found[name]} with equal names; fix: rename one")
    return found


WORKLOADS = (UserQuery(),)
