"""The command line. Results go to standard output, progress and messages to standard error.

Exit codes: 0 done, 1 the work ran and failed, 2 refused (bad input, missing requirement). Heavy
modules are imported in the commands, to keep `--help` fast.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from faultline.cli import build_command, external_command, job_command, nightly_command, service_command, target_command
from faultline.cli.compare_command import advise, compare
from faultline.cli.external_command import step
from faultline.cli.sweep_command import missing, sweep
from faultline.system.child_environment import set_private_umask, warn_root
from faultline.system.errors import ConfigError, FaultlineError
from faultline.system.former_names import adopt_renamed_variables, current_words
from faultline.system.text import progress

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Benchmark stream processing under faults, with Airflow, Kafka and Spark.",
)


def main() -> None:
    """Run the command line; print each expected failure as one line on standard error."""
    # An interrupted command stops what it started, such as a benchmark's own services.
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    set_private_umask()
    adopt_renamed_variables()
    try:
        raise SystemExit(app(current_words(sys.argv[1:]) or ["--help"], prog_name="./faultline", standalone_mode=False))
    except TyperException as error:
        # If a command group is called without a subcommand, the message is the help text.
        message, context = error.format_message(), getattr(error, "ctx", None)
        if context is None or message != context.get_help():
            _refuse(f"{message} See {getattr(context, 'command_path', './faultline')} --help", error.exit_code)
        print(message)
    except ConfigError as error:
        _refuse(error, 2)
    except FaultlineError as error:
        _refuse(error, 1)
    except Interrupted:
        _refuse("interrupted; services and Airflow runs continue; fix: `./faultline down` to stop them", 1)


class Interrupted(BaseException):
    """Raised on SIGTERM and SIGINT; Click would print its own text for a KeyboardInterrupt."""


def _interrupt(number: int, frame: object) -> None:
    raise Interrupted


@app.command()
def demo(
    rerun: Annotated[bool, typer.Option("--rerun", help="Re-run all experiments.")] = False,
    output: Annotated[Path | None, typer.Option(help="Path of the HTML report (default: in results/reports/).")] = None,
) -> None:
    """Compare two checkpoint intervals under executor kills. Word count runs through Airflow.

    Starts the services, reports each recovery, and ends with the sweep summary, a table, an HTML report and the
    address of the UI. A second call resumes. Exit code 0: all cells measured and judged; 1: a failure; 2: refused.
    """
    from faultline.cli.demo import run_demo

    raise typer.Exit(run_demo(progress, rerun=rerun, output=output))


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def test(context: typer.Context) -> None:
    """Run all tests, or the named layers. Layers: static, unit, contract, component, system.

    Other arguments go to pytest, such as `unit -k store` or a path; `--thorough` adds the long tests. Installs missing
    test packages first: Python packages, and Debian packages if permitted.
    """
    from tests.run import main as run_tests

    warn_root()
    raise typer.Exit(run_tests(context.args, progress))


@app.command()
def up(
    port: Annotated[
        list[str] | None, typer.Option(help="Port as NAME=NUMBER, such as airflow=18090. Repeatable.")
    ] = None,
    airflow: Annotated[bool, typer.Option(help="Start Airflow.")] = True,
    hosts: Annotated[
        int | None,
        typer.Option(
            help="Number of namespace hosts: one for the broker, the others for one Spark worker each; 0: none."
        ),
    ] = None,
    foreground: Annotated[
        bool,
        typer.Option("--foreground", help="With --no-airflow: stay in the foreground and stop the services on exit."),
    ] = False,
) -> None:
    """Start Kafka, Spark and Airflow on loopback. Wait until they are ready; running services are kept."""
    from faultline.cli.service_control import bring_up, close_orphans, parse_ports

    if foreground:
        from faultline.cli.external_command import run_in_foreground

        if airflow:
            raise ConfigError("--foreground: got Airflow too; expected --no-airflow")
        run_in_foreground(parse_ports(port or []), hosts)
    settings = bring_up(progress, airflow=airflow, ports=parse_ports(port or []), hosts=hosts)
    close_orphans(settings, progress)
    progress(f"Kafka {settings.endpoints.kafka}, Spark {settings.endpoints.engine_ui}")
    if airflow:
        from faultline.cli.sweep_runner import report_running_sweeps
        from faultline.installation.airflow import login_text

        progress(f"Airflow {settings.endpoints.airflow}, {login_text(settings, sys.stderr)}")
        report_running_sweeps(settings, progress)


@app.command()
def password() -> None:
    """Print the password of the Airflow user `admin`."""
    from faultline.installation.airflow import password as known
    from faultline.system.settings import load_settings

    print(known(load_settings()))


@app.command()
def down() -> None:
    """Stop all processes of this installation. Data, logs and results are kept. It also works after a crash."""
    from faultline.installation.supervision import down as stop
    from faultline.system.settings import load_settings

    ended = stop(load_settings(), progress)
    progress(f"services: stopped{f' ({len(ended)} leftover processes)' if ended else ''}")


@app.command(context_settings={"ignore_unknown_options": False})
def run(
    workload: Annotated[str, typer.Argument(help="Workload, such as word_count.")],
    parameters: Annotated[
        list[str] | None, typer.Argument(help="Parameters as KEY=VALUE; see docs/reference/parameters.md.")
    ] = None,
    keep_topics: Annotated[bool, typer.Option(help="Keep the Kafka topics.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole record as JSON.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the planned faults and their times; start nothing.")
    ] = False,
) -> None:
    """Run one experiment and print its figures. If stdout is not a terminal, print the record as JSON.

    Example: ./faultline run word_count state_mb=8 checkpoint_interval_s=2 fault=executor

    `run nexmark` without `query=`, or with `preset=` or `repetitions=`, runs the matrix `nexmark` and prints one line
    per query. A second call resumes.
    """
    from faultline.cli.run_command import page_url, planned_fault_lines, run_single
    from faultline.experiment.workloads.registry import workload_of
    from faultline.reports.terminal import print_table

    given = {one.partition("=")[0] for one in parameters or []}
    whole = workload_of({"workload": workload}).whole
    if whole is not None and (whole[1] not in given or given & {"preset", "repetitions"}):
        from faultline.cli.nexmark_sweep import main as run_nexmark
        from faultline.cli.nexmark_sweep import nexmark_dry_run

        if keep_topics:
            raise ConfigError("--keep-topics: expected one experiment, such as query=q5 without preset")
        if dry_run:
            print("\n".join(nexmark_dry_run(parameters or [])))
            return
        raise typer.Exit(run_nexmark(parameters or [], progress))
    if dry_run:
        print("\n".join(planned_fault_lines(workload, parameters or [])))
        return
    record = run_single(workload, parameters or [], progress, keep_topics=keep_topics)
    if as_json or not sys.stdout.isatty():
        print(json.dumps(record.as_dict(), indent=2))
    else:
        print_table([record])
    # The status comes last again, because the reasons may have scrolled out of view.
    why = f": {record.reasons[0]}" if record.reasons else ""
    progress(f"{record.status}{why}; details: ./faultline explain {record.attempt}")
    if page := page_url(record.attempt):
        progress(f"page: {page}")
    raise typer.Exit(0 if record.is_usable else 1)


@app.command()
def results(
    as_json: Annotated[bool, typer.Option("--json", help="Print an array of records as JSON.")] = False,
    matrix: Annotated[str | None, typer.Option(help="Only records of this matrix.")] = None,
    sweep: Annotated[list[str] | None, typer.Option(help="Only records of this sweep. Repeatable.")] = None,
    status: Annotated[
        str | None, typer.Option(help="Only records with this status: valid, unmet, invalid, failed or cancelled.")
    ] = None,
    saved: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", help="Read this bundle (.tar.xz) or JSON file (also .gz) instead of the store. Repeatable."
        ),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Write the records and their raw files to this bundle, such as x.tar.xz."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report to this file.")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write a Markdown page of one matrix, with plots and the claims of the papers.")
    ] = None,
) -> None:
    """List the stored records as a table or as JSON."""
    from faultline.cli.service_control import select_records
    from faultline.system.files import check_output_path

    for option, target in (("--bundle", bundle), ("--report", report), ("--page", page)):
        if target is not None:
            check_output_path(target, option)
    records, problems = select_records(matrix, sweep or (), status, saved or ())
    for problem in problems:
        progress(problem)
    if bundle:
        from faultline.cli.bundle_writer import bundle_records

        bundle_records(records, bundle, progress, saved=saved or ())
    if report:
        from faultline.reports.report import write_report
        from faultline.system.settings import load_settings

        progress(f"report: {write_report(records, load_settings().results, report, title='Faultline results')}")
    if page:
        from faultline.records.bundle import SUFFIX
        from faultline.reports.markdown.page import write_page

        write_page(records, page, matrix=matrix, bundles=[path for path in saved or () if path.name.endswith(SUFFIX)])
        progress(f"page: {page}")
    if as_json:
        print(json.dumps([record.as_dict() for record in records], indent=2))
        return
    from faultline.reports.terminal import print_table

    if not records:
        found = "no record matches; reused records belong to the sweep that measured them"
        progress(found if matrix or sweep or status or saved else "no records yet")
        return
    print_table(records)


for _group in (nightly_command, job_command, build_command, service_command, target_command, external_command):
    app.add_typer(_group.app)
app.add_typer(build_command.engines)
for command in (sweep, missing, compare, advise):
    app.command()(command)
app.command(hidden=True)(step)


@app.command()
def judge(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="Sweep, attempt id, or bundle.")],
    write: Annotated[bool, typer.Option("--write", help="Replace the stored records by the new ones.")] = False,
    within: Annotated[
        list[float] | None, typer.Option(help="Value of `recovered_within` to try, such as 0.5. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an array of attempts as JSON.")] = False,
) -> None:
    """Judge the raw files of a sweep again. Use the current definitions and compare the recoveries.

    Without --write, nothing is written. With it, each changed record is first moved to results/superseded/.
    """
    from faultline.cli.judge_command import judge_sweep

    outcome = judge_sweep(sweep, tuple(within or ()), write=write)
    if as_json:
        print(json.dumps(outcome.rows(), indent=2))
    else:
        outcome.print()


@app.command()
def publish(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Empty folder, or a site written by this command.")],
) -> None:
    """Write the results as a static site. It holds sweeps, nightly runs and experiments with their plots."""
    from faultline.cli.site_writer import publish as write_site
    from faultline.system.settings import load_settings

    write_site(load_settings(), folder, progress)


@app.command()
def export_topic(
    topic: Annotated[str, typer.Argument(help="Topic, such as orders.")],
    to: Annotated[Path, typer.Option(help="Output file, such as orders.parquet.")],
    bootstrap: Annotated[str | None, typer.Option(help="Broker as HOST:PORT (default: the embedded broker).")] = None,
) -> None:
    """Copy a topic to a file. Keep keys, headers and times; the parameter `data=FILE` replays them."""
    from faultline.cli.topic_export import export_topic as export
    from faultline.system.settings import load_settings

    export(bootstrap or load_settings().endpoints.kafka, topic, to, progress)


@app.command()
def explain(
    record: Annotated[str, typer.Argument(help="Record file, attempt id or a unique prefix of it, or `last`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Path of the HTML page (default: in results/reports/).")] = None,
) -> None:
    """Explain one experiment. Print events, times and evidence, and write a page with a plot."""
    from faultline.records.find import LAST, still_running
    from faultline.reports import terminal
    from faultline.system.settings import load_settings

    settings = load_settings()
    if record == LAST and (running := still_running(settings)):
        progress(running)
    if as_json:
        print(json.dumps(terminal.explain_json(record, settings, plot=plot), indent=2))
    else:
        print(terminal.explain(record, settings, plot=plot))


@app.command()
def bench(
    name: Annotated[
        str | None, typer.Argument(help="Benchmark name (default: all benchmarks of Faultline's own speed).")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the benchmark names.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Run fewer repetitions.")] = False,
) -> None:
    """Benchmark Faultline itself and print the figures.

    Without a name, runs the speed benchmarks and writes docs/results/performance.md.
    """
    from benchmarks.catalogue import BENCHMARKS, print_figures, run_benchmark

    if listed:
        print("\n".join(BENCHMARKS))
        return
    if name is None:
        _bench_all(as_json, quick)
        return
    outcome = run_benchmark(name, progress, quick=quick)
    if as_json:
        print(json.dumps(outcome, indent=2))
    else:
        print_figures(outcome)


def _bench_all(as_json: bool, quick: bool) -> None:
    from benchmarks.catalogue import print_figures, run_benchmark
    from benchmarks.speed.performance import page, run_all
    from faultline.lifecycle.environment import git_commit
    from faultline.system.settings import ROOT

    outcomes, failures = run_all(lambda name: run_benchmark(name, progress, quick=quick), progress)
    target = ROOT / "docs" / "results" / "performance.md"
    target.write_text(page(outcomes, failures, build=git_commit(ROOT) or "unknown", quick=quick), encoding="utf-8")
    if as_json:
        print(json.dumps(outcomes, indent=2))
    else:
        for outcome in outcomes:
            print_figures(outcome)
    progress(f"page: {target}")
    raise typer.Exit(1 if failures else 0)


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Check the installation. List installed, reachable and missing parts; exit code 1 if one is missing."""
    from faultline.installation.doctor import examine, print_findings

    findings = examine()
    if as_json:
        print(json.dumps(findings, indent=2))
    else:
        print_findings(findings)
    raise typer.Exit(0 if findings["ok"] else 1)


def _refuse(message: object, code: int) -> None:
    progress(message)
    raise SystemExit(code)
