"""Messages about files that do not hold a readable record."""

from __future__ import annotations

from pydantic import ValidationError

from faultline.records.record import SCHEMA, Record
from faultline.system.errors import MIGRATE


def content_problem(error: ValidationError, remedy: str = "") -> str:
    """Return the first error of an invalid record: its key, the cause and `remedy`.

    The key is `file` if the whole content is wrong.
    """
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"]) or "file"
    if key.endswith("schema") and first["input"] == 1:
        return f"{key}: got 1; expected {SCHEMA}; fix: {MIGRATE}"
    return "; ".join(part for part in (f"{key}: {first['msg']}", remedy) if part)


def place_problem(record: Record, folder: str, stem: str) -> str | None:
    """Return the problem if a record's file has the wrong path, else None.

    Expected: the record's configuration id as `folder`, and its attempt as `stem` of the file name.
    """
    if record.attempt != stem:
        return f"attempt: got {record.attempt!r}; expected the name of its file, {stem!r}"
    if record.config_id != folder:
        return f"config_id: got {record.config_id!r}; expected the name of its folder, {folder!r}"
    return None
