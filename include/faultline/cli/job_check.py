"""A job tried for 20 seconds: what of it is measured and what is not, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from faultline.experiment.job_file import COUNT, HEADER, ID, NEWEST, QUERY, JobFile, is_job, read_job
from faultline.experiment.workloads.user_program import ProgramParameters
from faultline.records.format import milliseconds
from faultline.records.record import Record
from faultline.reports.views.faults import missing_figures
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT
from faultline.system.text import Progress, pluralize

# Of an experiment that is only to show that a job runs.
SHORT = {"fault": "none", "warmup_s": "5", "duration_s": "20", "series": "job-check"}
TEMPLATE = ROOT / "examples" / "word_count.py"
_BY = {
    COUNT: "each input by the first output of its key that counts it",
    ID: "each input by the first output with its id",
    NEWEST: "each result from its newest input on",
    HEADER: "each input by the first output that carries its header on",
}


@dataclass(frozen=True)
class JobCheckResult:
    """What is to be said, and whether the job ran soundly."""

    lines: list[str]
    sound: bool


def check_job(file: str, given: Sequence[str], say: Progress) -> JobCheckResult:
    """Runs the job and returns what came of it. Raises ConfigError, before anything is started, for what cannot run."""
    from faultline.cli.run_command import parse_order, run_order

    workload, words = asked(file, given)
    order = parse_order(workload, words)
    for line in declared(file) if workload == QUERY else []:
        say(line)
    record = run_order(order, say)
    return JobCheckResult(words_of(record), record.sound)


def asked(file: str, given: Sequence[str]) -> tuple[str, list[str]]:
    """The workload that runs the file, and the parameters of its short run; what is `given` comes before SHORT.

    Where something is given that only a program has, it is one, whatever it defines.
    """
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"{file}: is no file; name a Python file with a function `query`, or a program")
    names = {one.partition("=")[0] for one in given}
    try:
        query = path.suffix == ".py" and not names & ProgramParameters.model_fields.keys() and is_job(path)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    own = f"job={file}" if query else f"application={file}"
    short = [f"{name}={value}" for name, value in SHORT.items() if name not in names]
    return ("query" if query else "program"), [own, *given, *short]


def declared(file: str) -> list[str]:
    """What a job's file says, in words."""
    try:
        job = read_job(file)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    lines = [f"{job.path.name}: writes in {job.output_mode} mode, {_target(job)}"]
    if job.event_time:
        lines.append(f"event time: {job.event_time}")
    if job.arguments:
        lines.append("arguments: " + ", ".join(f"{name}={value}" for name, value in job.arguments.items()))
    beside = [name for name in job.files if name != job.path.name]
    if beside:
        lines.append(f"with {', '.join(beside)} beside it")
    return lines


def _target(job: JobFile) -> str:
    if job.has_sink:
        return "to a sink of its own"
    return f"latency of {_BY[job.reflects]}" if job.reflects in _BY else "no output tells of which input it is"


def words_of(record: Record) -> list[str]:
    """What was measured of a job and what was not, a line for each."""
    metrics, lacking = record.metrics, dict(missing_figures(record))
    if not record.sound:
        return [f"{record.status}: {'; '.join(record.reasons)}"]
    why = f" ({'; '.join(record.reasons)})" if record.reasons else ""
    lines = [f"It ran, and the measurement is sound: {record.status}{why}."]
    measured = ["throughput", "lag", "CPU", "state"]
    if "latency" not in lacking:
        latency = metrics.latency_ms
        lines.append(
            f"Latency: p50 {milliseconds(latency.p50)} ms, p99 {milliseconds(latency.p99)} ms of "
            f"{pluralize(latency.count or 0, 'tuple')}; a recovery is over when lag is back and tuples are on time."
        )
    if audit := _audit(record):
        lines.append(audit)
    lines.append(f"Measured as of every workload: {', '.join(measured)}, and faults with their recoveries.")
    for what, reason in lacking.items():
        lines.append(f"Not measured: {what}: {reason}.")
    if "latency" in lacking:
        lines.append("So a recovery is over when lag is back.")
    return lines


def _audit(record: Record) -> str | None:
    audit = record.metrics.audit
    if audit.expected is None:
        return None
    wrong = {"lost": audit.lost, "overcounted": audit.overcounted, "wrong": audit.wrong}
    bad = [f"{value:,} {name}" for name, value in wrong.items() if value]
    undrained = f", {audit.undrained:,} offsets not processed" if audit.undrained else ""
    held = f"Audit against the same query in one batch: {audit.expected:,} expected{undrained}"
    if bad:
        return f"{held}, and without any fault {', '.join(bad)}; see ./faultline explain {record.attempt}."
    return f"{held}, none lost, overcounted or wrong."
