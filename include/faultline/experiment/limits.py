"""The limits of a model's fields in words, for the form and the tables of the documentation."""

from __future__ import annotations

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel


def limits(name: str, model: type[BaseModel]) -> str:
    """The limits of a field in words, such as `≥ 1, ≤ 64`; empty without limits."""
    parts = []
    for limit in model.model_fields[name].metadata:
        if isinstance(limit, Gt):
            parts.append(f"> {limit.gt:g}")
        elif isinstance(limit, Ge):
            parts.append(f"≥ {limit.ge:g}")
        elif isinstance(limit, Lt):
            parts.append(f"< {limit.lt:g}")
        elif isinstance(limit, Le):
            parts.append(f"≤ {limit.le:.10g}")
    return ", ".join(parts)
