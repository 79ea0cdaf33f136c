"""Rewrite results of older formats for this version.

.faultline/venv/bin/python scripts/migrate.py PATH...

PATH is a results folder, a bundle (.tar.xz), or a file of records (.json, .json.gz). A record of schema 1 is
converted to the current schema if it is a control (run without a fault) without a recovery; any other is refused by
name. An attempt whose plan is older than schema 3 gets a plan made of its `attempt.json`, which suffices for judging.
Replaced files are kept in `superseded/` of the folder or bundle; a replaced file of records is kept next to it as
NAME.schema-1. A second call changes nothing. Stop experiments first.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "include"), str(ROOT)]

from pydantic import ValidationError

from faultline.experiment.attempt import Attempt
from faultline.experiment.attempt_plan import SCHEMA as PLAN_SCHEMA
from faultline.experiment.attempt_plan import AttemptPlan, Ordered, Places, PlannedEngine, Topic, topic_partitions
from faultline.experiment.config import parse_configuration
from faultline.records.bundle import SUFFIX, Member, read_bundle, sha256, write_bundle
from faultline.records.judge.rejudge import SUPERSEDED
from faultline.records.record import Record
from faultline.records.record_problems import content_problem
from faultline.records.renames import RENAMED_SCHEMA
from faultline.system.endpoints import Endpoints
from faultline.system.errors import ConfigError, FaultlineError
from faultline.system.files import make_folder, sync_folder

UNMEASURED = ("failed", "cancelled")


@dataclass(frozen=True)
class Change:
    """New content of the file `path` below a results folder. `kept`: where its old content is kept, if it has any."""

    path: str
    content: bytes
    kept: str
    how: str


def migrated_record(values: Mapping[str, Any]) -> Record | None:
    """Return the current record of a schema 1 record, or None for any other value.

    Raises ConfigError if later schemas define a figure or the status of this record differently.
    """
    if values.get("schema") != 1:
        return None
    metrics, fault = values.get("metrics") or {}, (values.get("config") or {}).get("fault", "none")
    parts = [metrics.get("recovery"), metrics.get("placebo"), *(metrics.get("recoveries") or [])]
    if any(value is not None for part in parts if part for value in part.values()):
        raise ConfigError(
            "metrics.recovery: got one of schema 1; expected a control run without a recovery; fix: measure it again"
        )
    if values.get("status") not in (*UNMEASURED, "valid") or (fault != "none" and values["status"] == "valid"):
        raise ConfigError(
            "status: got one by the rules of schema 1; expected a valid control run; fix: measure it again"
        )
    try:
        return Record.model_validate({**values, "schema": RENAMED_SCHEMA})
    except ValidationError as error:
        raise ConfigError(content_problem(error, "move it away")) from None


def migrated_plan(facts: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the `plan.json` of an attempt from before plan schema 3, or None for any other attempt.

    `facts`: its `attempt.json`. `before`: its `plan.json`, None if it has none.
    Raises ConfigError if this version refuses the configuration.
    """
    if "config" not in facts or (before or {}).get("schema", PLAN_SCHEMA - 1) >= PLAN_SCHEMA:
        return None
    config = parse_configuration(facts["config"])
    named = {one.name: facts[one.name] for one in fields(Ordered) if one.name in facts}
    unnamed = {"config_id": config.config_id, "repetition": 0, "series": "", "build": ""}
    kafka, services = facts.get("kafka") or {}, facts.get("services") or {}
    topics, partitions = facts.get("topics") or {}, topic_partitions(config)
    unread: dict[str, Any] = dict.fromkeys(("aim", "generator", "filling", "warmup_max_s"))
    unread |= {"program": {}, "companions": (), "tuples": {}, "gated": False}
    plan = AttemptPlan(
        **unread,
        order=Ordered(**{**unnamed, **named, "config": config.model_dump(mode="json")}),
        engine=PlannedEngine("", programs=str(facts.get("programs", ""))),
        endpoints=Endpoints(str(kafka.get("bootstrap", "")), "", "", "", "", "", hosts=facts.get("hosts") or {}),
        places=Places(instance=services.get("instance"), holds=services.get("holds") or {}),
        topics={role: Topic(name, partitions.get(role, config.partitions)) for role, name in topics.items()},
        seed=config.plan().seed,
        faults=config.planned_faults(),
        primed_batches=1,
        drained_batches=1,
        stop_s=config.kind.stop_s,
        method=config.kind.latency_method,
        not_measured=facts.get("not_measured") or {},
    )
    # The schema of the plan that it replaces, null if the attempt had none.
    return {**plan.as_mapping(), "migrated": {"schema": None if before is None else before.get("schema", 0)}}


