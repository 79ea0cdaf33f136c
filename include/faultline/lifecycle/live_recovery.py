"""Recoveries of an attempt during its measurement: t2 (fault detected), t4 (state loaded) and t5 (caught up).

The judge's rules are applied to the engine's output so far, so the experiment record may differ. An instant that cannot
be observed online is None and is not shown.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from faultline.engines.protocol import Traces
from faultline.engines.registry import engine_of_plan
from faultline.experiment.run import Run
from faultline.lifecycle.progress import injection_text
from faultline.records.judge.journals import InjectedFault, read_scheduler_log
from faultline.records.judge.timeline import EvidenceEvent, FaultEvidence, read_timeline
from faultline.system.journal import JournalReader, Line, by_event, events
from faultline.system.measured_window import NS, Window

# Wait for earlier instants after the commit of t5: samples and logs arrive up to 1 s late.
GRACE_S = 3.0
# Events of the fault scheduler after which no recovery is observed.
FINAL_EVENTS = ("measured_until", "not_normal", "done")


@dataclass(frozen=True)
class LiveRecovery:
    """Recovery of one injection; instants in seconds after the signal, None if not observed (yet).

    `number` counts from 1; `injection` is its text. `has_loaded_state`: whether `ready_s` is the end of a state reload;
    otherwise `ready_s` is the first task after the loss. `caught_up_s`: first commit that covers the input at the
    fault; `emits_per_record`: outputs do not wait for it, so the record's t5 is earlier. `outcome`: why there is no
    recovery; empty if there is one. `is_over`: whether a later poll adds nothing.
    """

    number: int
    injection: str
    began_ns: int
    detected_s: float | None = None
    ready_s: float | None = None
    has_loaded_state: bool = False
    caught_up_s: float | None = None
    emits_per_record: bool = False
    outcome: str = ""
    is_over: bool = False

    @property
    def text(self) -> str:
        """Text such as `killed executor 1; detected after 0.3 s; state loaded after 5.2 s; caught up after 12.1 s`."""
        if self.outcome:
            return f"{self.injection}: {self.outcome}"
        seen = (
            ("detected", self.detected_s),
            ("state loaded" if self.has_loaded_state else "running again", self.ready_s),
            ("input committed" if self.emits_per_record else "caught up", self.caught_up_s),
        )
        parts = [f"{name} after {seconds:.1f} s" for name, seconds in seen if seconds is not None]
        if self.is_over and not parts:
            parts = ["no recovery instant observed online"]
        return "; ".join([self.injection, *parts])


class RecoveryWatch:
    """Incremental reader of one attempt's recoveries.

    Executor logs are opened after the first signal only.
    """

    def __init__(self, run: Run) -> None:
        self._plan = run.plan
        self._engine = engine_of_plan(run.plan)
        self._traces = self._engine.live_reader(run)
        self._conductor = JournalReader(run.attempt.conductor_journal)
        self._lines: list[Line] = []
        self._reported: set[int] = set()

    def poll(self, now_ns: int | None = None) -> list[LiveRecovery]:
        """Return the recoveries not yet reported as over, in order; at most the last one is not over.

        `now_ns`: wall clock, by default now. Raises InfrastructureError for a corrupt journal.
        """
        now = time.time_ns() if now_ns is None else now_ns
        self._lines += self._conductor.poll()
        faults = read_scheduler_log(by_event(self._lines), len(self._plan.faults)).injected
        unreported = [fault for fault in faults if fault.t0_ns is not None and fault.index not in self._reported]
        if not unreported:
            return []
        traces = self._traces()
        recoveries = [self._recovery(fault, faults, traces, now) for fault in unreported]
        self._reported |= {recovery.number - 1 for recovery in recoveries if recovery.is_over}
        return recoveries

    def _recovery(
        self, fault: InjectedFault, faults: Sequence[InjectedFault], traces: Traces, now_ns: int
    ) -> LiveRecovery:
        assert fault.t0_ns is not None
        number, injection = fault.index + 1, injection_text(self._lines, fault.index)
        if fault.settled.outcome not in (None, "effective"):
            why = ": ".join(part for part in (str(fault.settled.outcome), fault.settled.detail) if part)
            return LiveRecovery(number, injection, fault.t0_ns, outcome=why, is_over=True)
        until_ns = min((one.t0_ns for one in faults[number:] if one.t0_ns is not None), default=None)
        seen = read_timeline(self._evidence(fault, traces, until_ns))
        caught_up = seen.get("t5")
        # Before t5 another state load may follow.
        ready = seen.get("t4") if caught_up is not None else None
        is_complete = {"t2", "t4", "t5"} <= seen.keys()
        is_grace_over = caught_up is not None and now_ns - caught_up.wall_ns > GRACE_S * NS
        # The end of the window is written in advance.
        final = (line for name in FINAL_EVENTS for line in events(self._lines, name))
        is_ended = until_ns is not None or any(int(line["wall_ns"]) <= now_ns for line in final)
        return LiveRecovery(
            number,
            injection,
            fault.t0_ns,
            detected_s=_seconds_after(fault.t0_ns, seen.get("t2")),
            ready_s=_seconds_after(fault.t0_ns, ready),
            has_loaded_state=ready is not None and ("t3" not in seen or ready.wall_ns != seen["t3"].wall_ns),
            caught_up_s=_seconds_after(fault.t0_ns, caught_up),
            emits_per_record=traces.per_record,
            is_over=is_complete or is_grace_over or is_ended,
        )

    def _evidence(self, fault: InjectedFault, traces: Traces, until_ns: int | None) -> FaultEvidence:
        """Return the judge's evidence without what only the harvest knows: time bins, tuples and thresholds."""
        assert fault.t0_ns is not None
        return FaultEvidence(
            engine=self._engine,
            traces=traces,
            t0_ns=fault.t0_ns,
            victim=self._plan.faults[fault.index].fault.victim,
            victims=fault.victims,
            end_offsets=fault.end_offsets or {},
            bins=pd.DataFrame(),
            production=pd.DataFrame(),
            limits=None,
            emissions_ms=np.empty(0, dtype=np.int64),
            window=Window.of(fault.t0_ns, 0.0, self._plan.window_s, self._plan.checkpoint_interval_s),
            undo_lines=fault.undo_lines,
            until_ns=until_ns,
        )


def _seconds_after(t0_ns: int, event: EvidenceEvent | None) -> float | None:
    """Return seconds after the signal; differences below the clocks' resolution count as 0."""
    return None if event is None else max(0.0, (event.wall_ns - t0_ns) / NS)
