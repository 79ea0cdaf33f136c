"""Generated parts of the documentation: tables from the models, registries and command-line definitions.

.faultline/venv/bin/python scripts/reference.py    rewrites the parts in place

A part stands in one document, between two comment lines with its name. Its texts are the descriptions in the code.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "include"), str(ROOT)]

import typer
from pydantic import BaseModel

from benchmarks.catalogue import BENCHMARKS
from fault.fault_spec import FaultSpec
from fault.identity import VICTIM_PHRASES, VICTIMS
from fault.registry import ACTIONS
from faultline.cli.main import app
from faultline.engines.registry import ENGINES
from faultline.experiment.axes import axis_text
from faultline.experiment.common_parameters import CommitMode, limits
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.decide import Decide
from faultline.experiment.matrices import MATRICES
from faultline.experiment.workloads.known_truth_script import Script
from faultline.experiment.workloads.registry import WORKLOADS, own_fields, owners
from faultline.experiment.workloads.topology_rules import TopologyRules
from faultline.records.catalogue import METRICS
from faultline.records.definitions import DEFINITIONS, definition_of
from faultline.records.judge.validity import RULES
from faultline.system.errors import ConfigError
from faultline.system.text import pluralize


def table(head: str, rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    """Return a Markdown table; `head` holds the column names, separated by `|`."""
    names = [name.strip() for name in head.split("|")]
    lines = [tuple(names), ("---",) * len(names), *rows]
    return "\n".join(f"| {' | '.join(_cell(one) for one in row)} |" for row in lines)


def parameter_table(model: type[BaseModel]) -> str:
    """Return a table with name, default, limits and meaning of every field of a model."""
    rows = []
    for name, field in model.model_fields.items():
        default = "(derived)" if name == "fault_at_s" else "(empty)" if field.default is None else _text(field.default)
        rows.append((f"`{name}`", default, _values(name, model), _meaning(name, str(field.description))))
    return table("parameter | default | values | meaning", rows)


def default_table() -> str:
    """Return a table of the defaults that each workload changes."""
    rows = []
    for name, workload in WORKLOADS.items():
        plain = workload.defaults({})
        if "preloaded_state" not in workload.capabilities:
            plain = {**plain, "state_mb": 0}
        rows.append((f"`{name}`", _settings(plain)))
        if "source" in workload.parameters.model_fields:
            through_kafka = {**workload.defaults({"source": "kafka"}), "state_mb": 0}
            rows.append((f"`{name}` with `source=kafka`", _settings(through_kafka)))
    return table("workload | changed defaults", [row for row in rows if row[1]])


def workload_table() -> str:
    """Return a table of all workloads: purpose, latency method and own parameters."""
    own = own_fields()
    rows = []
    for name, one in WORKLOADS.items():
        mine = ", ".join(f"`{key}`" for key in own if name in owners(key)) or "-"
        engine = ENGINES.of_values({"workload": name})
        others = (one.name for one in ENGINES.by_name.values() if name in (one.capabilities.workloads or ()))
        engines = (engine.name, *others)
        modes = _commit_modes(one, engine.capabilities.commit_modes)
        rows.append((f"`{name}`", _first(one), ", ".join(engines), f"`{one.latency_method}`", modes, mine))
    return table("workload | purpose | engines | latency method | commit modes (first engine) | own parameters", rows)


def victim_table() -> str:
    """Return a table of the victims, and of the actions that apply to each."""
    rows = []
    for name, text in VICTIM_PHRASES.items():
        actions = ", ".join(f"`{key}`" for key, action in ACTIONS.items() if name in action.targets)
        rows.append((f"`{name}`", text, actions))
    return table("victim | process | actions", rows)


def action_table() -> str:
    """Return a table of all fault actions: victims, parameters, their values in the short form `fault=…`, effect."""
    rows = []
    for name, action in ACTIONS.items():
        targets = "all" if action.targets == VICTIMS else ", ".join(f"`{target}`" for target in action.targets)
        taken = ", ".join(
            f"`{one.name}`{'' if one.default is None or isinstance(one.default, str) else f' ({one.default:g})'}"
            f"{'' if one.required else ' (optional)'}"
            for one in action.parameters
        )
        rows.append((f"`{name}`", targets, taken or "-", action.does))
    return table("action | victims | parameters (short form) | effect", rows)


def attribute_table(kind: type[Any], head: str) -> str:
    """Return a table of a dataclass's fields: default, and meaning from the section Attributes of the docstring."""
    meanings = _attributes(kind)
    rows = []
    for one in fields(kind):
        default = "" if repr(one.default).startswith("<") else "-" if one.default is None else _text(one.default)
        rows.append((f"`{one.name}`", default or "-", meanings[one.name]))
    return table(f"{head} | default | meaning", rows)


