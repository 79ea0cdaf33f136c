"""Preset `smoke` of every matrix, from the trigger through Airflow's API to the pages."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from benchmarks.figure import BenchmarkFigure, summarise
from faultline.cli.service_control import bring_up
from faultline.cli.sweep_runner import await_dags
from faultline.experiment.cell import EXPERIMENT, sweep_id_of
from faultline.experiment.matrices import MATRICES
from faultline.lifecycle.progress import current_attempt, phase_of
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.reports.pages import PREFIX
from faultline.system.errors import InfrastructureError
from faultline.system.settings import Settings
from faultline.system.text import Progress
from faultline.system.waiting import wait_until

PRESET = "smoke"
# One matrix with words and state, and one with event time and a capacity search.
QUICK = ("state_size_x_checkpoint_interval", "input_rate")
# A cell takes at most three measurements of two minutes on a slow machine.
TIMEOUT_S = 1800.0
POLL_S = 1.0
_PAGE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class MatrixOutcome:
    """Result of one matrix: sweep, state of its run, duration, and records."""

    matrix: str
    sweep_id: str
    state: str
    seconds: float
    records: tuple[Record, ...]

    @property
    def valid(self) -> int:
        return sum(record.status == "valid" for record in self.records)

    @property
    def reasons(self) -> list[str]:
        """Reasons of records that are not valid, one line each."""
        return [
            f"{one.attempt} {one.status}: {'; '.join(one.reasons)}" for one in self.records if one.status != "valid"
        ]


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run all matrices, or two if `quick`.

    Figures per matrix: MATRIX_s, MATRIX_experiments, MATRIX_valid; `pages`. Each call has its own series, so it
    measures again. Raises InfrastructureError after the last matrix if one has no usable record or a failed run, or if
    a page has a wrong status.
    """
    settings = bring_up(progress)
    api = AirflowApi(settings)
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    names = [name for name in MATRICES if not quick or name in QUICK]
    await_dags(api, EXPERIMENT, *names)
    outcomes = []
    for number, name in enumerate(names, start=1):
        progress(f"{number} of {len(names)}: {name}")
        outcomes.append(_run_matrix(api, settings, name, stamp, progress))
        _show(outcomes[-1], progress)
    answers = [answer for outcome in outcomes for answer in _pages(settings, outcome, api.token())]
    problems = [problem for outcome in outcomes for problem in problems_of(outcome)]
    problems += [problem for problem in answers if problem is not None]
    if problems:
        raise InfrastructureError("; ".join(problems))
    return figures(outcomes, len(answers))


def figures(outcomes: Sequence[MatrixOutcome], pages: int) -> dict[str, BenchmarkFigure]:
    """Return the figures; `pages`: number of checked responses of pages."""

    found = {}
    for outcome in outcomes:
        found[f"{outcome.matrix}_s"] = summarise([outcome.seconds], "s")
        found[f"{outcome.matrix}_experiments"] = summarise([len(outcome.records)], "1")
        found[f"{outcome.matrix}_valid"] = summarise([outcome.valid], "1")
    found["matrices_s"] = summarise([sum(outcome.seconds for outcome in outcomes)], "s")
    found["pages"] = summarise([pages], "1")
    return found


def problems_of(outcome: MatrixOutcome) -> list[str]:
    """Return a line per failure of a matrix that has ended; empty if nothing failed."""
    if not outcome.valid:
        why = f": {outcome.reasons[-1]}" if outcome.reasons else ", no record at all"
        return [f"{outcome.matrix}: no usable record{why}"]
    return [] if outcome.state == "success" else [f"{outcome.matrix}: its run ended in state {outcome.state}"]


def form(series: str) -> dict[str, Any]:
    """Return the form: the preset, and a new series."""
    return {"preset": PRESET, "series": series, "only_missing": False}


def _run_matrix(api: AirflowApi, settings: Settings, matrix: str, stamp: str, progress: Progress) -> MatrixOutcome:
    """Trigger one matrix and wait for its end."""
    began = time.monotonic()
    run_id = api.trigger(matrix, form(f"bench-{stamp}"), run_id=f"bench_{stamp}_{matrix}")
    sweep_id, shown = sweep_id_of(run_id), ""

    def ended() -> str | None:
        nonlocal shown
        state = api.run_state(matrix, run_id)
        if (text := _progress(settings, sweep_id)) != shown:
            shown = text
            progress(f"{matrix}: {text}, {time.monotonic() - began:.0f} s")
        return state if state in FINISHED else None

    state = wait_until(ended, timeout_s=TIMEOUT_S, every_s=POLL_S, what=f"{matrix}: the end of the run {run_id}")
    records = tuple(Store(settings.results).query(sweep=sweep_id))
    return MatrixOutcome(matrix, sweep_id, state, time.monotonic() - began, records)


def _progress(settings: Settings, sweep_id: str) -> str:
    attempt = current_attempt(settings, sweep_id)
    return "planning" if attempt is None else f"{attempt.id} {phase_of(attempt).name}"


def _show(outcome: MatrixOutcome, progress: Progress) -> None:
    head = f"{outcome.matrix}: {outcome.state} after {outcome.seconds:.0f} s"
    progress(f"{head}, {len(outcome.records)} experiments, {outcome.valid} valid")
    for reason in outcome.reasons:
        progress(f"   {reason}")


def _pages(settings: Settings, outcome: MatrixOutcome, token: str) -> list[str | None]:
    """Request the pages of matrix and sweep, with and without a login; return None per correct response, else a line.

    A matrix without records has no pages, which is not a problem.
    """
    if not outcome.records:
        return []
    answers: list[str | None] = []
    for address in (f"/matrices/{outcome.matrix}", f"/sweeps/{quote(outcome.sweep_id, safe='')}"):
        for who, given, wanted in (("with a login", token, 200), ("without a login", None, 401)):
            status = status_of(f"{settings.endpoints.airflow}{PREFIX}{address}", given)
            right = status == wanted
            answers.append(None if right else f"{PREFIX}{address} answered {status} {who}, not {wanted}")
    return answers


def status_of(url: str, token: str | None) -> int:
    """Return the HTTP status of a local page. Raises InfrastructureError without a response."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with opener.open(request, timeout=_PAGE_TIMEOUT_S) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError as error:
        raise InfrastructureError(f"airflow: no response at {url} ({error})") from None
