"""A 20-second trial run of a user job, and which figures it can measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from faultline.experiment.job_file import COUNT, HEADER, ID, NEWEST, QUERY, JobFile, is_job, is_sql, read_job
from faultline.experiment.workloads.user_program import ProgramParameters
from faultline.records.format import milliseconds
from faultline.records.record import Record
from faultline.reports.views.faults import missing_figures
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT
from faultline.system.text import Progress, pluralize

# Parameters of a trial run.
SHORT = {"fault": "none", "warmup_s": "5", "duration_s": "20", "series": "job-check"}
TEMPLATE, SQL_TEMPLATE = ROOT / "examples" / "word_count.py", ROOT / "examples" / "orders.sql"
_BY = {
    COUNT: "each input at the first output of its key that counts it",
    ID: "each input at the first output with its id",
    NEWEST: "each result since its newest input",
    HEADER: "each input at the first output with its header",
}


@dataclass(frozen=True)
class JobCheckResult:
    """Lines to print, and whether the record is usable."""

    lines: list[str]
    is_usable: bool


def check_job(file: str, given: Sequence[str], progress: Progress) -> JobCheckResult:
    """Run the job for a short time and describe the result. Raises ConfigError before the start if it cannot run."""
    from faultline.cli.run_command import parse_order, run_order

    workload, words = short_run(file, given)
    order = parse_order(workload, words)
    for line in describe_job(file) if workload == QUERY else []:
        progress(line)
    record = run_order(order, progress)
    return JobCheckResult(describe_result(record), record.is_usable)


def short_run(file: str, given: Sequence[str]) -> tuple[str, list[str]]:
    """Return workload and parameters of the trial run; `given` overrides SHORT.

    If a parameter applies only to programs, the file is run as a program, even if it defines `query`.
    """
    path = Path(file)
    if not path.is_file():
        raise ConfigError(
            f"{file}: not a file; expected a Python file with a function `query`, a SQL file, or a program"
        )
    names = {one.partition("=")[0] for one in given}
    try:
        python = path.suffix == ".py" and not names & ProgramParameters.model_fields.keys()
        query = is_sql(file) or (python and is_job(path))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    own = f"job={file}" if query else f"application={file}"
    short = [f"{name}={value}" for name, value in SHORT.items() if name not in names]
    return ("query" if query else "program"), [own, *given, *short]


def describe_job(file: str) -> list[str]:
    """Describe the declarations of a job file, one line each."""
    try:
        job = read_job(file)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    lines = [f"{job.path.name}: writes in {job.output_mode} mode, {_target(job)}"]
    if job.event_time:
        lines.append(f"event time: {job.event_time}")
    if job.arguments:
        lines.append("arguments: " + ", ".join(f"{name}={value}" for name, value in job.arguments.items()))
    further = [name for name in job.files if name != job.path.name]
    if further:
        lines.append(f"further files: {', '.join(further)}")
    return lines


def _target(job: JobFile) -> str:
    if job.has_sink:
        return "to its own sink"
    return f"latency of {_BY[job.reflects]}" if job.reflects in _BY else "outputs do not identify their inputs"


def describe_result(record: Record) -> list[str]:
    """Describe which figures were measured and which were not, one line each."""
    metrics, lacking = record.metrics, dict(missing_figures(record))
    if not record.is_usable:
        return [f"{record.status}: {'; '.join(record.reasons)}"]
    why = f" ({'; '.join(record.reasons)})" if record.reasons else ""
    lines = [f"Status: {record.status}{why}."]
    measured = ["throughput", "lag", "CPU", "state"]
    if "latency" not in lacking:
        latency = metrics.latency_ms
        lines.append(
            f"Latency: p50 {milliseconds(latency.p50)} ms, p99 {milliseconds(latency.p99)} ms of "
            f"{pluralize(latency.count or 0, 'tuple')}; a recovery ends when lag and latency are back to normal."
        )
    if audit := _audit(record):
        lines.append(audit)
    lines.append(f"Measured as for every workload: {', '.join(measured)}, faults and recoveries.")
    for what, reason in lacking.items():
        lines.append(f"Not measured: {what}: {reason}.")
    if "latency" in lacking:
        lines.append("A recovery ends when lag is back to normal.")
    return lines


def _audit(record: Record) -> str | None:
    audit = record.metrics.audit
    if audit.expected is None:
        return None
    wrong = {"lost": audit.lost, "overcounted": audit.overcounted, "unexpected": audit.unexpected}
    bad = [f"{value:,} {name}" for name, value in wrong.items() if value]
    undrained = f", {audit.undrained:,} offsets not processed" if audit.undrained else ""
    text = f"Audit against the same query in one batch: {audit.expected:,} expected{undrained}"
    if bad:
        return f"{text}; without a fault {', '.join(bad)}; see ./faultline explain {record.attempt}."
    return f"{text}, none lost, overcounted or unexpected."
