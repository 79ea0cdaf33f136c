"""Temporary PostgreSQL server."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from faultline.system.settings import HOST
from tests.support.installation import free_ports
from tests.support.needs import needed

SECRET = "pass%40word"  # contains "%", which configuration files would interpolate


@dataclass(frozen=True)
class Cluster:
    """A PostgreSQL server in a temporary folder."""

    programs: Path
    folder: Path
    port: int

    @property
    def address(self) -> str:
        return f"postgresql://faultline:{SECRET}@{HOST}:{self.port}/postgres"

    def call(self, program: str, *arguments: str, **more: str) -> str:
        # PostgreSQL refuses to run as root.
        account = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        command = [*account, str(self.programs / program), *arguments]
        environment = {**os.environ, "LC_ALL": "C", **more}
        done = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def query(self, statement: str) -> str:
        arguments = ["-h", HOST, "-p", str(self.port), "-U", "faultline", "-d", "postgres", "-Atc", statement]
        return self.call("psql", *arguments, PGPASSWORD="pass@word").strip()


@contextmanager
def new_cluster() -> Iterator[Cluster]:
    """Yield a running server, and remove it with its data."""
    programs = Path(needed("initdb")).parent
    folder = Path(tempfile.mkdtemp(prefix="faultline-pg-"))
    (folder / "password").write_text("pass@word")
    if os.getuid() == 0:
        account = pwd.getpwnam("postgres")
        for path in (folder, folder / "password"):
            os.chown(path, account.pw_uid, account.pw_gid)
    made = Cluster(programs, folder, free_ports(1)[0])
    data = str(folder / "data")
    login = ("-U", "faultline", "-A", "scram-sha-256", f"--pwfile={folder}/password")
    made.call("initdb", "-D", data, *login, "-E", "UTF8")
    options = f"-p {made.port} -c listen_addresses={HOST} -k {folder}"
    made.call("pg_ctl", "-D", data, "-o", options, "-l", str(folder / "log"), "-w", "start")
    try:
        yield made
    finally:
        made.call("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder)
