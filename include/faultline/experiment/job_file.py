"""User job: one Python file with declarations in the literal `JOB`, or a SQL file with them in a comment.

The file is only parsed here, since planning must not execute user code. It runs in the engine and in the audit.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from faultline.experiment.workloads.sql_file import SUFFIX, SqlError, SqlFile, literal, read_sql
from faultline.system.settings import ROOT
from faultline.system.text import suggest

QUERY, TUPLES, SINK, OUTPUTS = "query", "tuples", "sink", "outputs"
# Possible values of "reflects", the part of an output that identifies its input.
COUNT, ID, NEWEST, NOTHING = "count", "id", "newest", "nothing"
# Not for jobs, only for programs, whose outputs may copy the header of their record.
HEADER = "header"
REFLECTS = (COUNT, ID, NEWEST, NOTHING)
OUTPUT_MODES = ("update", "append", "complete")
# Event time of windows: Kafka's timestamp, by which records are ordered, or a time in the record value.
EVENT_TIMES = ("timestamp", "value")
KEYS = ("output_mode", "reflects", "event_time", "arguments")
DECLARATION = "JOB"
# Values passed to a job in addition to its arguments.
PASSED_VALUES = ("attempt", "folder")
# Upper bound on the copied files of a job, in bytes; each attempt keeps a copy.
MOST_BYTES = 100_000_000
Argument = str | int | float
EXAMPLE = 'JOB = {"output_mode": "update", "reflects": "count"}'
# Faultline's own programs, which precede a job's modules on the import path.
PROGRAMS = ROOT / "spark_jobs"


@dataclass(frozen=True)
class JobFile:
    """Declarations of a job file.

    `functions`: the functions with a meaning here that it defines. `files`: the file and its dependencies, by path
    within its folder. `arguments`: defaults by name; a given value is converted to the type of its default. `sql`:
    content of a SQL file; None for Python.
    """

    path: Path
    functions: frozenset[str]
    files: Mapping[str, Path]
    output_mode: str = "update"
    reflects: str = NOTHING
    event_time: str | None = None
    arguments: Mapping[str, Argument] = field(default_factory=lambda: MappingProxyType({}))
    sql: SqlFile | None = None

    @property
    def has_sink(self) -> bool:
        """Whether the job writes its results itself instead of to Kafka."""
        return SINK in self.functions

    def given(self, arguments: Mapping[str, Any] | None) -> dict[str, Argument]:
        """Return the complete arguments. Raises ValueError for an undeclared argument or a wrong type."""
        for name in arguments or {}:
            if name not in self.arguments:
                known = suggest(name, self.arguments)
                raise ValueError(
                    f"arguments.{name}: unknown; expected an argument that {self.path.name} declares{known}"
                )
        typed = {name: _typed(name, value, self.arguments[name]) for name, value in (arguments or {}).items()}
        found = {**self.arguments, **typed}
        for name, value in found.items() if self.sql else ():
            try:
                literal(value)
            except SqlError as error:
                raise ValueError(f"arguments.{name}: {error}") from None
        return found

    def statements(self, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return `sql`, the statements of a SQL file with these arguments; empty for Python."""
        return {} if self.sql is None else {"sql": self.sql.statements(self.given(arguments))}


def read_job(path: str) -> JobFile:
    """Read the declarations of a job file. Raises ValueError in one line that names file, line and fix."""
    file = Path(path)
    if is_sql(path):
        return _read_sql_job(file)
    tree = _parsed(file)
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    if QUERY not in functions:
        raise ValueError(
            f"job: {path}: missing function {QUERY}; expected `def query(records, config): …`; "
            "fix: see `./faultline job new`"
        )
    if not _takes_two(functions[QUERY]):
        raise ValueError(
            f"job: {path}, line {functions[QUERY].lineno}: got another signature; expected query(records, config)"
        )
    declared, files = _declared(path, tree), files_of(file, tree)
    for name in files:
        if name != file.name and name.endswith(".py") and (PROGRAMS / Path(name).parts[0]).exists():
            raise ValueError(f"job: {path}: got module {name}, a name that Faultline uses; fix: rename it")
    mode = _choice(path, declared, "output_mode", OUTPUT_MODES, "update")
    reflects = _choice(path, declared, "reflects", REFLECTS, NOTHING)
    time = _choice(path, declared, "event_time", EVENT_TIMES, None)
    known = frozenset(functions) & {QUERY, TUPLES, SINK, OUTPUTS}
    if SINK in known and reflects != NOTHING:
        raise ValueError(
            f'job: {path}: got "reflects" {reflects!r} with a sink, whose results have no output time; '
            'expected "nothing"'
        )
    if reflects == COUNT and TUPLES not in known:
        raise ValueError(
            f'job: {path}: missing function tuples for "reflects": "count"; expected `def tuples(records)` that '
            "returns partition, offset and key of each counted tuple"
        )
    return JobFile(
        file,
        known,
        files,
        mode or "update",
        reflects or NOTHING,
        time,
        MappingProxyType(_arguments(path, declared)),
    )


