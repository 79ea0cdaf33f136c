"""Registry of fault actions, discovered in the modules of `fault.actions`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType

from fault import actions
from fault.action import Action
from fault.errors import DeclarationError, PlanError
from fault.fault_spec import DURATION, RULES, require_choice
from fault.identity import VICTIMS


def discover(package: ModuleType) -> dict[str, Action]:
    """Return the actions of all modules of a package, in order. Raises DeclarationError, naming the file."""
    found: dict[str, tuple[Action, str]] = {}
    for item in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(item.name)
        file = str(module.__file__)
        declared = [one for one in vars(module).values() if isinstance(one, Action)]
        if not declared:
            raise DeclarationError(f"{file}: ACTION: missing; expected an Action in each module of {package.__name__}")
        for action in declared:
            try:
                check_action(action)
            except PlanError as error:
                raise DeclarationError(f"{file}: {error}") from None
            if action.name in found:
                taken = found[action.name][1]
                raise DeclarationError(f"{file}: name: got {action.name}; expected a name not used by {taken}")
            found[action.name] = action, file
    ordered = sorted((action for action, _ in found.values()), key=lambda one: (one.order, one.name))
    return {action.name: action for action in ordered}


def check_action(action: Action) -> None:
    """Raise PlanError, naming the field, for an invalid declaration."""
    if not action.name.isidentifier() or not action.name.islower():
        raise PlanError(f"name: got {action.name!r}; expected a lower-case identifier")
    for key, text in (("does", action.does), ("past", action.past), ("when", action.when)):
        if not text.strip():
            raise PlanError(f"{key}: empty; expected a phrase")
    _check_unique("targets", action.targets, VICTIMS)
    if not action.targets:
        raise PlanError("targets: empty; expected a victim")
    _check_unique("parameters", [one.name for one in action.parameters], RULES)
    for one in action.parameters:
        if one.required and one.default is None:
            raise PlanError(f"parameters: {one.name}: missing default; expected one for a required parameter")
        if one.default is not None:
            RULES[one.name].check(f"parameters: {one.name}", one.default)
        if one.name == DURATION and not one.required:
            raise PlanError(f"parameters: {DURATION}: got required=False; expected a required duration")
    _check_phrases(action)


def _check_phrases(action: Action) -> None:
    try:
        for victim in action.targets:
            action.describe(victim, dict.fromkeys((one.name for one in action.parameters), 1.0))
    except (KeyError, ValueError, IndexError) as error:
        raise PlanError(f"when: got {error}; expected placeholders for victim and parameters") from None


def _check_unique(key: str, names: Sequence[str], known: Iterable[str]) -> None:
    for name in names:
        require_choice(key, name, known)
        if list(names).count(name) > 1:
            raise PlanError(f"{key}: got {name} twice; expected it once")


# Unsupported actions, with the reason.
REFUSED: Mapping[str, str] = {
    "clock": "a host's wall clock belongs to its machine, and all processes there use it, also those outside the "
    "run; a namespace has no clock of its own"
}
ACTIONS: Mapping[str, Action] = discover(actions)
# Names of the allowed actions by victim.
ALLOWED: Mapping[str, tuple[str, ...]] = {
    victim: tuple(name for name, action in ACTIONS.items() if victim in action.targets) for victim in VICTIMS
}


def describe_actions() -> str:
    """Return a text with all actions and the defaults of the short form of a fault."""
    parts = []
    for name, action in ACTIONS.items():
        only = "" if action.targets == VICTIMS else f" ({', '.join(f'`{one}`' for one in action.targets)} only)"
        parts.append(f"`{name}` {action.does}{only}")
    return f"Fault action: {'; '.join(parts)}. Defaults of the short form: {', '.join(_short_forms())}."


def _short_forms() -> list[str]:
    """Return texts such as `duration_s is 10 (pause, delay, cut)` for each default."""
    takers: dict[tuple[str, float], list[str]] = {}
    for key in RULES:
        for name, action in ACTIONS.items():
            if key in action.defaults:
                takers.setdefault((key, action.defaults[key]), []).append(name)
    return [f"`{key}` is {value:g} ({', '.join(names)})" for (key, value), names in takers.items()]
