"""What the events of a timeline are called, wherever they are shown.

Events of the first fault have plain names, those of fault n end in `#n`, such as `t2#2`.
"""

from __future__ import annotations

# Events of the attempt, which belong to no fault.
EDGES = frozenset({"gate", "measured_from", "measured_until"})

# Short names, for legends, in the order in which events usually happen.
LABELS = {
    "t0": "t0 signal delivered",
    "t1": "t1 last output",
    "t2": "t2 loss detected",
    "t3": "t3 task launched",
    "t4": "t4 state loaded",
    "t5": "t5 caught up",
    "t6": "t6 lag normal",
    "t7": "t7 on time",
    "last_out": "last out of bound",
    "snapshot": "last snapshot",
    "undone": "fault undone",
    "driver_restarted": "driver restarted",
    "service_up": "service up again",
    "lineage": "new state lineage",
    "replacement_up": "replacement up",
}

# The same in plain words, for who does not know the letters.
WORDS = {
    "gate": "the gate opens: T0",
    "measured_from": "warm-up is over, measuring begins",
    "measured_until": "measuring ends",
    "t0": "the fault strikes",
    "t1": "last output before the longest silence",
    "t2": "the loss is detected",
    "t3": "the task that resumes is launched",
    "t4": "whatever state was lost is loaded",
    "t5": "all from before the fault is committed",
    "t6": "lag is within its bound again, and stays so",
    "t7": "tuples are on time again, and stay so",
    "last_out": "the last thing out of its bound before the end",
    "snapshot": "last state snapshot before the fault",
    "undone": "the fault is undone",
    "driver_restarted": "the supervisor has restarted the driver",
    "service_up": "the service is started again",
    "lineage": "a new state lineage begins, from nothing",
    "replacement_up": "a replacement executor registers",
}


def split_name(name: str) -> tuple[str, int]:
    """The plain name, and the number of the fault from 1; a name without a number belongs to the first."""
    plain, separator, number = name.rpartition("#")
    return (plain, int(number)) if separator and number.isascii() and number.isdigit() else (name, 1)