def is_sql(path: str) -> bool:
    """Return whether a job is a SQL file, by its name."""
    return path.endswith(SUFFIX)


def _read_sql_job(file: Path) -> JobFile:
    try:
        sql = read_sql(_content(file).decode("utf-8-sig"))
        line, text = sql.declaration or (1, f"{DECLARATION} = {{}}")
        try:
            tree = ast.parse("\n" * (line - 1) + text)
        except SyntaxError as error:
            raise SqlError(f"got invalid JOB ({error.msg}); expected -- {EXAMPLE}", line) from None
        declared = _declared(str(file), tree)
        if "event_time" in declared:
            raise SqlError("got event_time, which SQL jobs lack; fix: omit it", line)
        arguments = _arguments(str(file), declared)
        sql.require_declared(list(arguments))
    except UnicodeDecodeError as error:
        raise ValueError(f"job: {file}: got a file that is not UTF-8 ({error.reason}, byte {error.start})") from None
    except SqlError as error:
        raise ValueError(f"job: {file}{f', line {error.line}' if error.line else ''}: {error}") from None
    known = frozenset({QUERY, *({TUPLES} & sql.views.keys())})
    mode = _choice(str(file), declared, "output_mode", OUTPUT_MODES[:2], "update")
    reflects = _choice(str(file), declared, "reflects", REFLECTS, NOTHING)
    if reflects == COUNT and TUPLES not in known:
        raise ValueError(
            f'job: {file}: missing view {TUPLES} for "reflects": "count"; expected `CREATE TEMPORARY VIEW {TUPLES} AS '
            "SELECT …` with partition, offset and key of each counted tuple"
        )
    job = JobFile(
        file,
        known,
        {file.name: file},
        mode or "update",
        reflects or NOTHING,
        arguments=MappingProxyType(arguments),
        sql=sql,
    )
    job.given(None)
    return job


def is_job(file: Path) -> bool:
    """Return whether a Python file is a job: it declares JOB or defines `query(records, config)`.

    Raises ValueError for a file that is not valid Python.
    """
    tree = _parsed(file)
    queries = (one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == QUERY)
    return _declaration(tree) is not None or any(_takes_two(one) for one in queries)


def _takes_two(query: ast.FunctionDef) -> bool:
    return len(query.args.posonlyargs) + len(query.args.args) == 2


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except IsADirectoryError:
        raise ValueError(f"job: got folder {file}; expected a Python or SQL file") from None
    except OSError as error:
        raise ValueError(f"job: reading {file} failed: {error.strerror}; expected a Python or SQL file") from None


def _parsed(file: Path) -> ast.Module:
    content = _content(file)
    try:
        return ast.parse(content)  # bytes keep the declared encoding and byte-order mark
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        problem = getattr(error, "msg", error)
        raise ValueError(f"job: {file}{f', line {line}' if line else ''}: got invalid Python ({problem})") from None


def _declaration(tree: ast.Module) -> ast.Assign | ast.AnnAssign | None:
    """Return the first assignment to JOB."""
    for one in tree.body:
        if isinstance(one, ast.Assign | ast.AnnAssign):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            if any(isinstance(target, ast.Name) and target.id == DECLARATION for target in targets):
                return one
    return None


