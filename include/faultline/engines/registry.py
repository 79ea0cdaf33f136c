"""The engines by name: each sub-package of `faultline.engines` with a module `engine` offers one, as `ENGINE`.

Importing this fails, naming the files, when two engines have a name or a workload in common, when one declares
something that nobody knows, and unless exactly one engine runs the workloads that no other claims.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

from faultline import engines
from faultline.engines.protocol import Engine
from faultline.experiment.attempt_plan import AttemptPlan
from faultline.system.errors import InfrastructureError
from faultline.system.text import suggest


class Configured(Protocol):
    """What an engine is chosen by."""

    @property
    def workload(self) -> str: ...


class Registry:
    """`found`: engines by the file that offers each. Raises ValueError when they do not go together.

    `usual`: the engine that runs the workloads which no other claims.
    """

    def __init__(self, found: Mapping[str, Engine]) -> None:
        self.by_name: dict[str, Engine] = {}
        self._by_workload: dict[str, Engine] = {}
        files: dict[str, str] = {}
        for file, engine in found.items():
            if unknown := engine.capabilities.unknown_values():
                raise ValueError(f"{file}: nobody knows the capability {', '.join(unknown)}")
            claims = [f"workload {name}" for name in sorted(engine.exclusive_workloads)] or ["rest of the workloads"]
            for claim in (f"name {engine.name}", *claims):
                if claim in files:
                    raise ValueError(f"{file}: the {claim} is taken by {files[claim]}")
                files[claim] = file
            self.by_name[engine.name] = engine
            self._by_workload |= dict.fromkeys(engine.exclusive_workloads, engine)
        others = [engine for engine in found.values() if not engine.exclusive_workloads]
        if not others:
            raise ValueError(f"{', '.join(found)}: no engine runs the workloads that none of them claims")
        self.default = others[0]
        # Parameters that not every engine reads.
        self.parameters = frozenset().union(*(engine.parameters for engine in found.values()))

    def of(self, config: Configured) -> Engine:
        """The engine that has a configuration's workload for itself, else the one that runs the rest."""
        return self.of_workload(config.workload)

    def of_workload(self, workload: str) -> Engine:
        """The engine that has a workload for itself, else the one that runs the rest."""
        return self._by_workload.get(workload, self.default)

    def at(self, plan: AttemptPlan) -> Engine:
        """The engine that a plan names, else its workload. Raises InfrastructureError when it is there no more."""
        name = plan.engine.name or self.of(plan).name
        if name not in self.by_name:
            raise InfrastructureError(f"plan.json: engine {name}{suggest(name, self.by_name)}")
        return self.by_name[name]


def _discover_engines() -> Iterator[tuple[str, Engine]]:
    """(file, engine) of each sub-package that offers one."""
    for package in pkgutil.iter_modules(engines.__path__, f"{engines.__name__}."):
        if package.ispkg and find_spec(f"{package.name}.engine") is not None:
            module = import_module(f"{package.name}.engine")
            yield str(module.__file__), module.ENGINE


ENGINES = Registry(dict(_discover_engines()))
engine_of, engine_of_plan = ENGINES.of, ENGINES.at
