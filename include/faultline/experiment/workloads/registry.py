"""Registry of workloads by name, discovered in the modules of this package.

A module lists its workloads in `WORKLOADS`. Conflicts fail here at import, with the file named.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.fields import FieldInfo

import faultline.experiment.workloads as package
from faultline.experiment.common_parameters import Common
from faultline.experiment.workloads.protocol import CAPABILITIES, Parameters, Workload

FileWorkload = tuple[str, Workload[Any]]


def discover() -> list[FileWorkload]:
    """Return file and workload for every workload of the package."""
    names = [f"{package.__name__}.{one.name}" for one in pkgutil.iter_modules(package.__path__)]
    modules = [importlib.import_module(name) for name in names if name != __name__]
    return [(str(module.__file__), one) for module in modules for one in getattr(module, "WORKLOADS", ())]


def register_all(offered: Iterable[FileWorkload]) -> dict[str, Workload[Any]]:
    """Return workloads by name in display order. Raises ImportError naming the file of a conflict."""
    by_name: dict[str, tuple[str, Workload[Any]]] = {}
    fields: dict[str, tuple[str, FieldInfo]] = {}
    for file, one in offered:
        if one.name in by_name:
            raise ImportError(
                f"{file}: the workload {one.name} is defined in {by_name[one.name][0]} already; fix: rename one"
            )
        if unknown := sorted(one.capabilities - CAPABILITIES):
            raise ImportError(f"{file}: {one.name}: unknown capability {unknown[0]}; known: {sorted(CAPABILITIES)}")
        by_name[one.name] = file, one
        for key, field in one.parameters.model_fields.items():
            if key in Common.model_fields:
                raise ImportError(f"{file}: {one.name}: parameter {key} is a shared one; fix: rename it")
            where, other = fields.setdefault(key, (file, field))
            if repr(other) != repr(field):
                raise ImportError(f"{file}: {one.name}: parameter {key} differs from that in {where}; fix: rename it")
    ordered = sorted((one for _, one in by_name.values()), key=lambda one: (one.order, one.name))
    return {one.name: one for one in ordered}


WORKLOADS: Mapping[str, Workload[Any]] = register_all(discover())


class _Unknown(Workload[Parameters]):
    """Placeholder for a workload of another version, to show its records."""

    name = "unknown"
    parameters = Parameters
    capabilities = frozenset({"preloaded_state"})


_UNKNOWN = _Unknown()


def workload_of(config: Mapping[str, Any]) -> Workload[Any]:
    """Return the workload of a configuration, or a placeholder for one that this version does not know."""
    return WORKLOADS.get(str(config.get("workload")), _UNKNOWN)


def has_schedule(config: Mapping[str, Any]) -> bool:
    """Return whether a generator sends the input on a schedule; `config` may be a record's and lack keys."""
    return workload_of(config).paced(config)


def offered_rate(config: Mapping[str, Any]) -> float | None:
    """Return the scheduled records/s of a record's configuration, or None without a schedule or a valid number."""
    rate = config.get("rate")
    if config.get("data_pace") == "recorded" and config.get("data"):
        return None  # the data determines the times
    if not has_schedule(config):
        return None  # the parameter is a density in event time
    try:
        return float(rate) if isinstance(rate, int | float) and math.isfinite(rate) else None
    except OverflowError:
        return None


def owners(key: str) -> list[str]:
    """Return the workloads with an own parameter of this name."""
    return [name for name, one in WORKLOADS.items() if key in one.parameters.model_fields]


def own_fields() -> dict[str, FieldInfo]:
    """Return every parameter that only some workloads have."""
    return {key: field for one in WORKLOADS.values() for key, field in one.parameters.model_fields.items()}