def _declared(path: str, tree: ast.Module) -> dict[str, Any]:
    one = _declaration(tree)
    if one is None:
        return {}
    where = f"job: {path}, line {one.lineno}"
    try:
        value = ast.literal_eval(one.value) if one.value is not None else None
    except (ValueError, TypeError):
        raise ValueError(
            f"{where}: got an expression for JOB, which is not executed; expected plain values, such as {EXAMPLE}"
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"{where}: got no dictionary for JOB; expected {EXAMPLE}")
    for name in value:
        if name not in KEYS:
            raise ValueError(f"{where}: JOB: unknown key {name!r}{suggest(str(name), KEYS)}")
    return value


def _choice(
    path: str, declared: Mapping[str, Any], key: str, choices: tuple[str, ...], default: str | None
) -> str | None:
    value = declared.get(key, default)
    if value not in choices and value != default:
        raise ValueError(f"job: {path}: {key!r}: got {value!r}; expected one of {', '.join(choices)}")
    return None if value is None else str(value)


def _arguments(path: str, declared: Mapping[str, Any]) -> dict[str, Argument]:
    given = declared.get("arguments", {})
    if not isinstance(given, dict) or not all(isinstance(name, str) and name.isidentifier() for name in given):
        raise ValueError(
            f'job: {path}: "arguments": got {given!r}; expected names and defaults, such as {{"window_s": 10}}'
        )
    for name, value in given.items():
        if name in PASSED_VALUES:
            raise ValueError(
                f"job: {path}: argument {name}: reserved, since Faultline passes it to every job; fix: rename it"
            )
        if not isinstance(value, str | int | float):
            raise ValueError(f"job: {path}: argument {name}: got default {value!r}; expected a text or a number")
    return dict(given)


def _typed(name: str, value: Any, default: Argument) -> Argument:
    """Return a value with the type of the default. Raises ValueError naming the argument."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(f"arguments.{name}: got {text!r}; expected true or false")
        return text.lower() == "true"
    try:
        return type(default)(text)
    except ValueError:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise ValueError(f"arguments.{name}: got {text!r}; expected {kind}, like its default {default}") from None


def files_of(file: Path, tree: ast.Module | None = None) -> dict[str, Path]:
    """Return a Python file and its dependencies in its folder, by path within the folder.

    Dependencies are imported modules and packages, transitively, and files named by a string in one of them. `tree`:
    the parsed file, if available. Raises ValueError for a module that is not valid Python, and above MOST_BYTES.
    """
    found: dict[str, Path] = {}
    waiting = [file]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(file.parent).as_posix()
        if name in found:
            continue
        found[name] = path
        if path.suffix == ".py":
            try:
                waiting += _needed(path, file.parent, tree if path == file and tree is not None else _parsed(path))
            except ValueError:
                if path.parent == file.parent:  # packages may contain templates, which are never imported
                    raise
    _require_small(file, found)
    return found


def _needed(path: Path, folder: Path, tree: ast.Module) -> list[Path]:
    """Return the files of a folder that one of its modules uses, with all files of a package."""
    found = []
    for name in _imported(tree):
        module, package = folder / f"{name}.py", folder / name
        found += [module] if module.is_file() else []
        found += [one for one in package.rglob("*") if one.is_file()] if (package / "__init__.py").is_file() else []
    # Strings may name a file in the folder or next to the module.
    candidates = [base / text for text in _texts(tree) for base in (folder, path.parent)]
    found += [one for one in candidates if os.path.isfile(one)]
    return [one for one in found if "__pycache__" not in one.parts]


def _require_small(file: Path, found: Mapping[str, Path]) -> None:
    sizes = {name: path.stat().st_size for name, path in found.items()}
    if sum(sizes.values()) > MOST_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ValueError(
            f"job: {file}: got too large files ({largest}: {sizes[largest] / 1e6:,.0f} MB); expected at most "
            f"{MOST_BYTES // 10**6} MB in total; fix: read large files by an absolute path"
        )


def _texts(tree: ast.Module) -> set[str]:
    """Return the strings that may name a file of the folder."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    paths = {text: Path(text) for text in texts if 0 < len(text) < 256 and text.isprintable()}
    return {text for text, path in paths.items() if "." in text and not path.is_absolute() and ".." not in path.parts}


def _imported(tree: ast.Module) -> set[str]:
    """Return the top-level names of all imports of a module."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names
