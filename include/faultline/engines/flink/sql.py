"""SQL scripts of the workloads that run on Flink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Prime below 2^31. Hashes are below it, so their products fit into BIGINT.
PRIME = 2_147_483_647
# Factors of offset, partition and position in a tuple's number; spark_jobs/output_matching.py has the same.
FACTORS = (1_103_515_245, 69_069, 12_345)

# Columns of a user query's input, as in spark_jobs/user_job.py; `number` counts milliseconds and partitions.
RECORDS = (
    "records (k STRING, `value` STRING, topic STRING METADATA VIRTUAL, `partition` INT METADATA VIRTUAL, "
    "`offset` BIGINT METADATA VIRTUAL, `timestamp` TIMESTAMP_LTZ(3) METADATA VIRTUAL, `key` AS COALESCE(k, ''), "
    "`number` AS (UNIX_TIMESTAMP(DATE_FORMAT(`timestamp`, 'yyyy-MM-dd HH:mm:ss')) * 1000 "
    "+ EXTRACT(MILLISECOND FROM `timestamp`)) * 1024 + `partition`)"
)
# Longer than an outage, after which a healthy TaskManager would end itself. The broker allows 900 s.
TRANSACTION_TIMEOUT_MS = 600_000
# Option by which a record's value does not repeat its key.
_NO_KEY = {"value.fields-include": "EXCEPT_KEY"}


@dataclass(frozen=True)
class KafkaTables:
    """Input and output topic of an attempt, and the client properties of both.

    `group`: consumer group, and prefix of the transactions. `transactional`: whether outputs are written in them.
    """

    bootstrap: str
    input_topic: str
    output_topic: str
    group: str
    properties: Mapping[str, str]
    transactional: bool = False

    def input(self, columns: str) -> str:
        """Return the DDL of the table `lines`: the value as text, and `columns` of metadata."""
        return _table(f"lines (line STRING{columns})", {**self._source(), "format": "raw"})

    def records(self) -> str:
        """Return the DDL of the table `records`, with the columns of a user query's input."""
        return _table(RECORDS, {**self._source(), "format": "raw", "key.format": "raw", "key.fields": "k", **_NO_KEY})

    def appended(self) -> str:
        """Return the DDL of the table `results` of a query whose rows do not replace each other."""
        keyed = {"format": "raw", "key.format": "raw", "key.fields": "k", **_NO_KEY}
        return _table(
            "results (k STRING, v STRING)",
            {"connector": "kafka", **self._sink(), **keyed},
        )

    def output(self) -> str:
        """Return the DDL of the table `results`, one record for each change of a key."""
        return _table(
            "results (k STRING, v STRING, PRIMARY KEY (k) NOT ENFORCED)",
            {
                "connector": "upsert-kafka",
                **self._sink(),
                "key.format": "raw",
                "value.format": "raw",
                **_NO_KEY,
            },
        )

    def _source(self) -> dict[str, str]:
        return {
            "connector": "kafka",
            "topic": self.input_topic,
            **self._client(),
            "properties.group.id": self.group,
            "scan.startup.mode": "earliest-offset",
            # The topic's partitions never change.
            "scan.topic-partition-discovery.interval": "0",
        }

    def _sink(self) -> dict[str, str]:
        options = {"topic": self.output_topic, **self._client()}
        if self.transactional:
            options["sink.delivery-guarantee"] = "exactly-once"
            options["sink.transactional-id-prefix"] = self.group
            options["properties.transaction.timeout.ms"] = str(TRANSACTION_TIMEOUT_MS)
        return options

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


def user_query(tables: KafkaTables, name: str, sql: Mapping[str, Any], output_mode: str) -> str:
    """Return the script of a SQL file, whose statements stay at their lines and columns.

    `sql`: views and SELECT, each with its place as space. So Flink's messages name places in the file.
    """
    results = tables.appended() if output_mode == "append" else tables.output()
    script = f"SET 'pipeline.name' = {quoted(name)};\n{tables.records()}{results}".replace("\n", " ")
    for view in sql["views"].values():
        script += f"{view[script.count(chr(10)) :]};"
    # A primary key is never null; no key is an empty one in the audit.
    script += "INSERT INTO results SELECT COALESCE(CAST(`key` AS STRING), ''), CAST(`value` AS STRING) FROM ("
    return f"{script}{sql['select'][script.count(chr(10)) :]}\n);\n"


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
