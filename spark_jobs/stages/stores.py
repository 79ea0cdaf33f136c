"""Stores of results: one row per word with its highest count, and the input position."""

from __future__ import annotations

import json
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

# A word and its count.
Result = tuple[str, int]

_TABLES = (
    "CREATE TABLE IF NOT EXISTS results (word TEXT PRIMARY KEY, count BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY, offsets TEXT NOT NULL)",
)
_RESULT = (
    "INSERT INTO results (word, count) VALUES ({0}, {0}) "
    "ON CONFLICT (word) DO UPDATE SET count = excluded.count WHERE excluded.count > results.count"
)
_POSITION = (
    "INSERT INTO position (one, offsets) VALUES (1, {0}) ON CONFLICT (one) DO UPDATE SET offsets = excluded.offsets"
)


class ResultStore(ABC):
    """Table of results. Each call takes `delay_s` longer, to make the store the bottleneck."""

    mark = "?"

    def __init__(self, delay_s: float = 0.0) -> None:
        self._delay_s = delay_s
        with closing(self._connect()) as connection:
            cursor = connection.cursor()
            for table in _TABLES:
                cursor.execute(table)
            connection.commit()

    @abstractmethod
    def _connect(self) -> Any:
        """Return a connection for the calling thread (DB-API)."""

    def write(self, results: Sequence[Result], position: dict[str, int]) -> None:
        """Write all `results` and their position in one transaction. Counts never decrease."""
        time.sleep(self._delay_s)
        with closing(self._connect()) as connection:
            cursor = connection.cursor()
            cursor.executemany(_RESULT.format(self.mark), results)
            cursor.execute(_POSITION.format(self.mark), (json.dumps(position),))
            connection.commit()

    def write_each(
        self, results: Sequence[Result], position: dict[str, int], written: Callable[[Result], None]
    ) -> None:
        """Write each result in its own transaction, like a stage without batching; the position last.

        `written` is called after each result.
        """
        with closing(self._connect()) as connection:
            cursor = connection.cursor()
            for result in results:
                time.sleep(self._delay_s)
                cursor.execute(_RESULT.format(self.mark), result)
                connection.commit()
                written(result)
            cursor.execute(_POSITION.format(self.mark), (json.dumps(position),))
            connection.commit()

    def position(self) -> dict[str, int] | None:
        """Return the written end offsets by partition; None before the first write."""
        with closing(self._connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT offsets FROM position")
            row = cursor.fetchone()
        return None if row is None else {part: int(offset) for part, offset in json.loads(row[0]).items()}

    def results(self) -> dict[str, int]:
        """Return all results."""
        with closing(self._connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT word, count FROM results")
            return {word: int(count) for word, count in cursor.fetchall()}

    @abstractmethod
    def drop(self) -> None:
        """Remove what is no longer needed after the run."""


class SqliteStore(ResultStore):
    """Store in a SQLite file; writes are durable when they return."""

    def __init__(self, path: str, delay_s: float = 0.0) -> None:
        self._path = path
        super().__init__(delay_s)

    def drop(self) -> None:
        """Do nothing: the file belongs to the attempt."""

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)


class PostgresStore(ResultStore):
    """Store in its own schema of a PostgreSQL database."""

    mark = "%s"

    def __init__(self, address: str, schema: str, delay_s: float = 0.0) -> None:
        """Create the schema if absent.

        `address`: postgresql://USER:PASSWORD@HOST:PORT/NAME; `schema`: letters, digits and _.
        """
        if not schema.replace("_", "").isalnum():
            raise ValueError(f"schema: got {schema!r}; expected letters, digits and _")
        self._address, self._schema = address, schema
        import psycopg2

        with closing(psycopg2.connect(address)) as connection, connection.cursor() as cursor:
            cursor.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
            connection.commit()
        super().__init__(delay_s)

    def drop(self) -> None:
        """Remove the schema, which holds only this store's tables."""
        with closing(self._connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f'DROP SCHEMA "{self._schema}" CASCADE')
            connection.commit()

    def _connect(self) -> Any:
        import psycopg2

        return psycopg2.connect(self._address, options=f"-c search_path={self._schema}")
