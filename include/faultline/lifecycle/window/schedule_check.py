"""Check of the generator's schedule lag while it sends: a rate that cannot be reached fails early."""

from __future__ import annotations

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import AttemptPlan
from faultline.system.errors import InvalidMeasurement
from faultline.system.journal import JournalReader, Line, events, find_last
from faultline.system.measured_window import Window


class ScheduleCheck:
    """Schedule lag of an attempt's generator, from its journal lines per second; each call reads new ones."""

    def __init__(self, attempt: Attempt) -> None:
        self._generator = JournalReader(attempt.generator_journal)
        self._scheduler = JournalReader(attempt.conductor_journal)
        self._progress: list[Line] = []
        self._scheduled: list[Line] = []

    def late_count(self) -> int:
        """Return the number of records sent later than the schedule-lag limit."""
        self._progress += events(self._generator.poll(), "progress")
        return int(self._progress[-1].get("late", 0)) if self._progress else 0

    def require_on_time(self, plan: AttemptPlan) -> None:
        """Raise InvalidMeasurement as soon as the judge's verdict on the schedule lag is certain."""
        if plan.generator is None or not self.late_count():
            return
        start_ns = self._window_start_ns(plan)
        if start_ns is None:
            return
        from generators.schedule_lag import LATE_MS, LATE_SHARE
        from generators.send_progress import sent_between
        from generators.spec import GeneratorSpec

        spec, now_ns = GeneratorSpec.model_validate(plan.generator), int(self._progress[-1]["wall_ns"])
        before, _ = sent_between(self._progress, 0, start_ns)
        _, late = sent_between(self._progress, start_ns, now_ns)
        left = spec.total - before
        if late <= LATE_SHARE * left + 1:  # a percentile's rank is rounded
            return
        raise InvalidMeasurement(
            f"schedule-lag: {late:,} of {left:,} records were more than {LATE_MS:.0f} ms late, so p99 exceeds it; "
            f"fix: lower rate (now {spec.rate:,.0f} records/s), raise generator_processes, or free CPU on this machine"
        )

    def _window_start_ns(self, plan: AttemptPlan) -> int | None:
        """Return when the measured window started, or its latest possible start; None before T0."""
        self._scheduled += self._scheduler.poll()
        gate = find_last(self._scheduled, event="gate")
        if gate is None:
            return None
        warmup_s = plan.warmup_s if plan.warmup_max_s is None else plan.warmup_max_s
        return Window.of(int(gate["t0_wall_ns"]), warmup_s, 0.0, 0.0, self._scheduled).start_ns
