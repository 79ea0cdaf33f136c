"""Verdict of a nightly run, stored in `results/nights/` and read by its tasks, notes, alerts and pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from faultline.experiment.attempt import write_json
from faultline.experiment.cell import is_sweep_id
from faultline.records.renames import VERDICTS, renamed, renamed_figure

Lines = tuple[str, ...]
# Fields with rows of figures; later tasks do not need them.
ROWS = frozenset({"cells", "comparisons"})


class NightlyVerdict(BaseModel):
    """Verdict of one nightly run, compared with earlier runs or, in pairs, with a reference build.

    Attributes:
        date: Logical date (ISO 8601).
        baseline: Dates of the earlier runs, or build and specification of the reference build.
        red: Whether the regression gate fails; None without pairs.
        problem: Why no verdict, or not every verdict, was possible; None if there is no problem.
        power: Minimum detectable effects, without pairs.
        reasons: One line for each metric that became worse; `improvements`: for each that became better; `suspicions`:
            with pairs, for each that is worse in this run only.
        visible: Minimum detectable effect of each pair.
        cells, comparisons: Figures behind the verdict, with and without pairs.
        limits: SLOs by metric; `beyond`: one line for each violated SLO; `doubtful`: for each unknown or uncertain one.
    """

    model_config = ConfigDict(frozen=True)

    date: str = ""
    build: str | None = None
    baseline: Mapping[str, str | None] | Lines = ()
    red: bool | None = None
    summary: str = ""
    problem: str | None = None
    power: str | None = None
    reasons: Lines = ()
    suspicions: Lines = ()
    improvements: Lines = ()
    visible: Lines = ()
    cells: tuple[Mapping[str, Any], ...] = ()
    comparisons: tuple[Mapping[str, Any], ...] = ()
    limits: Mapping[str, float] = {}
    beyond: Lines = ()
    doubtful: Lines = ()

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: Any) -> Any:
        """Return a verdict of an earlier version under the current names of verdicts and figures."""
        if not isinstance(values, dict):
            return values
        rows = {name: tuple(map(_renamed_row, values[name])) for name in ROWS & values.keys()}
        limits = {renamed_figure(key): bound for key, bound in values.get("limits", {}).items()}
        return values | rows | ({"limits": limits} if limits else {})

    @property
    def is_paired(self) -> bool:
        """Whether the build was compared in pairs with a reference build."""
        return self.red is not None

    @property
    def figures(self) -> tuple[Mapping[str, Any], ...]:
        """Figures behind the verdict."""
        return self.cells or self.comparisons

    def without_figures(self) -> dict[str, Any]:
        """Return the verdict as JSON values, without rows, for the tasks that follow."""
        return self.model_dump(mode="json", exclude_unset=True, exclude=set(ROWS))

    def store(self, results: Path, sweep_id: str) -> None:
        """Write the verdict below `results`, with the keys that were set."""
        folder = results / "nights"
        folder.mkdir(parents=True, exist_ok=True)
        content = self.model_dump(mode="json", exclude_unset=True)
        write_json(folder / f"{sweep_id}.json", {"schema": 2 if self.is_paired else 1, **content})


def _renamed_row(row: Mapping[str, Any]) -> dict[str, Any]:
    made = {key: renamed(VERDICTS, value) for key, value in row.items()}
    return made | {"metric": renamed_figure(made["metric"])} if made.get("metric") else made


def stored_verdict(results: Path, sweep_id: str | None) -> NightlyVerdict | None:
    """Return the stored verdict of a nightly run; None if it is missing or unreadable."""
    if not is_sweep_id(sweep_id):
        return None
    try:
        return NightlyVerdict.model_validate_json((results / "nights" / f"{sweep_id}.json").read_bytes())
    except (OSError, ValidationError):
        return None
