"""An installation for benchmarks that break it: its own services, ports, database and results."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from faultline.base.settings import Settings, load_settings
from faultline.base.text import Say
from faultline.base.waiting import wait_until
from faultline.client.airflow_api import FINISHED, AirflowApi
from faultline.client.operations import bring_up
from faultline.client.sweeping import await_dags
from faultline.cluster.airflow_home import DATABASE
from faultline.cluster.supervision import down

# An axis of its own, so that a sweep has as many cells as are wanted.
MATRIX = "input_rate"
EXPERIMENT = "experiment"
_SWEEP_TIMEOUT_S = 8 * 3600.0


@contextlib.contextmanager
def own_services(name: str, say: Say) -> Iterator[Settings]:
    """Services of their own under `.faultline/bench/NAME`, which nobody else uses, ended on the way out.

    Their records stay there too, so that a benchmark which was interrupted goes on where it was.
    """
    main = load_settings()
    # Its database is its own, too, wherever the other installation keeps its one.
    os.environ.pop(DATABASE, None)
    home = main.home / "bench" / name
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "jars").is_symlink():
        (home / "jars").symlink_to(main.jars)
    settings = Settings(main.root, home, home / "results")
    try:
        settings = bring_up(say, settings=settings)
        await_dags(AirflowApi(settings), EXPERIMENT, MATRIX)
        yield settings
    finally:
        down(settings, say)


def form(series: str, rates: list[float], repetitions: int) -> dict[str, Any]:
    """A sweep of experiments with known truth that measure 5 s each, `repetitions` at each of the `rates`."""
    return {
        "workload": "known_truth",
        "truth": {},
        "fault": "none",
        "rate": rates,
        "checkpoint_interval_s": 0.5,
        "warmup_s": 5.0,
        "duration_s": 5.0,
        "state_mb": 0.0,
        "accept_overload": False,
        "repetitions": repetitions,
        # What was killed is measured again; how often is the benchmark's affair, not the form's.
        "max_measurements": 10,
        "series": series,
    }


def await_run(api: AirflowApi, run_id: str, dag_id: str = MATRIX, *, timeout_s: float = _SWEEP_TIMEOUT_S) -> str:
    """The state in which the run ends."""
    state = ""

    def ended() -> bool:
        nonlocal state
        state = api.run_state(dag_id, run_id)
        return state in FINISHED

    wait_until(ended, timeout_s=timeout_s, every_s=1.0, what=f"{dag_id}: the end of the run {run_id}")
    return state
