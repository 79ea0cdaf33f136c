"""A job of the user's: one Python file, and what it declares of itself as the literal `JOB`.

The file is read here and never run: whoever plans experiments must not import other people's programs. It runs where
Spark runs it, and where its outputs are held against a batch.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from faultline.base.settings import ROOT
from faultline.base.text import suggest

QUERY, TUPLES, SINK, OUTPUTS = "query", "tuples", "sink", "outputs"
# What of an output tells which input it is of.
COUNT, ID, NEWEST, NOTHING = "count", "id", "newest", "nothing"
# Of programs only, whose outputs may carry their record's header on.
HEADER = "header"
REFLECTS = (COUNT, ID, NEWEST, NOTHING)
OUTPUT_MODES = ("update", "append", "complete")
# Whose time windows are of: Kafka's, by which records are in order, or one that records carry.
EVENT_TIMES = ("timestamp", "value")
KEYS = ("output_mode", "reflects", "event_time", "arguments")
DECLARATION = "JOB"
# What a job is told beside its arguments.
TOLD = ("attempt", "folder")
EXAMPLE = 'JOB = {"output_mode": "update", "reflects": "count"}'
# Where Faultline's own programs lie, which come first where a job is loaded.
PROGRAMS = ROOT / "spark_jobs"


@dataclass(frozen=True)
class JobFile:
    """What a job's file says of it, and of itself.

    `functions`: of those above which it defines. `files`: it and the modules beside it that it imports, by name.
    `arguments`: their defaults, by name.
    """

    path: Path
    functions: frozenset[str]
    files: Mapping[str, Path]
    output_mode: str = "update"
    reflects: str = NOTHING
    event_time: str | None = None
    arguments: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def has_sink(self) -> bool:
        """Whether it writes its results itself, elsewhere than to Kafka."""
        return SINK in self.functions

    def given(self, arguments: Mapping[str, str] | None) -> dict[str, str]:
        """The arguments that it gets. Raises ValueError for one that it does not declare."""
        for name in arguments or {}:
            if name not in self.arguments:
                known = suggest(name, self.arguments)
                raise ValueError(f"arguments.{name}: {self.path.name} declares none such{known}")
        return {**self.arguments, **(arguments or {})}


def read_job(path: str) -> JobFile:
    """What the file declares. Raises ValueError in one line that names file, line and remedy."""
    file = Path(path)
    tree = _parsed(file)
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    if QUERY not in functions:
        raise ValueError(
            f"job: {path} defines no function {QUERY}; write `def query(records, config): …`, or see "
            "./faultline job new"
        )
    if not _takes_both(functions[QUERY]):
        raise ValueError(f"job: {path}, line {functions[QUERY].lineno}: query takes (records, config); give it both")
    declared, files = _declared(path, tree), _modules(file, tree)
    for name in files:
        if name != file.name and (PROGRAMS / name).exists():
            raise ValueError(f"job: {path} imports {name}, and a program of Faultline's has that name; rename it")
    mode = _choice(path, declared, "output_mode", OUTPUT_MODES, "update")
    reflects = _choice(path, declared, "reflects", REFLECTS, NOTHING)
    time = _choice(path, declared, "event_time", EVENT_TIMES, None)
    known = frozenset(functions) & {QUERY, TUPLES, SINK, OUTPUTS}
    if SINK in known and reflects != NOTHING:
        raise ValueError(
            f'job: {path}: "reflects" is {reflects!r}, and results that its sink writes elsewhere than to Kafka have '
            'no time of output; use "nothing"'
        )
    if reflects == COUNT and TUPLES not in known:
        raise ValueError(
            f'job: {path}: "reflects" is "count", so it must say what is counted; define `def tuples(records)` that '
            "returns partition, offset and key of each thing counted"
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


def is_job(file: Path) -> bool:
    """Whether a Python file is a job and no program: it declares JOB, or has a `query` that takes (records, config).

    Raises ValueError for what is no Python.
    """
    tree = _parsed(file)
    queries = (one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == QUERY)
    return _declaration(tree) is not None or any(_takes_both(one) for one in queries)


def _takes_both(query: ast.FunctionDef) -> bool:
    return len(query.args.posonlyargs) + len(query.args.args) == 2


def _parsed(file: Path) -> ast.Module:
    try:
        text = file.read_text(encoding="utf-8")
    except IsADirectoryError:
        raise ValueError(f"job: {file} is a folder; name the Python file in it") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"job: {file} cannot be read: {why}; name a Python file") from None
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        said = getattr(error, "msg", error)
        raise ValueError(f"job: {file}{f', line {line}' if line else ''}: no Python ({said}); mend it") from None


def _declaration(tree: ast.Module) -> ast.Assign | ast.AnnAssign | None:
    """The first assignment to JOB."""
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
        raise ValueError(f"{where}: JOB is read and not run; write it as plain values, such as {EXAMPLE}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where}: JOB is no dictionary; write {EXAMPLE}")
    for name in value:
        if name not in KEYS:
            raise ValueError(f"{where}: JOB has no {name!r}{suggest(str(name), KEYS)}")
    return value


def _choice(
    path: str, declared: Mapping[str, Any], key: str, choices: tuple[str, ...], default: str | None
) -> str | None:
    value = declared.get(key, default)
    if value not in choices and value != default:
        raise ValueError(f"job: {path}: {key!r} is {value!r}, which is none of {', '.join(choices)}")
    return None if value is None else str(value)


def _arguments(path: str, declared: Mapping[str, Any]) -> dict[str, str]:
    given = declared.get("arguments", {})
    if not isinstance(given, dict) or not all(isinstance(name, str) and name.isidentifier() for name in given):
        raise ValueError(f'job: {path}: "arguments" is no dictionary of names and defaults, such as {{"window_s": 10}}')
    for name, value in given.items():
        if name in TOLD:
            raise ValueError(f"job: {path}: the argument {name} is what Faultline tells every job; rename it")
        if not isinstance(value, str | int | float):
            raise ValueError(f"job: {path}: the default of the argument {name} is {value!r}; give a text or a number")
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}


def modules_of(file: Path) -> dict[str, Path]:
    """A Python file and the modules in its folder that it imports, and those that they do, by name."""
    return _modules(file, _parsed(file))


def _modules(file: Path, tree: ast.Module) -> dict[str, Path]:
    found = {file.name: file}
    waiting = [tree]
    while waiting:
        for name in _imported(waiting.pop()):
            path = file.parent / f"{name}.py"
            if path.name not in found and path.is_file():
                found[path.name] = path
                waiting.append(_parsed(path))
    return found


def _imported(tree: ast.Module) -> set[str]:
    """First parts of the names of what is imported anywhere in a module."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names
