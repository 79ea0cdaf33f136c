"""SIGKILL: the victim is gone at once."""

from __future__ import annotations

import signal

from fault.action import Action
from fault.identity import VICTIMS
from fault.signals import Signals

ACTION = Action(
    name="kill",
    order=10,
    targets=VICTIMS,
    does="sends SIGKILL",
    past="killed",
    when="after {victim} was killed",
    ends=True,
    hands=Signals(signal.SIGKILL),
)