def changes_of(paths: Iterable[str], read: Callable[[str], bytes], refused: list[str]) -> Iterator[Change]:
    """Yield the changed files of a results folder. `paths`: all its files; `refused` gains a line per refusal."""
    known = set(paths)
    for path in sorted(known):
        if not (path.startswith("records/") or (path.startswith("attempts/") and path.endswith("/attempt.json"))):
            continue
        top, folder, name = PurePosixPath(path).parts
        values = _object(read(path))
        try:
            if top == "records" and (record := migrated_record(values)) is not None:
                kept = f"{SUPERSEDED}/{folder}/{PurePosixPath(name).stem}.schema-1.json"
                yield Change(path, record.as_json().encode(), kept, "migrated from schema 1")
            elif top == "attempts":
                plan = str(PurePosixPath(path).with_name("plan.json"))
                before = _object(read(plan)) if plan in known else None
                if (made := migrated_plan(values, before)) is not None:
                    kept = f"{SUPERSEDED}/{PurePosixPath(made['order']['config_id']).name}/{folder}.plan.json"
                    how = f"made of attempt.json for plan schema {PLAN_SCHEMA}"
                    yield Change(plan, (json.dumps(made, indent=1) + "\n").encode(), kept, how)
        except ConfigError as error:
            refused.append(f"{path}: {error}")


def migrate_folder(root: Path, refused: list[str]) -> int:
    """Rewrite a results folder file by file; return the number of rewritten files."""
    records = [path for path in root.glob("records/*/*.json") if not path.name.startswith(".")]
    # Links and folders of other users are skipped.
    attempts = [path for path in root.glob("attempts/*/*.json") if Attempt(path.parent).is_own()]
    number = 0
    names = [path.relative_to(root).as_posix() for path in (*records, *attempts)]
    for change in changes_of(names, lambda name: (root / name).read_bytes(), refused):
        if (root / change.path).exists() and not _keep((root / change.path).read_bytes(), root / change.kept):
            refused.append(f"{change.path}: {change.kept} exists; expected none; fix: move it away")
            continue
        _write(root / change.path, change.content)
        number += 1
    return number


def migrate_bundle(path: Path, refused: list[str]) -> int:
    """Rewrite a bundle unless something in it is refused; return the number of rewritten files."""
    bundle, before, members = read_bundle(path), len(refused), {}
    changes = list(changes_of(bundle.files, bundle.files.__getitem__, refused))
    for name, listed in bundle.listing.files.items():
        members[name] = Member(name, bundle.files[name], listed.original, listed.how or "")
    for change in changes:
        old = members.get(change.path)
        if old is not None and members.setdefault(change.kept, replace(old, path=change.kept)).content != old.content:
            refused.append(f"{change.path}: {change.kept} exists; expected none; fix: make the bundle again")
        members[change.path] = Member(change.path, change.content, old and sha256(old.content), change.how)
    if not changes or len(refused) > before:
        return 0
    write_bundle(path, members.values())
    return len(changes)


def migrate_records(path: Path, refused: list[str]) -> int:
    """Rewrite a record or an array of records unless one is refused; return the number of rewritten records."""
    content, before, number = path.read_bytes(), len(refused), 0
    packed = path.suffix == ".gz"
    found = json.loads(gzip.decompress(content) if packed else content)
    made = []
    for values in found if isinstance(found, list) else [found]:
        try:
            record = migrated_record(values)
        except ConfigError as error:
            refused.append(f"{path}: {values.get('attempt')}: {error}")
            continue
        number += record is not None
        made.append(values if record is None else record.as_dict())
    if not number or len(refused) > before:
        return 0
    text = json.dumps(made if isinstance(found, list) else made[0], indent=2, ensure_ascii=False) + "\n"
    if not _keep(content, kept := path.with_name(f"{path.name}.schema-1")):
        raise ConfigError(f"{kept}: exists; expected none; fix: move it away")
    _write(path, gzip.compress(text.encode(), mtime=0) if packed else text.encode())
    return number


def migrate(path: Path, refused: list[str]) -> int:
    """Rewrite what `path` holds; return the number of rewritten files or records."""
    if path.is_dir():
        if not any((path / name).is_dir() for name in ("records", "attempts")):
            raise ConfigError(f"{path}: got a folder without records/ and attempts/; expected a results folder")
        return migrate_folder(path, refused)
    try:
        return migrate_bundle(path, refused) if path.name.endswith(SUFFIX) else migrate_records(path, refused)
    except (OSError, EOFError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: got {error}; expected a results folder, a bundle or records") from None


def _object(content: bytes) -> Mapping[str, Any]:
    """Return the JSON object in a file; empty for any other content, which the reader of the file refuses."""
    try:
        values = json.loads(content)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _keep(content: bytes, kept: Path) -> bool:
    """Write `content` to `kept` unless it is already there; return False if that file has other content."""
    if kept.exists():
        return kept.read_bytes() == content
    make_folder(kept.parent)
    _write(kept, content)
    return True


def _write(path: Path, content: bytes) -> None:
    """Replace `path` at once: after a crash it holds the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def main(arguments: list[str] | None = None) -> int:
    """Migrate each path; return 1 if something was refused, 2 for a path that holds no results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path)
    code = 0
    for path in parser.parse_args(arguments).paths:
        refused: list[str] = []
        try:
            number = migrate(path, refused)
        except FaultlineError as error:
            print(f"migrate: {error}", file=sys.stderr)
            code = 2
            continue
        for line in refused:
            print(f"migrate: {path}: {line}", file=sys.stderr)
        print(f"migrate: {path}: {number} rewritten, {len(refused)} refused")
        code = max(code, 1 if refused else 0)
    return code


if __name__ == "__main__":
    sys.exit(main())
