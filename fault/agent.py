"""What acts on another host in this project's name: the local injector, asked over standard input, one JSON line each.

It came over the connection (`fault.shipping`), listens nowhere, and is gone with the connection; who continues a paused
victim stays. A request is {"n", "do", ...}; the answer is {"n", "value"}, or {"n", "error": {"kind", ...}}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, BinaryIO

from fault import host_acts, recording
from fault.busy import BUSY_NS, read_local
from fault.errors import (
    ActRefused,
    FaultError,
    IdentityMismatch,
    KernelLacks,
    NobodyStandsBy,
    SignalRefused,
    VictimRefused,
)
from fault.identity import ROLES, ProcessIdentity, Tokens
from fault.local import LocalInjector
from fault.victims import own_line

# How long the use of CPU time is looked at: the ticks at which it is counted are up to 10 ms apart.
BUSY_LOOK_S = 0.02
# Errors that whoever asked can tell apart, by name.
KINDS = (IdentityMismatch, VictimRefused, SignalRefused, NobodyStandsBy, KernelLacks, ActRefused)


class Agent:
    """Answers one request at a time."""

    def __init__(self, injector: LocalInjector | None = None) -> None:
        self._injector = injector or LocalInjector()
        self._can: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "hello": lambda asked: {"pid": os.getpid(), "python": list(sys.version_info[:3]), "user": os.getuid()},
            "clock": lambda asked: time.time_ns(),
            "find": self._find,
            "busy": self._busy,
            "probe": lambda asked: str(self._injector.probe(victim_of(asked["victim"]))),
            "arm": lambda asked: self._injector.arm(_not_own(victim_of(asked["victim"]))),
            "signal": self._signal,
            "stand_by": lambda asked: self._injector.stand_by(victim_of(asked["victim"]), float(asked["seconds"])),
            "stand_down": lambda asked: self._injector.stand_down(victim_of(asked["victim"])),
            "host_act": lambda asked: host_acts.answer(
                asked["act"], str(asked["kind"]), str(asked["name"]), asked["asked"], float(asked["seconds"])
            ),
            "record": lambda asked: recording.begin(
                asked["rules"],
                asked["heirs"],
                float(asked["again_s"]),
                float(asked["longest_s"]),
                asked.get("waiting", ()),
            ),
            "record_end": lambda asked: recording.end(asked["folder"]),
            "record_part": lambda asked: recording.part(asked["folder"], int(asked["offset"]), int(asked["size"])),
            "record_drop": lambda asked: recording.drop(asked["folder"]),
        }

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request; an error is one, too."""
        try:
            return {"n": asked["n"], "value": self._can[asked["do"]](asked)}
        except Exception as error:
            return {"n": asked.get("n"), "error": _told(error)}

    def _find(self, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        tokens = Tokens(asked["run"], asked["services"])
        return [form_of(one) for one in self._injector.find(asked["victim"], tokens)]

    def _signal(self, asked: Mapping[str, Any]) -> str:
        return str(self._injector.signal(_not_own(victim_of(asked["victim"])), int(asked["signum"])))

    def _busy(self, asked: Mapping[str, Any]) -> list[int]:
        """The places in the list of those that work."""
        candidates = [victim_of(one) for one in asked["candidates"]]
        before = read_local(candidates)
        time.sleep(BUSY_LOOK_S)
        after = read_local(candidates)
        return [
            place
            for place, one in enumerate(candidates)
            if one in before and one in after and after[one].run_ns - before[one].run_ns >= BUSY_NS
        ]


def form_of(victim: ProcessIdentity) -> dict[str, Any]:
    """A victim as it goes over the connection; each host calls its own processes local."""
    return {**victim.as_json(), "host": "", "token": victim.token, "mains": list(victim.role.mains)}


def victim_of(form: Mapping[str, Any], host: str = "") -> ProcessIdentity:
    """The victim that a form tells of, as one of `host`. Raises VictimRefused."""
    role = replace(ROLES[form["role"]], mains=tuple(form["mains"]))
    return ProcessIdentity(
        int(form["pid"]),
        float(form["create_time"]),
        role,
        str(form["token"]),
        tuple(form["command"]),
        start_ticks=form["start_ticks"],
        host=host,
        node=form["node"],
    )


def _not_own(victim: ProcessIdentity) -> ProcessIdentity:
    """The guard over there cannot know the pids of this host. Raises IdentityMismatch."""
    if victim.pid in own_line():
        raise IdentityMismatch(victim.pid, "pid", "it is the agent that was to signal it, or an ancestor of it")
    return victim


def _told(error: Exception) -> dict[str, Any]:
    kind = next((one.__name__ for one in KINDS if isinstance(error, one)), type(error).__name__)
    more = {"pid": error.pid, "part": error.part, "detail": error.detail} if isinstance(error, IdentityMismatch) else {}
    return {"kind": kind, "said": str(error) if isinstance(error, FaultError) else f"{kind}: {error}", **more}


def serve(asks: BinaryIO, answers: BinaryIO) -> None:
    """Answers until nobody asks any more."""
    agent = Agent()
    for line in iter(asks.readline, b""):
        if not line.endswith(b"\n"):
            break  # cut off on its way: it was not all said
        answers.write(json.dumps(agent.answer(json.loads(line))).encode() + b"\n")
        answers.flush()
