"""SQL files: tokens of statements, places, arguments, and refusals in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.experiment.job_file import read_job
from faultline.experiment.workloads.sql_file import RESERVED, literal, read_sql
from tests.support.refusals import refused

SELECT = "SELECT a AS `key`, b AS `value` FROM records"
VIEW = "CREATE TEMPORARY VIEW tuples AS SELECT * FROM records;\n"
# Text in which a semicolon, a quote or an argument has no meaning.
INERT = st.sampled_from([" ", "\n", "-- a ; 'b :n\n", "/* a ; ` */", "\n\n  "])
NAMES = st.from_regex("[a-z]{1,6}", fullmatch=True).filter(lambda name: name not in RESERVED)


def written(folder: Path, text: str) -> str:
    path = folder / "job.sql"
    path.write_text(text, encoding="utf-8")
    return str(path)


@given(st.lists(NAMES, unique=True, max_size=4), st.data())
def test_every_statement_stays_at_its_place(names: list[str], data: st.DataObject) -> None:
    text, places = "", {}
    for name in names:
        text += data.draw(INERT)
        places[name] = len(text)
        text += f"CREATE TEMPORARY VIEW {name} AS{data.draw(INERT)} SELECT ';' AS x{data.draw(INERT)};"
    text += data.draw(INERT)
    select, end = len(text), data.draw(INERT) + data.draw(st.sampled_from(["", ";", ";\n;"]))
    sql = read_sql(f"{text}{SELECT}{end}").statements({})
    views = sql["views"]
    assert isinstance(views, dict) and list(views) == names
    for place, statement in [*((places[name], views[name]) for name in names), (select, str(sql["select"]))]:
        before = text[:place]
        assert statement.startswith("\n" * before.count("\n") + " " * (place - before.rfind("\n") - 1))
        assert text[place:].startswith(statement.strip()) or statement.strip() == SELECT


@given(st.text(st.characters(exclude_characters="\\", categories=("L", "N", "P", "S"))))
def test_a_text_is_a_literal_that_reads_as_itself(text: str) -> None:
    found = literal(text)
    assert found[0] == found[-1] == "'" and found[1:-1].replace("''", "") == text.replace("'", "")
    sql = read_sql(SELECT.replace("a AS", ":x AS")).statements({"x": text})
    assert str(sql["select"]) == SELECT.replace("a AS", f"{found} AS"), "it is not read again"


def test_arguments_replace_only_their_tokens() -> None:
    text = "SELECT ':n' AS `key`, x::INT - :n -- :n\n AS `value`, :m, :big FROM t"
    sql = read_sql(text)
    assert sql.statements({"n": -5, "m": True, "big": 1.5})["select"] == (
        "SELECT ':n' AS `key`, x::INT - (-5) -- :n\n AS `value`, TRUE, 1.5 FROM t"
    )


def test_declarations_of_a_file_are_those_of_python(tmp_path: Path) -> None:
    head = '-- x\n--JOB = {"output_mode": "append", "reflects": "id", "arguments": {"least": 5}}\n'
    job = read_job(written(tmp_path, f"{head}{SELECT} WHERE b > :least;"))
    assert (job.output_mode, job.reflects, dict(job.arguments)) == ("append", "id", {"least": 5})
    assert list(job.files) == ["job.sql"] and not job.has_sink
    assert job.statements({"least": "7"})["sql"]["select"] == f"\n\n{SELECT} WHERE b > 7"
    assert read_job(written(tmp_path, SELECT)).output_mode == "update"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", ": no SELECT at the end"),
        ("-- only this", ": no SELECT at the end"),
        (VIEW, ", line 1: no SELECT at the end"),
        (f"\n{SELECT};\n{SELECT}", ", line 2: got "),
        (f"INSERT INTO results {SELECT};{SELECT}", ", line 1: got "),
        (f"CREATE VIEW a AS {SELECT};{SELECT}", ", line 1: got "),
        (f"CREATE TEMPORARY VIEW IF NOT EXISTS a AS {SELECT};{SELECT}", ", line 1: got "),
        (f"{VIEW}{VIEW}{SELECT}", ", line 2: got view tuples"),
        (f"CREATE TEMPORARY VIEW Records AS {SELECT};{SELECT}", ", line 1: got view Records"),
        ("SELECT a AS `key` FROM records", ", line 1: the last SELECT has no column value"),
        ("SELECT COUNT(*) AS `key` FROM records", ", line 1: the last SELECT has no column value"),
        (f"{SELECT} WHERE a = 'b", ", line 1: got ' "),
        (f"{SELECT}\n/* a", ", line 2: got /* "),
        (f'{SELECT} WHERE a = "b"', ", line 1: got a double quote"),
        (f"{SELECT} WHERE a RLIKE '\\d'", ", line 1: got a backslash"),
        (f"{SELECT} WHERE a = :b", ", line 1: got :b"),
        (f"-- JOB = {{\n{SELECT}", ", line 1: got invalid JOB"),
        (f"\n-- JOB = 3\n{SELECT}", ", line 2: got no dictionary"),
        (f"-- JOB = {{'reflect': 'id'}}\n{SELECT}", ", line 1: JOB: unknown key"),
        (f"-- JOB = {{'event_time': 'value'}}\n{SELECT}", ", line 1: got event_time"),
        (f"-- JOB = {{'output_mode': 'complete'}}\n{SELECT}", ": 'output_mode': "),
        (f"-- JOB = {{'reflects': 'count'}}\n{SELECT}", ": missing view tuples"),
    ],
)
def test_an_invalid_file_is_refused_in_one_line(tmp_path: Path, text: str, place: str) -> None:
    path = written(tmp_path, text)
    with refused(f"job: {path}{place}", kind=ValueError):
        read_job(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with refused(f"job: reading {tmp_path / 'no.sql'} failed: ", kind=ValueError):
        read_job(str(tmp_path / "no.sql"))
    (tmp_path / "latin.sql").write_bytes(b"SELECT '\xe9'")
    with refused(f"job: {tmp_path / 'latin.sql'}: got a file that is not UTF-8", kind=ValueError):
        read_job(str(tmp_path / "latin.sql"))


def test_an_argument_without_a_literal_is_refused(tmp_path: Path) -> None:
    job = read_job(written(tmp_path, f"-- JOB = {{'arguments': {{'a': 'b', 'x': 1.5}}}}\n{SELECT} WHERE a = :a"))
    for arguments, key in (
        ({"a": "\\"}, "arguments.a: "),
        ({"a": "b\n"}, "arguments.a: "),
        ({"x": "nan"}, "arguments.x: "),
    ):
        with refused(key, kind=ValueError):
            job.given(arguments)
