"""The task `search`: the highest input rate that the matrix's first configuration sustains, found by bisection."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param, TriggerRule, get_current_context, task

from faultline.experiment.cell import EXPERIMENT
from faultline.orchestration.run_experiment import POLL_S
from faultline.system.errors import ConfigError
from faultline.system.settings import load_settings

if TYPE_CHECKING:
    from faultline.experiment.config import Configuration
    from faultline.records.record import Record


def search_params() -> dict[str, Param]:
    """The form's part: whether to search, and between which rates."""
    return {
        "search": Param(
            False, type="boolean", title="search", section="Search",
            description="Afterwards, look for the highest sustained rate of the first configuration by bisection.",
        ),
        "search_low": Param(
            100.0, type="number", exclusiveMinimum=0, title="search_low", section="Search",
            description="A rate that should hold, in Kafka records per second.",
        ),
        "search_high": Param(
            50_000.0, type="number", exclusiveMinimum=0, maximum=500_000, title="search_high", section="Search",
            description="A rate that should not hold.",
        ),
    }  # fmt: skip


@task(trigger_rule=TriggerRule.ALL_DONE, retries=2, retry_delay=timedelta(seconds=10))
def search(planned: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Measures one rate after another, each as a run of `experiment`; a retry begins with the records that exist."""
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

    from faultline.comparison.capacity import highest_sustained, search_capacity
    from faultline.experiment.cell import sweep_id_of
    from faultline.experiment.matrices import MATRICES
    from faultline.lifecycle.environment import installed_build

    context = get_current_context()
    spec, given = MATRICES[context["dag"].dag_id], context["params"]
    if not given["search"] or planned is None:
        raise AirflowSkipException("not asked for" if planned is not None else "the form was refused")
    params = spec.resolve(given)
    try:
        config = spec.matrix(params).configurations()[0]
    except ConfigError as error:
        raise AirflowFailException(str(error)) from None
    build = params["build"] or installed_build(load_settings(), configurations=[config])
    series = params["series"] or build
    labels = {"series": series, "build": build, "matrix": spec.name, "parent_run_id": context["run_id"]}
    labels |= {"sweep_id": sweep_id_of(context["run_id"])}
    try:
        found, records = search_capacity(
            config,
            partial(highest_sustained, low=params["search_low"], high=params["search_high"]),
            lambda there: _known(there, series),
            lambda there: _measure(there, labels),
        )
    except ConfigError as error:
        raise AirflowFailException(str(error)) from None
    for rate, held in found.tried:
        print(f"{rate:g} records/s: {'sustained' if held else 'not sustained'} ({records[rate].attempt})")
    return {"sustained": found.sustained, "exceeded": found.exceeded, "tried": [list(one) for one in found.tried]}


def _known(config: Configuration, series: str) -> Record | None:
    """The newest record of this configuration in the series."""
    from faultline.experiment.cell import Cell
    from faultline.records.store import Store

    return Store(load_settings().results).newest(Cell(config.config_id, 0, series))


def _measure(config: Configuration, labels: Mapping[str, str]) -> Record:
    """One run of `experiment`, waited for; an earlier try's, when that still runs.

    Raises InfrastructureError when it leaves no record.
    """
    from datetime import UTC, datetime

    from faultline.orchestration.airflow_api import FINISHED, AirflowApi
    from faultline.system.errors import InfrastructureError

    api = AirflowApi(load_settings())
    prefix = f"{labels['sweep_id']}__{config.config_id}-search-"
    before = _known(config, labels["series"])
    running = [run["dag_run_id"] for run in api.runs(EXPERIMENT, "queued", "running")]
    run_id = next((name for name in running if name.startswith(prefix)), None) or api.trigger(
        EXPERIMENT,
        {**config.model_dump(mode="json"), **labels, "repetition": 0},
        run_id=f"{prefix}{datetime.now(UTC):%H%M%S}",
    )
    while api.run_state(EXPERIMENT, run_id) not in FINISHED:
        time.sleep(POLL_S)
    record = _known(config, labels["series"])
    if record is None or (before is not None and record.attempt == before.attempt):
        raise InfrastructureError(f"{run_id}: ended without a record; see its first failed task")
    return record
