"""Progress of a running experiment, read from the journals of fault scheduler, generator and recorder."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fault.registry import ACTIONS
from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import read_plan
from faultline.experiment.config import Configuration
from faultline.experiment.injections import expected_duration_s
from faultline.lifecycle.window.schedule_check import ScheduleCheck
from faultline.records.format import title_of
from faultline.system.errors import FaultlineError
from faultline.system.journal import Line, events, find_last, read_journal
from faultline.system.locks import MachineLock
from faultline.system.measured_window import Window
from faultline.system.process_ledger import option_of
from faultline.system.settings import Settings
from faultline.system.text import pluralize

# Budget of one experiment without its warm-up and measured window, on two idle cores.
FIXED_BUDGET_S = 40.0
# Parts of that budget after the window.
DRAIN_S, HARVEST_S, JUDGE_S = 4.0, 13.0, 3.0
# A recorder is reported as silent after this time.
SILENCE_S = 5.0


def budget_s(config: Configuration) -> float:
    """Return the approximate duration of an experiment, in s, on two idle cores."""
    filling = config.kind.filling(config.own, config)
    filled_s = 0.0 if filling is None else filling.typical_s
    return filled_s + config.warmup_s + expected_duration_s(config) + FIXED_BUDGET_S


@dataclass(frozen=True)
class Phase:
    """Phase of an experiment. `left_s`: remaining time in s; None if unknown."""

    name: str
    detail: str
    left_s: float | None


def current_attempt(settings: Settings, sweep_id: str) -> Attempt | None:
    """Return the running or newest attempt of a sweep; None before the first.

    If two are open, it is the one whose turn it is; the other one is still starting.
    """
    if not settings.attempts.is_dir():
        return None
    newest = None
    for folder in sorted(settings.attempts.iterdir(), reverse=True)[:20]:
        attempt = Attempt(folder)
        try:
            if read_plan(attempt).order.sweep_id != sweep_id:
                continue
        except FaultlineError:
            continue
        if attempt.recorder_journal.exists() and not attempt.over:
            return attempt
        newest = newest or attempt
    return newest


def experiment_title(config: Configuration) -> str:
    """Return one experiment in a few words."""
    return title_of(config.model_dump(mode="json"))


def phase_of(
    attempt: Attempt, now_ns: int | None = None, read: Callable[[Path], Sequence[Line]] = read_journal
) -> Phase:
    """Return the phase of an attempt, from its files.

    `read`: reads a journal, such as that of a `JournalCache`.
    """
    now = time.time_ns() if now_ns is None else now_ns
    config = read_plan(attempt).configuration()
    window_s = config.warmup_s + config.duration_s
    if attempt.over:
        return Phase("done", "", 0.0)
    if (attempt.harvest / "counts.parquet").exists():
        return Phase("judging", "", JUDGE_S)
    if (attempt.folder / "batches.json").exists() or (attempt.folder / "end.json").exists():
        return Phase("harvesting", "reading topics" if config.paced else "reading batches", HARVEST_S + JUDGE_S)
    conductor = read(attempt.conductor_journal)
    gate = find_last(conductor, event="gate")
    if gate is None and is_waiting(attempt):
        return Phase("waiting", "for the machine", window_s + FIXED_BUDGET_S)
    if gate is None:
        filling = config.kind.filling(config.own, config)
        filling_s = 0.0 if filling is None else filling.typical_s
        return Phase("starting", _startup_detail(attempt, config), filling_s + window_s + FIXED_BUDGET_S)
    began = int(gate["t0_wall_ns"])
    elapsed = (now - began) / 1e9
    # Without a `measured_from` line the window has its configured length.
    if measured := find_last(conductor, event="measured_from"):
        window_s = (int(measured["wall_ns"]) - began) / 1e9 + config.duration_s
    left = max(0.0, window_s - elapsed) + DRAIN_S + HARVEST_S + JUDGE_S
    seen = (
        _recorded_text(read(attempt.recorder_journal), now, began)
        if config.paced
        else _committed_text(attempt, began, read)
    )
    if config.paced and (late := ScheduleCheck(attempt).late_count()):
        seen = f"{seen}; {pluralize(late, 'record')} sent late"
    # The fault scheduler writes the end of the window in advance, after the last injection.
    until = find_last(conductor, event="measured_until")
    if elapsed > window_s or (until is not None and now >= int(until["wall_ns"])):
        return Phase("draining", seen, DRAIN_S + HARVEST_S + JUDGE_S)
    name = "measuring" if measured or elapsed >= config.warmup_s else "warm-up"
    if delivered := find_last(conductor, event="delivered"):
        ago = (now - int(delivered["wall_ns"])) / 1e9
        name, seen = "measuring", f"{injection_text(conductor, int(delivered.get('fault', 0)))} {ago:.0f} s ago; {seen}"
    return Phase(name, f"T0 + {max(0.0, elapsed):.0f} s; {seen}", left)


def is_waiting(attempt: Attempt) -> bool:
    """Return whether a prepared attempt waits for the previous one."""
    roles = {line["role"] for line in read_journal(attempt.ledger)}
    return "recorder" in roles and not (attempt.recorder_journal.exists() or attempt.over)


def holder_text(settings: Settings) -> str | None:
    """Return the experiment that holds the machine, with its sweep, in words; None if it is free.

    For another installation, the text names its user and folder.
    """
    holder = MachineLock(settings.machine).holder()
    if holder is None:
        return None
    if not holder.own or holder.folder.parent != settings.attempts:
        return f"{holder.text}, another installation"
    try:
        attempt = Attempt(holder.folder)
        plan = read_plan(attempt)
        sweep = plan.order.sweep_id
        text = f"{experiment_title(plan.configuration())}, {phase_of(attempt).name}"
    except FaultlineError:
        return holder.text
    return f"{holder.attempt} ({text}{f', of the sweep {sweep}' if sweep else ''})"


def phase_durations(attempt: Attempt) -> dict[str, float]:
    """Return the seconds that a closed attempt spent in each phase it reached.

    start: turn to start barrier · warmup, measured: by the fault scheduler · drain: end of the window to drained ·
    judged: drained to closed
    """
    if not (attempt.folder / "attempt.json").exists():
        return {}
    config = read_plan(attempt).configuration()
    conductor = read_journal(attempt.conductor_journal)
    gate = find_last(conductor, event="gate")
    if gate is None:
        return {}
    t0_ns = int(gate["t0_wall_ns"])
    window = Window.of(t0_ns, config.warmup_s, config.duration_s, config.checkpoint_interval_s, conductor)
    split = {"start": (t0_ns - attempt.begun_at_ns()) / 1e9, "warmup": window.t_s(window.start_ns)}
    split["measured"] = window.duration_s
    end, over = attempt.folder / "end.json", attempt.over
    if end.exists():
        drained = end.stat().st_mtime
        split["drain"] = drained - window.end_ns / 1e9
        if over:
            split["judged"] = over.stat().st_mtime - drained
    return split


def injection_text(conductor: Sequence[Line], fault: int) -> str:
    """Return the injected action and its victims: `killed executor 1`, `cut the connections to Kafka`."""
    delivered = [line for line in events(conductor, "delivered") if line.get("fault", 0) == fault]
    if not delivered:
        return ""
    action = ACTIONS.get(str(delivered[-1].get("action")))
    past = action.past if action else "hit"  # the action may have been removed since
    victims = {line.get("victim"): str(line.get("role") or "") for line in delivered}
    if None in victims:
        return past
    named = {
        victim.get("pid"): victim_name({**victim, "role": victims[victim.get("pid")] or victim.get("role")})
        for line in events(conductor, "victims")
        for victim in line["victims"]
        if victim.get("pid") in victims
    }
    names = [named.get(pid, f"{role} pid {pid}".strip().replace("_", " ")) for pid, role in victims.items()]
    return f"{(action and action.past_on_host) or past} {' and '.join(names)}"


def victim_name(victim: Line) -> str:
    """Return a readable victim name: `executor 0`, `python worker`."""
    number = option_of(victim.get("command") or (), "--executor-id") or ""
    return f"{victim.get('role', 'process')} {number}".strip().replace("_", " ")


def _startup_detail(attempt: Attempt, config: Configuration) -> str:
    """Return what an attempt waits for before its measurement."""
    roles = {line["role"] for line in read_journal(attempt.ledger)}
    if "conductor" in roles:
        return "waiting for the start barrier"
    filling = config.kind.filling(config.own, config)
    if "supervisor" in roles and filling is not None and filling.events:
        return f"preloading state, {_committed_text(attempt, 0)} of {filling.events:,}"
    if "supervisor" in roles:
        return "waiting for the engine's first commits"
    if "generator" in roles:
        return "waiting for the generator's primer"
    return "launching processes" if roles else "creating topics"


def _committed_text(attempt: Attempt, began: int, read: Callable[[Path], Sequence[Line]] = read_journal) -> str:
    """Return the events committed since T0, by the reported batches."""
    lines = events(read(attempt.listener_journal), "progress")
    # Count rows by offset: a query that reads a stream twice reports each row twice.
    ends = [(int(line["wall_ns"]), sum(line["end_offsets"].values())) for line in lines if line["end_offsets"]]
    before = max((end for instant, end in ends if instant < began), default=0)
    return f"{max((end for _, end in ends), default=before) - before:,} events done"


def _recorded_text(lines: Sequence[Line], now: int, t0: int) -> str:
    """Return the records that entered the input topic since `t0`, or the recorder's silence."""
    if not lines:
        return "recorder not started"
    age = (now - int(lines[-1]["wall_ns"])) / 1e9
    if age > SILENCE_S:
        return f"recorder silent for {f'{age:.0f} s' if age < 600 else f'{age / 60:,.0f} min'}"
    seen = [line for line in lines if line.get("kind") == "offsets" and line.get("topic") == "input"]
    if not seen:
        return "no offsets yet"
    # Earlier records are primer and preload.
    before = next((line for line in reversed(seen) if int(line["wall_ns"]) <= t0), None)
    count = sum(seen[-1]["end"].values()) - (sum(before["end"].values()) if before else 0)
    return f"{count:,} records in"
