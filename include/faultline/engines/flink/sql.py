"""SQL scripts of the workloads that run on Flink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Prime below 2^31. Hashes are below it, so their products fit into BIGINT.
PRIME = 2_147_483_647
# Factors of offset, partition and position in a tuple's number; spark_jobs/output_matching.py has the same.
FACTORS = (1_103_515_245, 69_069, 12_345)


@dataclass(frozen=True)
class KafkaTables:
    """Input and output topic of an attempt, and the client properties of both."""

    bootstrap: str
    input_topic: str
    output_topic: str
    group: str
    properties: Mapping[str, str]

    def input(self, columns: str) -> str:
        """Return the DDL of the table `lines`: the value as text, and `columns` of metadata."""
        return _table(
            f"lines (line STRING{columns})",
            {
                "connector": "kafka",
                "topic": self.input_topic,
                **self._client(),
                "properties.group.id": self.group,
                "scan.startup.mode": "earliest-offset",
                # The topic's partitions never change.
                "scan.topic-partition-discovery.interval": "0",
                "format": "raw",
            },
        )

    def output(self) -> str:
        """Return the DDL of the table `results`, one record for each change of a key."""
        return _table(
            "results (k STRING, v STRING, PRIMARY KEY (k) NOT ENFORCED)",
            {
                "connector": "upsert-kafka",
                "topic": self.output_topic,
                **self._client(),
                "key.format": "raw",
                "value.format": "raw",
                "value.fields-include": "EXCEPT_KEY",
            },
        )

    def _client(self) -> dict[str, str]:
        properties = {"bootstrap.servers": self.bootstrap, **self.properties}
        return {f"properties.{name}": value for name, value in properties.items()}


def word_count(tables: KafkaTables, name: str) -> str:
    """Return the script of the word count: each change of a word's count, with the sum of its tuples' hashes.

    Output value: `<count> 0 <sum>`, in the form of the Spark program.
    """
    metadata = ", o BIGINT METADATA FROM 'offset' VIRTUAL, p INT METADATA FROM 'partition' VIRTUAL"
    query = (
        f"SELECT word, CAST(COUNT(*) AS STRING) || ' 0 ' || CAST(SUM({tuple_hash('o', 'p', 'i')}) AS STRING)\n"
        "FROM lines CROSS JOIN UNNEST(SPLIT(line, ' ')) WITH ORDINALITY AS words (word, i)\n"
        "GROUP BY word"
    )
    head = f"SET 'pipeline.name' = {quoted(name)};\n{tables.input(metadata)}{tables.output()}"
    return f"{head}INSERT INTO results\n{query};\n"


def tuple_hash(offset: str, partition: str, position: str) -> str:
    """Return the expression of a tuple's hash in [0, PRIME): the cube of a linear number of its input position.

    Integer arithmetic gives the same on both engines. `position` counts from 1. The cube is not linear, so that other
    tuples do not have the same sum by the regularity of offsets.
    """
    prime = f"CAST({PRIME} AS BIGINT)"
    places = (offset, partition, position)
    terms = " + ".join(
        f"MOD(CAST({place} AS BIGINT) * {factor}, {prime})" for place, factor in zip(places, FACTORS, strict=True)
    )
    number = f"MOD({terms}, {prime})"
    return f"MOD(MOD({number} * {number}, {prime}) * {number}, {prime})"


def quoted(text: str) -> str:
    """Return an SQL string literal."""
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def _table(head: str, options: Mapping[str, str]) -> str:
    listed = ",\n".join(f"  {quoted(name)} = {quoted(value)}" for name, value in options.items())
    return f"CREATE TABLE {head} WITH (\n{listed}\n);\n"
