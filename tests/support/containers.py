"""docker-compose.yaml under podman with runc, with temporary storage, network and images.

Images come from debootstrap instead of a registry, tagged with the names in Dockerfile and compose file. Podman 4.3
does not wait until a service is healthy, and without systemd it schedules no health checks. `up` therefore does what
Docker Compose does: it starts each service when its dependencies are healthy or completed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import yaml

from faultline.system.settings import ROOT
from faultline.system.waiting import wait_until
from tests.support.needs import needed

FILE = ROOT / "docker-compose.yaml"
PODMAN_COMPOSE = "podman-compose==1.6.0"
SUITE, MIRROR = "bookworm", "http://deb.debian.org/debian"
PACKAGES = "ca-certificates,python3,python3-venv"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# Bit of the capability to raise limits such as RLIMIT_NICE.
_SYS_RESOURCE = 1 << 24
_CHECK_EVERY_S = 0.5
# Entry point for Debian's PostgreSQL; on the first start it initializes the database like the official image.
START = """\
#!/bin/sh
set -eu
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
export PGDATA=/var/lib/postgresql/data
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    (umask 077; echo "$POSTGRES_PASSWORD" >/tmp/password)
    initdb --username="$POSTGRES_USER" --auth=scram-sha-256 --auth-local=trust --pwfile=/tmp/password --encoding=UTF8
    rm /tmp/password
    pg_ctl start -w -o "-c listen_addresses=''"
    createdb --host=/var/run/postgresql --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl stop -w
