"""Job files: parsed without execution, refused in one line with file and line."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.experiment import job_file
from faultline.experiment.job_file import EVENT_TIMES, OUTPUT_MODES, REFLECTS, is_job, read_job
from faultline.system.hashes import file_hash
from tests.support.refusals import refused

QUERY = "def query(records, config):\n    return records\n"
TUPLES = "def tuples(records):\n    return records\n"


def written(folder: Path, text: str, name: str = "job.py") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_query_alone_is_valid_and_file_is_not_executed(tmp_path: Path) -> None:
    bom = "\N{BYTE ORDER MARK}"
    job = read_job(written(tmp_path, f"{bom}import nowhere_to_be_found\nraise SystemExit('run')\n{QUERY}"))
    assert (job.output_mode, job.reflects, job.event_time, dict(job.arguments)) == ("update", "nothing", None, {})
    assert not job.has_sink and list(job.files) == ["job.py"]


@given(
    mode=st.sampled_from(OUTPUT_MODES),
    reflects=st.sampled_from(REFLECTS),
    time=st.none() | st.sampled_from(EVENT_TIMES),
    arguments=st.dictionaries(st.from_regex("[a-z_]{1,8}", fullmatch=True), st.integers() | st.booleans() | st.text()),
)
def test_declared_values_are_read(
    tmp_path_factory: pytest.TempPathFactory, mode: str, reflects: str, time: str | None, arguments: dict[str, object]
) -> None:
    declared = {"output_mode": mode, "reflects": reflects, "arguments": arguments}
    declared |= {} if time is None else {"event_time": time}
    job = read_job(written(tmp_path_factory.mktemp("job"), f"JOB = {declared!r}\n{QUERY}{TUPLES}"))
    assert (job.output_mode, job.reflects, job.event_time) == (mode, reflects, time)
    assert dict(job.arguments) == arguments
    # A value given as text is converted to the type of its default.
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in arguments.items()}
    given = job.given(texts)
    assert given == arguments and list(map(type, given.values())) == list(map(type, arguments.values()))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("x = 1\n", ": "),
        ("def query(records):\n    return records\n", ", line 1: "),
        ("def query(:\n", ", line 1: "),
        (f"JOB = 3\n{QUERY}", ", line 1: "),
        (f"JOB = dict(reflects='id')\n{QUERY}", ", line 1: "),
        (f"JOB = {{[1]: 1}}\n{QUERY}", ", line 1: "),
        (f"JOB = {{'reflect': 'id'}}\n{QUERY}", ", line 1: "),
        (f"JOB = {{'reflects': 'ids'}}\n{QUERY}", ": 'reflects': "),
        (f"JOB = {{'output_mode': None}}\n{QUERY}", ": 'output_mode': "),
        (f"JOB = {{'reflects': 'count'}}\n{QUERY}", ": "),
        (f"JOB = {{'watermark_s': 5}}\n{QUERY}", ", line 1: "),
        (f"JOB = {{'arguments': ['a']}}\n{QUERY}", ': "arguments": '),
        (f"JOB = {{'arguments': {{'a': None}}}}\n{QUERY}", ": argument a: "),
        (f"JOB = {{'reflects': 'id'}}\ndef sink(results, config):\n    pass\n{QUERY}", ": "),
    ],
)
def test_invalid_job_is_refused_in_one_line(tmp_path: Path, text: str, place: str) -> None:
    path = written(tmp_path, text)
    with refused(f"job: {path}{place}", kind=ValueError):
        read_job(path)


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        (QUERY, True),
        ("def query(records, /, config):\n    return records\n", True),
        ("JOB = {}\ndef query(records):\n    return records\n", True),
        ("JOB: dict = {}\n", True),
        ("def query(spark):\n    return spark\n", False),
        ("def query():\n    pass\nquery()\n", False),
        ("query = 3\n", False),
        ("class A:\n    def query(records, config):\n        pass\n", False),
    ],
)
def test_job_is_recognised_by_declaration_or_query(tmp_path: Path, text: str, is_valid: bool) -> None:
    assert is_job(Path(written(tmp_path, text))) is is_valid


def test_file_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, whole = list[bytes](), ast.parse
    monkeypatch.setattr(ast, "parse", lambda text: parsed.append(text) or whole(text))
    read_job(written(tmp_path, QUERY))
    assert parsed == [QUERY.encode()]


def test_missing_or_unreadable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_bytes(b"\xff\xfe")
    for name in ("", "no.py", "job.py"):
        with refused("job: ", kind=ValueError):
            read_job(str(tmp_path / name))


def test_imported_modules_of_the_folder_belong_to_the_job(tmp_path: Path) -> None:
    """Imports are followed transitively; installed packages are excluded."""
    written(tmp_path, "import deeper\n", "helper.py")
    written(tmp_path, "import helper\n", "deeper.py")
    written(tmp_path, "x = 1\n", "other.py")
    job = read_job(written(tmp_path, f"import json\nfrom helper import x\n{QUERY}"))
    assert sorted(job.files) == ["deeper.py", "helper.py", "job.py"]
    before = {name: file_hash(path) for name, path in job.files.items()}
    written(tmp_path, "import helper  # changed\n", "deeper.py")
    assert {name for name, path in job.files.items() if file_hash(path) != before[name]} == {"deeper.py"}


@pytest.mark.parametrize(("default", "given"), [(10, "ten"), (1.5, "x"), (True, "yes"), (10, "1.5")])
def test_undeclared_or_mistyped_arguments_are_refused(tmp_path: Path, default: object, given: str) -> None:
    job = read_job(written(tmp_path, f"JOB = {{'arguments': {{'window_s': 10}}}}\n{QUERY}"))
    assert job.given(None) == {"window_s": 10} and job.given({"window_s": "5"}) == {"window_s": 5}
    with pytest.raises(ValueError, match=r"^arguments\.windows: .*window_s"):
        job.given({"windows": "5"})
    job = read_job(written(tmp_path, f"JOB = {{'arguments': {{'a': {default!r}}}}}\n{QUERY}"))
    with pytest.raises(ValueError, match=r"^arguments\.a: "):
        job.given({"a": given})


def test_packages_and_named_files_belong_to_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package is included whole; other files only if a string names them; none outside the folder."""
    package = [f"textlib/{name}" for name in ("__init__.py", "clean.py", "words.txt", "__pycache__/x.pyc")]
    for name in (*package, "data/a.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    for name in ("stop.csv", "unnamed.csv", "value"):
        (tmp_path / name).write_text("x" * 50)
    (tmp_path / "textlib" / "template.py").write_text("{{ no python }}")
    names = ["stop.csv", "data/a.csv", "value", "../x.csv", "/etc/hosts", "//etc/hosts", "ж." * 120]
    job = read_job(written(tmp_path, f"from textlib.clean import a\nS = {names}\n{QUERY}"))
    textlib = [f"textlib/{name}" for name in ("__init__.py", "clean.py", "template.py", "words.txt")]
    assert sorted(job.files) == ["data/a.csv", "job.py", "stop.csv", *textlib]
    monkeypatch.setattr(job_file, "MOST_BYTES", 40)
    with refused(f"job: {job.path}: ", kind=ValueError):
        read_job(str(job.path))


def test_module_with_a_name_of_faultline_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "x = 1\n", "query_counts.py")
    with refused("job: ", "query_counts.py", kind=ValueError):
        read_job(written(tmp_path, f"import query_counts\n{QUERY}"))
