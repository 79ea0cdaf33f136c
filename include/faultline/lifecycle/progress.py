"""What a running experiment is doing, read from the journals of its conductor, generator and recorder."""

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
# Its parts after the window, of that budget.
DRAIN_S, HARVEST_S, JUDGE_S = 4.0, 13.0, 3.0
# A recorder that has been silent for so long is worth a word.
SILENCE_S = 5.0


def budget_s(config: Configuration) -> float:
    """Seconds that an experiment takes, about, one after another on two idle cores."""
    filling = config.kind.filling(config.own, config)
    filled_s = 0.0 if filling is None else filling.typical_s
    return filled_s + config.warmup_s + expected_duration_s(config) + FIXED_BUDGET_S


@dataclass(frozen=True)
class Phase:
    """Where an experiment stands. `left_s` is None when its end cannot be foretold."""

    name: str
    detail: str
    left_s: float | None


def current_attempt(settings: Settings, sweep_id: str) -> Attempt | None:
    """The attempt of a sweep that is in work, or its newest; None before its first.

    Of two in work it is the one whose turn it is: the next one is made ready beside it.
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
    """One experiment in a few words."""
    return title_of(config.model_dump(mode="json"))


def phase_of(
    attempt: Attempt, now_ns: int | None = None, read: Callable[[Path], Sequence[Line]] = read_journal
) -> Phase:
    """The phase that an attempt is in, by its files. `read`: reads a journal, such as that of a `JournalCache`."""
    now = time.time_ns() if now_ns is None else now_ns
    config = read_plan(attempt).configuration()
    window_s = config.warmup_s + config.duration_s
    if attempt.over:
        return Phase("done", "", 0.0)
    if (attempt.harvest / "counts.parquet").exists():
        return Phase("judging", "", JUDGE_S)
    if (attempt.folder / "batches.json").exists() or (attempt.folder / "end.json").exists():
        return Phase("harvesting", "reads both topics" if config.paced else "reads the batches", HARVEST_S + JUDGE_S)
    conductor = read(attempt.conductor_journal)
    gate = find_last(conductor, event="gate")
    if gate is None and is_waiting(attempt):
        return Phase("waiting", "until this machine is free", window_s + FIXED_BUDGET_S)
    if gate is None:
        filling = config.kind.filling(config.own, config)
        filling_s = 0.0 if filling is None else filling.typical_s
        return Phase("starting", _startup_detail(attempt, config), filling_s + window_s + FIXED_BUDGET_S)
    began = int(gate["t0_wall_ns"])
    elapsed = (now - began) / 1e9
    # Without these lines the window is as long as the configuration says.
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
    if elapsed > window_s or find_last(conductor, event="measured_until"):
        return Phase("draining", seen, DRAIN_S + HARVEST_S + JUDGE_S)
    name = "measuring" if measured or elapsed >= config.warmup_s else "warm-up"
    if delivered := find_last(conductor, event="delivered"):
        ago = (now - int(delivered["wall_ns"])) / 1e9
        name, seen = "measuring", f"{injection_text(conductor, int(delivered.get('fault', 0)))} {ago:.0f} s ago; {seen}"
    return Phase(name, f"T0 + {max(0.0, elapsed):.0f} s; {seen}", left)


def is_waiting(attempt: Attempt) -> bool:
    """Whether an attempt that is prepared waits for the one before it."""
    roles = {line["role"] for line in read_journal(attempt.ledger)}
    return "recorder" in roles and not (attempt.recorder_journal.exists() or attempt.over)


def holder_text(settings: Settings) -> str | None:
    """The experiment that has the machine, in words, with its sweep; None when it is free.

    Of another installation it says whose it is, and where.
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
    """Seconds that an ended attempt spent in each part; parts it never reached are left out.

    start: its turn to gate · warmup, measured: as the conductor says · drain: end of the window to drained ·
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
    """What was done to which victims, by the conductor's lines: `killed executor 1`, `cut the connections to Kafka`."""
    delivered = [line for line in events(conductor, "delivered") if line.get("fault", 0) == fault]
    if not delivered:
        return ""
    action = ACTIONS.get(str(delivered[-1].get("action")))
    past = action.past if action else "hit"  # of an attempt whose action is there no more
    victims = {line.get("victim"): str(line.get("role") or "") for line in delivered}
    if None in victims:
        return past
    named = {
        victim.get("pid"): victim_name({**victim, "role": victims[victim.get("pid")] or victim.get("role")})
        for line in events(conductor, "victims")
        for victim in line["victims"]
        if victim.get("pid") in victims
    }
    those = [named.get(pid, f"{role} pid {pid}".strip().replace("_", " ")) for pid, role in victims.items()]
    return f"{(action and action.past_on_host) or past} {' and '.join(those)}"


def victim_name(victim: Line) -> str:
    """A victim as people know it: `executor 0`, `python worker`."""
    number = option_of(victim.get("command") or (), "--executor-id") or ""
    return f"{victim.get('role', 'process')} {number}".strip().replace("_", " ")


def _startup_detail(attempt: Attempt, config: Configuration) -> str:
    """What an attempt that has not begun to measure waits for."""
    roles = {line["role"] for line in read_journal(attempt.ledger)}
    if "conductor" in roles:
        return "the conductor opens the gate, once the machine is quiet"
    filling = config.kind.filling(config.own, config)
    if "supervisor" in roles and filling is not None and filling.events:
        return f"fills its state, {_committed_text(attempt, 0)} of {filling.events:,}"
    if "supervisor" in roles:
        return "waits until the engine has committed its first batches"
    if "generator" in roles:
        return "waits until the generator has sent its primer"
    return "starts its processes" if roles else "makes its topics"


def _committed_text(attempt: Attempt, began: int, read: Callable[[Path], Sequence[Line]] = read_journal) -> str:
    """Events that the engine has made and committed since the gate, by the batches that it told of."""
    lines = events(read(attempt.listener_journal), "progress")
    # By their numbers: a query that reads a stream twice is told twice as many rows.
    ends = [(int(line["wall_ns"]), sum(line["end_offsets"].values())) for line in lines if line["end_offsets"]]
    before = max((end for instant, end in ends if instant < began), default=0)
    return f"{max((end for _, end in ends), default=before) - before:,} events done"


def _recorded_text(lines: Sequence[Line], now: int, t0: int) -> str:
    """Records that the recorder has seen come into the input topic since `t0`; or that it is silent."""
    if not lines:
        return "recorder not started"
    age = (now - int(lines[-1]["wall_ns"])) / 1e9
    if age > SILENCE_S:
        return f"recorder silent for {f'{age:.0f} s' if age < 600 else f'{age / 60:,.0f} min'}"
    seen = [line for line in lines if line.get("kind") == "offsets" and line.get("topic") == "input"]
    if not seen:
        return "no offsets yet"
    # What stood there before is the primer, and what fills the state.
    before = next((line for line in reversed(seen) if int(line["wall_ns"]) <= t0), None)
    count = sum(seen[-1]["end"].values()) - (sum(before["end"].values()) if before else 0)
    return f"{count:,} records in"
