"""SIGTERM: the victim is asked to end."""

from __future__ import annotations

import signal

from fault.action import Action
from fault.identity import VICTIMS
from fault.signals import Signals

# A JVM that is told to end runs its shutdown hooks first.
WITHIN_S = 15.0

ACTION = Action(
    name="term",
    order=20,
    targets=VICTIMS,
    does="sends SIGTERM",
    past="terminated",
    when="after {victim} was terminated",
    ends=True,
    hands=Signals(signal.SIGTERM, within_s=WITHIN_S),
)
