"""User program: any spark-submit application that reads one topic and writes another.

It needs no Faultline code. Its arguments pass topics, broker and checkpoint through placeholders in braces; its
environment has the same names in capitals after `FAULTLINE_`.
"""

from __future__ import annotations

import shlex
import string
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import Field

from faultline.experiment.attempt import Attempt
from faultline.experiment.common_parameters import Common
from faultline.experiment.job_file import HEADER, NOTHING, JobFile, files_of, read_job
from faultline.experiment.prerequisites import Application
from faultline.experiment.workloads.protocol import Parameters, Workload
from faultline.experiment.workloads.user_query import JARS, METHODS, jar_files, jars_of, join_files, require_files
from faultline.system.errors import ConfigError
from faultline.system.text import suggest

# Names of the placeholders.
PASSED_VALUES = ("bootstrap", "input", "output", "checkpoint", "interval_ms", "partitions")
PREFIX = "FAULTLINE_"
PYTHON, JAR = ".py", ".jar"


class ProgramParameters(Parameters):
    """Program for spark-submit, and the reference of its audit."""

    application: str | None = Field(None, description="User program: a Python file or a jar for spark-submit.")
    main_class: str | None = Field(None, description="Main class of the jar, if its manifest names none.")
    application_arguments: str | None = Field(
        None,
        description="Program arguments. Placeholders: {bootstrap}, {input}, {output}, {checkpoint}, {interval_ms}, "
        "{partitions}.",
    )
    jars: str | None = Field(None, description=JARS)
    reference: str | None = Field(
        None, description="Job file whose `query` computes the expected output from the whole input in one batch."
    )
    pass_header: bool = Field(
        False, description="Send a header `faultline` with each record; outputs that copy it are matched exactly."
    )


class UserProgram(Workload[ProgramParameters]):
    """Run a user program through spark-submit; commits are read from its checkpoint."""

    name = "program"
    order = 61
    section = "Your own program"
    parameters = ProgramParameters
    capabilities = frozenset({"skewed", "stateful", "data"})
    warms_itself = True
    of_the_user = True
    own_client = True
    built_in_paths = MappingProxyType({"application": "", "reference": ""})

    def check(self, own: ProgramParameters, common: Common) -> None:
        if not own.application:
            raise ValueError("application: missing; expected a Python file or a jar")
        jars = (("jars", str(jar)) for jar in self.jars(own))
        for key, path in (("application", own.application), ("reference", own.reference), *jars):
            if path and not path.startswith("/"):
                raise ValueError(f"{key}: got {path!r}; expected an absolute path")
        if Path(own.application or "").suffix not in (PYTHON, JAR):
            raise ValueError(f"application: got {own.application}; expected a Python file or a jar")
        if common.commit_mode not in ("aligned", "aligned-changelog"):
            raise ValueError(
                f"commit_mode: got {common.commit_mode}; expected aligned or aligned-changelog for a user program; "
                "fix: change it, or use a job with workload query"
            )
        _check_arguments(own.application_arguments or "")

    def check_here(self, own: ProgramParameters, common: Common) -> None:
        require_files("application", own.application or "")
        jar = Path(own.application or "").suffix == JAR
        if jar and not own.main_class and not _names_a_class(own.application or ""):
            raise ConfigError(
                f"main_class: missing; expected a class, since {own.application} has no Main-Class in its manifest"
            )
        self.files(own)

    def files(self, own: ProgramParameters) -> Mapping[str, Path]:
        application = Path(own.application or "")
        reference, found = reference_of(own), {application.name: application}
        if application.suffix == PYTHON:
            try:
                found = files_of(application)
            except ValueError as error:
                raise ConfigError(str(error).replace("job:", "application:", 1)) from None
        return join_files("application", found, jar_files(self.jars(own)), reference.files if reference else {})

    def jars(self, own: ProgramParameters) -> tuple[Path, ...]:
        return jars_of(own.jars)

    def has_python_workers(self, own: ProgramParameters) -> bool:
        return Path(own.application or "").suffix == PYTHON

    def source(self, own: ProgramParameters, common: Common, repetition: int) -> dict[str, Any]:
        return {**super().source(own, common, repetition), "numbered": own.pass_header}

    def topics(self, own: ProgramParameters, common: Common) -> dict[str, int]:
        return {}

    def tuples(self, own: ProgramParameters) -> dict[str, Any]:
        reference = reference_of(own)
        return {
            "tuples": "query",
            "job": reference.path.name if reference else None,
            "arguments": reference.given(None) if reference else {},
            "reflects": _reflects(own, reference),
            "output_mode": reference.output_mode if reference else "update",
            "event_time": reference.event_time if reference else None,
            "sink": False,
            **(reference.statements(None) if reference else {}),
        }

    def latency_method_of(self, own: ProgramParameters) -> str:
        return METHODS[_reflects(own, reference_of(own))]

    def application(
        self, attempt: Attempt, own: ProgramParameters, common: Common, passed: Mapping[str, Any]
    ) -> Application:
        values = {
            "bootstrap": passed["bootstrap"],
            "input": passed["input_topic"],
            "output": passed["output_topic"],
            "checkpoint": passed["checkpoint"],
            "interval_ms": str(round(common.checkpoint_interval_s * 1000)),
            "partitions": str(common.partitions),
        }
        return Application(
            path=attempt.job / Path(own.application or "").name,
            main_class=own.main_class,
            arguments=tuple(one.format_map(values) for one in shlex.split(own.application_arguments or "")),
            environment={f"{PREFIX}{name.upper()}": value for name, value in values.items()},
        )

    def title(self, config: Mapping[str, Any]) -> str | None:
        name = Path(str(config.get("application") or "program")).stem
        return f"{name}, interval {config.get('checkpoint_interval_s', '?')} s"


def reference_of(own: ProgramParameters) -> JobFile | None:
    """Return the reference of the audit, or None if there is none. Raises ConfigError for an invalid job file."""
    if not own.reference:
        return None
    try:
        return read_job(own.reference)
    except ValueError as error:
        raise ConfigError(str(error).replace("job:", "reference:", 1)) from None


def _reflects(own: ProgramParameters, reference: JobFile | None) -> str:
    if own.pass_header:
        return HEADER
    return reference.reflects if reference else NOTHING


def _names_a_class(jar: str) -> bool:
    try:
        with zipfile.ZipFile(jar) as content:
            return b"Main-Class:" in content.read("META-INF/MANIFEST.MF")
    except KeyError:
        return False
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"application: got {jar}, an invalid jar ({error}); fix: rebuild it") from None


def _check_arguments(text: str) -> None:
    try:
        parts = shlex.split(text)
        names = [name for part in parts for _, name, _, _ in string.Formatter().parse(part) if name is not None]
    except ValueError as error:
        raise ValueError(
            f"application_arguments: got invalid text ({error}); fix: close quotes, and write {{{{ for a brace"
        ) from None
    for name in names:
        if name not in PASSED_VALUES:
            raise ValueError(f"application_arguments: unknown placeholder {{{name}}}{suggest(name, PASSED_VALUES)}")


WORKLOADS = (UserProgram(),)
