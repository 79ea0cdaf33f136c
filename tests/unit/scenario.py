"""Scenario of a synthetic attempt: planted values, resulting instants, and output of the processes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from faultline.experiment.config import Configuration
from faultline.system.measured_window import NS

T0_NS = 1_795_241_700_250_000_000


@dataclass(frozen=True)
class Scenario:
    """Planted values. Times in seconds; `catch` and `slow` count batches; `recovers` False means censored."""

    checkpoint_interval_s: float = 2.0
    rate: float = 200.0
    warmup_s: float = 6.0
    fault: bool = True
    phase: float = 0.1
    detection_s: float = 0.35
    redeploy_s: float = 3.2
    load_s: float = 0.4
    replay_s: float = 3.0
    catch: int = 2
    slow: int = 1
    recovers: bool = True
    nothing_to_load: bool = False
    lost: int = 0
    victims: tuple[str, ...] = ("executor",)
    action: str = "kill"
    commit_mode: str = "aligned"

    @property
    def configuration(self) -> Configuration:
        """Configuration of such a run."""
        values: dict[str, Any] = {
            "rate": self.rate,
            "warmup_s": self.warmup_s,
            "duration_s": self.duration_s,
            "checkpoint_interval_s": self.checkpoint_interval_s,
            "fault": "none",
            "workload": "word_count_python" if "python_worker" in self.victims else "word_count",
            "commit_mode": self.commit_mode,
        }
        if self.fault:
            extra = {"duration_s": self.detection_s} if self.action in ("pause", "delay", "cut") else {}
            extra |= {"delay_ms": 100} if self.action == "delay" else {}
            first = self.warmup_s + (self.baseline + 2) * self.checkpoint_interval_s
            values["fault_plan"] = {
                "faults": [
                    {"victim": victim, "action": self.action, "at_s": first + number * self.apart_s, **extra}
                    for number, victim in enumerate(self.victims)
                ]
            }
        return Configuration.model_validate(values)

    @property
    def baseline(self) -> int:
        """Number of bins of a baseline window."""
        return 4 if self.checkpoint_interval_s >= 5 else 10

    @property
    def lasts(self) -> bool:
        """Whether the injection is undone; the fault is not detected earlier."""
        return self.action in ("pause", "delay", "cut")

    def kills(self, role: str, *roles: str) -> bool:
        """Return whether the fault kills a process of one of `roles`."""
        return role in roles and not self.lasts

    def loads(self, role: str) -> bool:
        """Whether state is loaded again after the loss of such a process."""
        kept = self.nothing_to_load or self.lasts or self.commit_mode == "none"
        return not kept and role not in ("python_worker", "kafka")

    @property
    def apart_s(self) -> float:
        """Minimum time between faults: recovery, stability window and a margin."""
        late = self.detection_s + self.redeploy_s + self.load_s + self.replay_s
        return late + (self.catch + self.slow + 13) * self.checkpoint_interval_s + 12.0

    @property
    def duration_s(self) -> float:
        """Duration in whole intervals: baseline window, planted recovery and stability window."""
        after = max(32.0, self.apart_s) * len(self.victims)
        return self.checkpoint_interval_s * float(
            np.ceil(((self.baseline + 2) * self.checkpoint_interval_s + after) / self.checkpoint_interval_s)
        )


class Row(NamedTuple):
    """A batch: planned, committed, extra delay of its outputs, and start of a new state epoch, in ns."""

    planned: int
    committed: int
    extra: int
    lineage: int = 0
    begun: int | None = None


@dataclass(frozen=True)
class Hit:
    """Planted instants of a fault in ns; `row`: index of the delayed batch; `start`: what was restarted."""

    number: int
    role: str
    row: int
    t0: int
    t2: int
    start: int
    t3: int
    t4: int
    t5: int
    t6: int
    t7: int


def ns(seconds: float) -> int:
    """Convert seconds to nanoseconds, in whole milliseconds."""
    return round(seconds * 1000) * 1_000_000


def grain(wall_ns: float) -> int:
    """Round to whole milliseconds, like logs and REST."""
    return int(wall_ns) // 1_000_000 * 1_000_000


def spark_time(wall_ns: int, zone: str = "GMT") -> str:
    """Format a UTC time with milliseconds like Spark."""
    moment = datetime.fromtimestamp(wall_ns // NS, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ns % NS // 1_000_000:03d}{zone}"


CORES = {"driver": 0.25, "executors": 0.4, "kafka": 0.1, "generator": 0.05, "python_workers": 0.0}


class Left:
    """Files of an attempt with planned batches and faults, without topics."""

    s: Scenario
    batches: list[Row]
    hits: list[Hit]
    end_ns: int

    @cached_property
    def recorder(self) -> list[dict[str, Any]]:
        """Return one sample per second of every process and of Spark's executors."""
        lines: list[dict[str, Any]] = [{"kind": "start", "wall_ns": T0_NS - 12 * NS}]
        for wall in range(T0_NS - 12 * NS, self.end_ns + 4 * NS, NS):
            lines += [self._process(wall, *row) for row in self._living(wall)]
            if sample := self._rest(wall):
                lines.append(sample)
        return [*lines, {"kind": "stop", "wall_ns": self.end_ns + 4 * NS}]

    def _living(self, wall: int) -> list[tuple[str, int, int]]:
        """Return (role, pid, born) of the processes alive at an instant."""
        born = T0_NS - 30 * NS
        living = [(role, 100 + index, born) for index, role in enumerate(CORES) if role != "python_workers"]
        if not self.hits or wall < self.hits[0].t0:
            living.append(("executors", 200, born))
        elif wall > self.hits[0].t2 + NS:
            living.append(("executors", 300, self.hits[0].t2 + NS))
        return living

    def _process(self, wall: int, role: str, pid: int, born: int) -> dict[str, Any]:
        share = CORES[role] / (2 if role == "executors" else 1)
        return {
            "kind": "proc",
            "wall_ns": wall,
            "role": role,
            "pid": pid,
            "create_time": born / NS,
            "cpu_s": share * (wall - born) / NS,
            "rss_bytes": 100_000_000,
            "final": False,
        }

    def _rest(self, wall: int) -> dict[str, Any] | None:
        """Return Spark's executor list at an instant; empty while no driver answers."""
        app, began, living = 1, T0_NS - 20 * NS, {"driver": 0, "0": 0, "1": 0}
        removed: dict[str, int] = {}
        holder = "0"
        for hit in self.hits:
            if self.s.kills(hit.role, "driver"):
                if hit.t0 <= wall < hit.start + NS:
                    return None
                if wall >= hit.start:
                    app, began, living, removed = app + 1, hit.start, {"driver": 0, "0": 0, "1": 0}, {}
                    holder = "0"
            elif self.s.kills(hit.role, "executor", "worker") and wall > hit.t2:
                removed[holder] = hit.t2
                holder = str(len(living) - 1)
                living[holder] = hit.t2 + 3 * NS
        gc = max(0.0, (wall - T0_NS) / NS) * 10
        executors = [
            {"id": name, "addTime": spark_time(added or began), "totalGCTime": gc} for name, added in living.items()
        ]
        for executor in executors:
            if executor["id"] in removed:
                executor["removeTime"] = spark_time(removed[executor["id"]])
        return {"kind": "executors", "app_id": f"app-{app}", "wall_ns": wall, "executors": executors}

    @cached_property
    def logs(self) -> dict[str, list[str]]:
        """Return log lines by application/executor; partition n has its state on executor n."""
        lines: dict[str, list[str]] = {}
        app, holder, newest = 1, "0", 1
        rows = [row for row in self.batches if row.begun is None] if self.s.commit_mode == "none" else self.batches
        struck = {hit.row: hit for hit in self.hits}
        for number, row in enumerate(rows):
            hit = struck.get(number)
            if hit is not None:
                if self.s.kills(hit.role, "driver"):
                    app, holder, newest = app + 1, "0", 1
                elif self.s.kills(hit.role, "executor", "worker"):
                    newest += 1
                    holder = "" if self.s.nothing_to_load else str(newest)
            for partition, executor in enumerate((holder, "1")):
                if not executor:  # no process logs partition 0
                    continue
                own = lines.setdefault(f"app-{app}/{executor}", [])
                tid, at = 10 * number + partition, row.planned + (row.committed - row.planned) // 4
                if hit is None:
                    own += task_lines(tid, partition, number, at, at + 2_000_000, real=number == 0)
                else:
                    own += self._after(hit, tid, partition, number)
        return lines

    def _after(self, hit: Hit, tid: int, partition: int, number: int) -> list[str]:
        """Return the log of the delayed batch's tasks, including the one before the fault."""
        if self.s.commit_mode == "none" or self.s.kills(hit.role, "driver"):
            loaded = hit.t3 + (hit.t4 - hit.t3) // (partition + 1)
            return task_lines(tid, partition, number, hit.t3, loaded, real=True)
        if partition == 0:
            return task_lines(tid, 0, number, hit.t3, hit.t4, real=True) if self.s.loads(hit.role) else []
        before = hit.t0 - NS // 100
        found = task_lines(tid, 1, number, before, before + 2_000_000, real=False)
        if not self.s.loads(hit.role) and not self.s.lasts:
            found += task_lines(9000 + number, 1, number, hit.t3, None, real=False)
        return found

    @cached_property
    def driver_log(self) -> list[str]:
        """Return the driver's lines about each fault, and irrelevant lines."""
        lines = [f"{spark_time(T0_NS, 'Z')} INFO [main] SparkContext: Running", "a line of the program itself"]
        for hit in self.hits:
            if self.s.lasts:
                continue
            if hit.role == "python_worker":
                text = f"Lost task 0.0 in stage {hit.row}.0 (TID 4) (127.0.0.1 executor 0): SparkException: crashed"
                lines.append(f"{spark_time(hit.t2, 'Z')} WARN [task-result-getter-0] TaskSetManager: {text}")
            if hit.role == "kafka":
                text = "[AdminClient clientId=adminclient-1] Node 1 disconnected."
                lines.append(f"{spark_time(hit.t2, 'Z')} INFO [kafka-admin-client | a-1] NetworkClient: {text}")
        return lines

    @cached_property
    def supervisor(self) -> list[dict[str, Any]]:
        """Return the workload supervisor's journal."""
        lines: list[dict[str, Any]] = [{"event": "start", "incarnation": 0, "pid": 100, "wall_ns": T0_NS - 30 * NS}]
        incarnation = 0
        for hit in self.hits:
            died = self.s.kills(hit.role, "driver")
            if died:
                lines.append(
                    {"event": "exit", "incarnation": incarnation, "returncode": -9, "signal": 9, "wall_ns": hit.t2}
                )
            if self.s.commit_mode == "none":
                begun = {"event": "lineage", "lineage": hit.number + 1, "reason": "lost", "wall_ns": hit.start}
                lines.append(begun)
            if died:
                incarnation += 1
                lines.append({"event": "start", "incarnation": incarnation, "pid": 101, "wall_ns": hit.start})
        return lines

    @cached_property
    def services(self) -> list[dict[str, Any]]:
        """Return the services' journal: a killed service starts a second after detection."""
        names = {"kafka": "kafka", "worker": "spark-worker-1"}
        return [
            {"event": "started", "service": names[hit.role], "pid": 500, "waited_s": 0.5, "wall_ns": hit.t2 + NS}
            for hit in self.hits
            if hit.role in names and not self.s.lasts
        ]

    def _undone(self, hit: Hit) -> list[dict[str, Any]]:
        return [{"event": "undone", "fault": hit.number, "undo": "SIGCONT", "error": None, "wall_ns": hit.t2}]

    @property
    def victims(self) -> list[dict[str, Any]]:
        """Return the fault scheduler's line about each victim."""
        found, identity, newest, app = [], "0", 1, 1
        for hit in self.hits:
            command = ["java", "CoarseGrainedExecutorBackend", "--executor-id", identity, "--app-id", f"app-{app}"]
            line: dict[str, Any] = {
                "fault": hit.number,
                "pid": 200 + hit.number,
                "create_time": T0_NS / NS - 30,
                "role": hit.role,
                "command": command if hit.role == "executor" else [hit.role],
                "host": "",
                "node": None,
                "executors": [identity] if hit.role == "worker" else None,
            }
            if self.s.action in ("delay", "reset", "cut"):
                line |= {"pid": None, "role": "kafka_connection", "command": None}
            found.append(line)
            if hit.role in ("executor", "worker"):
                newest += 1
                identity = str(newest)
            elif hit.role == "driver":
                identity, newest, app = "0", 1, app + 1
        return found


def task_lines(tid: int, partition: int, version: int, start: int, loaded: int | None, *, real: bool) -> list[str]:
    """Return an executor's log of one task; it loads state unless `loaded` is None."""
    thread = f"Executor task launch worker for task {partition}.0 in stage {version}.0 (TID {tid})"
    store = f"StateStoreProviderId[ storeId=StateStoreId[ operatorId=0, partitionId={partition}, storeName=default ] ]"
    lines = [(start, "Executor", f"Running task {partition}.0 in stage {version}.0 (TID {tid})")]
    if loaded is not None:
        lines.append((start, f"RocksDB {store}", f"Loading {version} with stateStoreCkptId: "))
        if real:
            lines.append((start, f"RocksDBFileManager {store}", "Copied 1 files (9 bytes) from DFS to local"))
        lines.append((loaded, f"RocksDB {store}", f"Loaded {version}"))
        lines.append((loaded, f"RocksDBFileManager {store}", "Loaded change log reader version 1"))
        saved = f"Saved checkpoint file for version {version + 1} checkpointUniqueId: "
        lines.append((loaded, f"RocksDBFileManager {store}", saved))
    return [f"{spark_time(wall, 'Z')} INFO [{thread}] {logger}: {text}" for wall, logger, text in lines]
