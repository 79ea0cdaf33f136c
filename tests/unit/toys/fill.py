"""Toy fault action for the walk-through "add an action with one file": writes a file into the attempt's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault.action import Action, Context, DeliveryRecord, FaultDriver, Injection, UndoSpec
from fault.fault_spec import DURATION, Occurrence, Parameter
from fault.identity import Delivery
from fault.injector import FaultOutcome, Settlement

SIZE = 1000


@dataclass(frozen=True)
class Fill(FaultDriver):
    """Driver that writes a file of SIZE bytes."""

    def create_injection(self, planned: Occurrence, context: Context) -> Injection:
        return FillInjection(planned, context, context.folder / f"filler-{planned.index}")

    def is_active(self, undo: UndoSpec, context: Context) -> bool:
        return Path(undo.fields["path"]).exists()

    def undo(self, undo: UndoSpec, context: Context) -> None:
        Path(undo.fields["path"]).unlink(missing_ok=True)


@dataclass
class FillInjection(Injection):
    """Injection that writes one file."""

    planned: Occurrence
    context: Context
    path: Path

    def find_victims(self) -> bool:
        return False

    def describe(self) -> list[str]:
        return [f"would {self.planned.describe()}"]

    def victims(self) -> list[dict[str, Any]]:
        empty = dict.fromkeys(("pid", "create_time", "command", "node", "executors"))
        return [{"fault": self.planned.index, **empty, "role": "disk", "host": ""}]

    def plan_undo(self) -> list[UndoSpec]:
        return [UndoSpec(self.planned.fault.action, f"remove {self.path.name}", {"path": str(self.path)})]

    def perform(self) -> list[DeliveryRecord]:
        self.path.write_bytes(bytes(SIZE))
        return [DeliveryRecord(None, "disk", self.context.now(), Delivery.SENT)]

    def settle(self, deliveries: Sequence[DeliveryRecord]) -> Settlement:
        return Settlement(FaultOutcome.EFFECTIVE, f"{self.path.stat().st_size} bytes")


ACTION = Action(
    name="fill",
    order=999,
    targets=("executor",),
    does="fills the attempt's folder",
    past="filled the folder",
    when="with the folder filled for {duration_s:g} s",
    parameters=(Parameter(DURATION, default=3.0),),
    resource="the attempt's folder",
    driver=Fill(),
)
