"""Registry of engines: each sub-package of `faultline.engines` with a module `engine` offers one, as `ENGINE`.

Import fails, naming the files, if two engines share a name or workload, or if an engine declares an undefined
capability.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from faultline import engines
from faultline.engines.protocol import Engine
from faultline.experiment.attempt_plan import AttemptPlan
from faultline.experiment.commit_modes import DEFAULT_ENGINE
from faultline.system.errors import InfrastructureError
from faultline.system.text import suggest


class Configured(Protocol):
    """Configuration, as far as it selects the engine."""

    @property
    def workload(self) -> str: ...

    @property
    def engine(self) -> str: ...


class Registry:
    """Engines by name and by workload.

    `found`: engines by the file that offers each. Raises ValueError if two engines share a name or claim one workload,
    or if an engine declares an undefined capability.
    """

    def __init__(self, found: Mapping[str, Engine]) -> None:
        self.by_name: dict[str, Engine] = {}
        self._by_workload: dict[str, Engine] = {}
        files: dict[str, str] = {}
        for file, engine in found.items():
            if unknown := engine.capabilities.unknown_values():
                raise ValueError(f"{file}: unknown capability {', '.join(unknown)}")
            claims = [f"workload {name}" for name in sorted(engine.exclusive_workloads)]
            for claim in (f"name {engine.name}", *claims):
                if claim in files:
                    raise ValueError(f"{file}: duplicate {claim}, already claimed by {files[claim]}")
                files[claim] = file
            self.by_name[engine.name] = engine
            self._by_workload |= dict.fromkeys(engine.exclusive_workloads, engine)
        self.parameters = frozenset().union(*(engine.parameters for engine in found.values()))

    def of(self, config: Configured) -> Engine:
        """Return the engine of a configuration: the one that claims its workload, else the one that it names."""
        return self._select(config.workload, config.engine)

    def of_values(self, values: Mapping[str, Any]) -> Engine:
        """Return the engine of a record's configuration, which may lack a part or be of another version."""
        name = str(values.get("engine", DEFAULT_ENGINE))
        return self._select(str(values.get("workload")), name if name in self.by_name else DEFAULT_ENGINE)

    @property
    def default(self) -> Engine:
        """Engine of a configuration that names none."""
        return self.by_name[DEFAULT_ENGINE]

    def _select(self, workload: str, engine: str) -> Engine:
        return self._by_workload.get(workload) or self.by_name[engine]

    def at(self, plan: AttemptPlan) -> Engine:
        """Return the engine that a plan names, else that of its configuration.

        Raises InfrastructureError if the engine does not exist.
        """
        name = plan.engine.name or self.of_values(plan.order.config).name
        if name not in self.by_name:
            raise InfrastructureError(f"plan.json: unknown engine {name}{suggest(name, self.by_name)}")
        return self.by_name[name]


def _discover_engines() -> Iterator[tuple[str, Engine]]:
    """Yield (file, engine) of each sub-package that offers one."""
    for package in pkgutil.iter_modules(engines.__path__, f"{engines.__name__}."):
        if package.ispkg and find_spec(f"{package.name}.engine") is not None:
            module = import_module(f"{package.name}.engine")
            yield str(module.__file__), module.ENGINE


ENGINES = Registry(dict(_discover_engines()))
engine_of, engine_of_plan = ENGINES.of, ENGINES.at