def matrix_table() -> str:
    """Return a table with axes and purpose of every matrix."""
    rows = [
        (f"`{name}`", ", ".join(f"`{axis}`" for axis in spec.axes) or "named in `axes`", spec.text)
        for name, spec in MATRICES.items()
    ]
    return table("matrix | axes | purpose", rows)


def preset_table() -> str:
    """Return a table with axes and size of every preset of every matrix."""
    rows = []
    for name, spec in MATRICES.items():
        for preset in spec.presets:
            matrix = spec.preset_matrix(preset)
            varied = [f"`{axis}` {axis_text(values)}" for axis, values in matrix.axes.items() if len(values) > 1]
            size = pluralize(len(matrix.cells("s")), "experiment")
            what = "; ".join(varied) or "one configuration"
            rows.append((f"`{name}`", f"`{preset}`", what, f"{len(matrix.configurations())}, {size}"))
    return table("matrix | preset | axes | configurations, size", rows)


def figure_table() -> str:
    """Return a table of all figures of a record: path, unit, better direction and definition."""
    rows, seen = [], set()
    for one in METRICS:
        key, text = definition_of(one.key)
        if key not in seen:
            rows.append((f"`{key}`", one.unit or "-", one.better or "-", text))
        seen.add(key)
    rows += [(f"`{key}`", "-", "-", text) for key, text in DEFINITIONS.items() if key not in seen]
    return table("path | unit | better | definition", rows)


def rule_table() -> str:
    """Return a table of all validity rules: reason code, status, condition."""
    rows = [(f"`{rule.code}`", f"`{rule.status}`", rule.condition) for rule in RULES]
    return table("reason code | status | condition", rows)


def benchmark_table() -> str:
    """Return a table of the benchmarks of Faultline itself."""
    return table("benchmark | measures", [(f"`{name}`", _module_text(module)) for name, module in BENCHMARKS.items()])


def command_sections() -> str:
    """Return a section per visible command with its help text, arguments and options."""
    parts = []
    for path, command in _commands(typer.main.get_command(app), "./faultline"):
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        usage = " ".join([path, *(_argument(one) for one in arguments)])
        rows = []
        for one in command.params:
            if getattr(one, "hidden", False):
                continue
            name = _argument(one) if one in arguments else "/".join((*one.opts, *_negations(one)))
            required = " Required." if one.required and one not in arguments else ""
            rows.append((f"`{name}`", f"{one.help or ''}{required}"))
        body = [f"### `{path}`", "", *([f"`{usage}`", ""] if arguments else []), *_help(command.help or "")]
        if rows:
            body += ["", table("argument or option | meaning", rows)]
        parts.append("\n".join(body))
    return "\n\n".join(parts)


# Each part: its document under docs/, and what generates it.
PARTS: Mapping[str, tuple[str, Callable[[], str]]] = {
    "commands": ("reference/commands.md", command_sections),
    "benchmarks": ("reference/commands.md", benchmark_table),
    "parameters": ("reference/parameters.md", lambda: parameter_table(Configuration)),
    "defaults": ("reference/parameters.md", default_table),
    "workloads": ("reference/workloads.md", workload_table),
    "topology": ("reference/workloads.md", lambda: parameter_table(TopologyRules)),
    "truth": ("reference/workloads.md", lambda: attribute_table(Script, "key")),
    "victims": ("reference/faults.md", victim_table),
    "actions": ("reference/faults.md", action_table),
    "fault": ("reference/faults.md", lambda: attribute_table(FaultSpec, "key")),
    "matrices": ("reference/matrices.md", matrix_table),
    "presets": ("reference/matrices.md", preset_table),
    "decide": ("reference/matrices.md", lambda: attribute_table(Decide, "key")),
    "figures": ("reference/metrics.md", figure_table),
    "rules": ("explanation/validity.md", rule_table),
}


