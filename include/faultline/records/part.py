"""What every part of a record is: frozen, complete when it is written, lenient towards older ones when it is read."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    # Keys that older records lack have defaults for reading; a record that is written has every key.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        from_attributes=True,
        json_schema_serialization_defaults_required=True,
    )

    @classmethod
    def empty(cls) -> Any:
        """The part with every key null."""
        return cls(**dict.fromkeys(cls.model_fields))