fi
exec "$@"
"""
POSTGRES = """\
FROM {base}
RUN apt-get update && apt-get install --yes --no-install-recommends postgresql && rm -rf /var/lib/apt/lists/* \\
    && install --directory --owner=postgres /var/lib/postgresql/data
COPY --chmod=755 start /usr/local/bin/start
ENV PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/bin:/bin
USER postgres
ENTRYPOINT ["/usr/local/bin/start"]
"""


def require_podman() -> None:
    """Skip the test if containers cannot run."""
    if os.geteuid() != 0:
        pytest.skip("containers: podman needs root here; run it as root")
    for program in ("podman", "runc", "debootstrap", "catatonit"):
        needed(program)


@dataclass(frozen=True)
class Containers:
    """The services of docker-compose.yaml under podman. `cache` is kept after the test, `folder` is removed."""

    cache: Path
    folder: Path
    network: str

    # ---- podman ----

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "DISABLE_HC_SYSTEMD": "true",
        }

    def call(self, *command: str, timeout_s: float = 900) -> str:
        """Return the output of a command in the network namespace of the containers."""
        # No separate mount namespace, since the next call must see podman's mounts.
        inside = ["nsenter", f"--net=/run/netns/{self.network}", *command]
        return run(*inside, environment=self.environment, timeout_s=timeout_s)

    def podman(self, *arguments: str, timeout_s: float = 900) -> str:
        return self.call("podman", *arguments, timeout_s=timeout_s)

    def compose(self, *arguments: str, timeout_s: float = 900) -> str:
        program = str(self.cache / "podman-compose" / "bin" / "podman-compose")
        file = str(self.folder / FILE.name)
        secret = str(self.folder / "secrets" / "env")
        return self.call(program, "--file", file, "--env-file", secret, *arguments, timeout_s=timeout_s)

    def python(self, program: str, *arguments: str, timeout_s: float) -> Any:
        """Run a Python program in the scheduler's container; return the JSON on its last line."""
        output = self.podman("exec", self.name("airflow-scheduler"), "python", "-P", "-c", program, *arguments,
                             timeout_s=timeout_s)  # fmt: skip
        return json.loads(output.splitlines()[-1])

    def name(self, service: str) -> str:
        """Return the name of a service's container."""
        return f"faultline_{service}_1"

    # ---- start and stop ----

    def make(self) -> None:
        """Create settings, secrets and images; the cache keeps base image and podman-compose."""
        write_settings(self.folder)
        base = make_base(self.cache)
        make_compose(self.cache)
        run(str(ROOT / "docker" / "make-secrets"), environment={**os.environ, "FAULTLINE_SECRETS": self._secrets})
        (self.folder / FILE.name).write_text(yaml.safe_dump(self.adapted(), sort_keys=False))
        python = re.search(r"^FROM (\S+)$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
        assert python is not None
        changes = [f"--change=ENV {name}={CERTIFICATES}" for name in ("PIP_CERT", "SSL_CERT_FILE")]
        changes.append("--change=ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin")
        image = f"docker.io/library/{python[1]}"
        self._outside("podman", "import", *changes, str(base), image)
        context = self.folder / "postgres"
        context.mkdir()
        (context / "Containerfile").write_text(POSTGRES.format(base=image))
        (context / "start").write_text(START)
        postgres = yaml.safe_load(FILE.read_text())["services"]["postgres"]["image"]
        self._outside("podman", "build", "--network=host", "--tag", f"docker.io/library/{postgres}", str(context))
        # Like `docker compose build`, outside the namespace, where packages and jars can be fetched.
        program = str(self.cache / "podman-compose" / "bin" / "podman-compose")
        options = ["--file", str(self.folder / FILE.name), "--env-file", str(self.folder / "secrets" / "env")]
        self._outside(program, *options, "--podman-build-args=--network=host", "build")

    def up(self) -> None:
        """Start the stopped services in order of their dependencies."""
        services = self.adapted()["services"]
        waits = {name: one.get("depends_on", {}) for name, one in services.items()}
        for name in TopologicalSorter(waits).static_order():
            for other, wait in waits[name].items():
                self.await_condition(other, wait["condition"])
            self.compose("up", "--detach", "--no-deps", "--no-recreate", name)
        for name, one in services.items():
            if "healthcheck" in one:
                self.await_condition(name, "service_healthy")

    def await_condition(self, service: str, condition: str) -> None:
        """Wait for a condition. Raises InfrastructureError with the end of the container's log after a timeout."""
        if condition == "service_completed_successfully":
            code = self.podman("wait", self.name(service), timeout_s=600).strip()
            assert code == "0", f"{service} ended with {code}\n{self.log(service)}"
            return
        wait_until(
            lambda: self.healthy(service),
            timeout_s=240,
            every_s=_CHECK_EVERY_S,
            what=lambda: f"{service}: healthy; the end of its log:\n{self.log(service)}",
        )

    def healthy(self, service: str) -> bool:
        try:
            self.podman("healthcheck", "run", self.name(service), timeout_s=60)
        except AssertionError:
            return False
        return True

    def log(self, service: str) -> str:
        return self.podman("logs", "--tail", "40", self.name(service))

    def down(self) -> None:
        """Remove containers and volumes, like the user's `docker compose down --volumes`."""
        self.compose("down", "--volumes", timeout_s=300)

    def adapted(self) -> dict[str, Any]:
        """Return the compose file for podman-compose 1.6 and podman 4.3, with absolute paths."""
        document: dict[str, Any] = yaml.safe_load(FILE.read_text())
        for service in document["services"].values():
            # Startup checks and namespaces by service name are unsupported.
            service.get("healthcheck", {}).pop("start_interval", None)
            if service.get("pid", "").startswith("service:"):
                service["pid"] = f"container:{self.name(service['pid'].partition(':')[2])}"
            if "ulimits" in service and not may_raise_limits():
                # In podman, an unprivileged user keeps this capability; in Docker it does not.
                service["cap_add"] = ["SYS_NICE"]
                del service["ulimits"]
            if "build" in service:
                service["build"]["context"] = str(ROOT)
            for mount in service.get("volumes", []):
                if isinstance(mount, dict) and mount["type"] == "bind":
                    mount["source"] = str((ROOT / mount["source"]).resolve())
        return document

    @property
    def _secrets(self) -> str:
        return str(self.folder / "secrets")

    def _outside(self, *command: str) -> str:
        """Run a command in the host's network, where Debian and the package index are reachable."""
        return run(*command, environment=self.environment, timeout_s=1800)

    def leftovers(self) -> list[str]:
        """Return all containers and volumes."""
        listed = [*self.podman("ps", "--all", "--format", "{{.Names}}").splitlines()]
        return [*listed, *self.podman("volume", "ls", "--format", "{{.Name}}").splitlines()]

    def remove(self) -> None:
        """Remove all containers, volumes, images and the network. Never raises."""
        for arguments in (["rm", "--all", "--force", "--time=5"], ["volume", "rm", "--all", "--force"],
                          ["rmi", "--all", "--force"]):  # fmt: skip
            subprocess.run(["podman", *arguments], env=self.environment, capture_output=True, check=False, timeout=300)
        graph = self.folder / "storage"
        subprocess.run(["umount", "-q", str(graph / "overlay")], capture_output=True, check=False, timeout=60)
        subprocess.run(["ip", "netns", "delete", self.network], env=self.environment, check=False, timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def new_containers(cache: Path, folder: Path) -> Iterator[Containers]:
    """Yield containers that are built but not started, and remove them afterwards."""
    cache.mkdir(parents=True, exist_ok=True)
    made = Containers(cache, folder, f"faultline-{secrets.token_hex(4)}")
    run("ip", "netns", "add", made.network, environment=made.environment)
    try:
        made.call("ip", "link", "set", "lo", "up")
        made.make()
        yield made
    finally:
        made.remove()


def write_settings(folder: Path) -> None:
    """Write the settings of podman: runc, storage in `folder`, and limits that this machine permits."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    (folder / "containers.conf").write_text(
        f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=30000:30000"]\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/storage"\nrunroot = "{folder}/run"\n'
    )


def may_raise_limits() -> bool:
    """Return whether root may raise RLIMIT_NICE here."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^CapEff:\s+(\w+)$", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) & _SYS_RESOURCE)


def make_base(cache: Path) -> Path:
    """Return an archive of Debian with Python, and with this machine's certificates and apt settings."""
    certificates = sorted(Path("/usr/local/share/ca-certificates").glob("*.crt"))
    apt = run("apt-config", "dump", "Acquire")
    facts = [SUITE, MIRROR, PACKAGES, apt, *(one.read_text() for one in certificates)]
    file = cache / f"base-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]}.tar"
    if file.exists():
        return file
    root, part = cache / "root", file.with_suffix(".part")
    shutil.rmtree(root, ignore_errors=True)
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root), MIRROR]
    run(*command, environment={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}, timeout_s=900)
    own = root / "usr/local/share/ca-certificates"
    own.mkdir(parents=True, exist_ok=True)
    for one in certificates:
        shutil.copy(one, own)
    run("chroot", str(root), "/usr/sbin/update-ca-certificates")
    for name in ("python", "python3"):
        (root / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
    (root / "etc/apt/apt.conf.d/99machine").write_text(apt)
    suites = ((MIRROR, SUITE), (MIRROR, f"{SUITE}-updates"), (f"{MIRROR}-security", f"{SUITE}-security"))
    (root / "etc/apt/sources.list").write_text("".join(f"deb {where} {what} main\n" for where, what in suites))
    run("chroot", str(root), "apt-get", "clean")
    run("tar", "-C", str(root), "--exclude=./dev/*", "--one-file-system", "-cf", str(part), ".")
    shutil.rmtree(root)
    part.rename(file)
    return file


def make_compose(cache: Path) -> None:
    """Install podman-compose in a virtual environment."""
    folder = cache / "podman-compose"
    stamp = folder / "made-of"
    if stamp.exists() and stamp.read_text() == PODMAN_COMPOSE:
        return
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-I", "-m", "venv", str(folder))
    run(str(folder / "bin" / "python"), "-I", "-m", "pip", "install", "--quiet", PODMAN_COMPOSE)
    stamp.write_text(PODMAN_COMPOSE)


def run(*command: str, environment: Mapping[str, str] | None = None, timeout_s: float = 600) -> str:
    """Return the standard output of a command. Raises AssertionError with the end of its output if it fails."""
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)[:300]}: {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}"
    return done.stdout