def made() -> dict[str, str]:
    """Return the text of every part, by name."""
    return {name: make() for name, (_, make) in PARTS.items()}


def replace_part(text: str, name: str, part: str) -> str:
    """Return a document with one part replaced. Raises ValueError if the document has no place for it."""
    begin, end = f"<!-- {name}: generated by scripts/reference.py -->", f"<!-- end of {name} -->"
    head, found, rest = text.partition(begin)
    _, ended, tail = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"{name}: no place in the document; fix: write {begin} and {end} around it")
    return f"{head}{begin}\n\n{part}\n\n{end}{tail}"


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (full name, command) of each visible command, including those of groups."""
    for name, one in getattr(command, "commands", {}).items():
        if not one.hidden:
            yield from _commands(one, f"{path} {name}")
    if not hasattr(command, "commands"):
        yield path, command


def _argument(one: Any) -> str:
    name = one.metavar or one.name.upper()
    if one.nargs == -1 and "…" not in name:
        name = f"{name}…"
    return name if one.required or name.startswith("[") else f"[{name}]"


def _negations(one: Any) -> list[str]:
    """Return the `--no-…` form of an option, unless that is the default."""
    return list(one.secondary_opts) if one.default is True else []


def _help(text: str) -> list[str]:
    """Return the lines of a help text by paragraph; an example becomes a code block."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        text = " ".join(paragraph.split())
        before, found, example = text.partition(": ./faultline ")
        if found and "`" not in example:
            lines += [f"{before}:", "", f"    ./faultline {example}", ""]
        else:
            lines += [*textwrap.wrap(text, 100, break_on_hyphens=False), ""]
    return lines[:-1]


def _first(item: object) -> str:
    return " ".join((inspect.getdoc(item) or "").split("\n\n")[0].split())


def _attributes(kind: type[Any]) -> dict[str, str]:
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    found = re.findall(r"(?ms)^    (\w+): (.*?)(?=^    \w+: |^\S|\Z)", section)
    return {name: " ".join(text.split()) for name, text in found}


def _module_text(module: str) -> str:
    """Return the first line of the module of a benchmark."""
    path = ROOT / "benchmarks" / f"{module.replace('.', '/')}.py"
    return str(ast.get_docstring(ast.parse(path.read_text()))).splitlines()[0]


def _commit_modes(workload: Any, known: Set[str]) -> str:
    """Return the commit modes, of those in `known`, that a configuration of the workload accepts."""
    usual = {"fault": "none", "checkpoint_interval_s": 10.0}
    own = {"late": 0.0, "job": "/job.py", "application": "/program.py", "truth": {}}
    mine = {key: value for key, value in own.items() if key in workload.parameters.model_fields}
    accepted = []
    for mode in (one for one in get_args(CommitMode) if one in known):
        try:
            parse_configuration({"workload": workload.name, **usual, **mine, "commit_mode": mode})
        except ConfigError as error:
            if not str(error).startswith("commit_mode"):
                raise
        else:
            accepted.append(f"`{mode}`")
    return "all" if len(accepted) == len(known) else ", ".join(accepted)


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"`{key}={value:g}`" if isinstance(value, float) else f"`{key}={value}`" for key, value in values.items()
    )


def _meaning(name: str, description: str) -> str:
    return "Fault action; see [actions](faults.md#actions)." if name == "fault_action" else description


def _values(name: str, model: type[BaseModel]) -> str:
    field = model.model_fields[name]
    choices = [value for value in get_args(field.annotation) if isinstance(value, str)]
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    if field.annotation is bool:
        return "true, false"
    numeric = any(kind in (int, float) for kind in (field.annotation, *get_args(field.annotation)))
    if any(get_origin(kind) is dict for kind in get_args(field.annotation)):
        return "object"
    return limits(name, model) or ("number" if numeric else "text")


def _text(value: object) -> str:
    if value == "":
        return "(empty)"
    return f"{value:g}" if isinstance(value, float) else f"`{value}`" if isinstance(value, str) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for part_name, part in made().items():
        document = ROOT / "docs" / PARTS[part_name][0]
        document.write_text(replace_part(document.read_text(), part_name, part))
