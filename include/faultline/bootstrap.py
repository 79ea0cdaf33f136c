"""Bootstrap of Faultline's environment in the state directory: locked packages and jars.

The launcher runs it as `python -I include/faultline/bootstrap.py` on a bare system Python, so it uses the standard
library only. (-I keeps this directory out of sys.path, where its modules would shadow standard ones.)

Order: find Java first, because that is cheap; then packages; then jars; the stamp is last. An incomplete environment
therefore has no stamp, and the next run removes it. A lock serializes callers. Child processes inherit it, so that a
killed bootstrap with a live installer keeps the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "include"))

from faultline.installation import jars
from faultline.installation.java import Java, as_root, find_java
from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError

# Files in the stamp. The launcher computes the same checksums with the same command.
STAMPED_FILES = ("include/faultline/bootstrap.py", "jars.lock", "pyproject.toml", "requirements.lock")
# Installed by pip first: uv, which needs a third of pip's time, and setuptools, since PySpark is a source package and
# an isolated build would fetch a setuptools without a verified hash.
SEED_PACKAGES = ("setuptools", "uv")
# The environment needs 1.5 GB, and unpacking PySpark temporarily the same again.
REQUIRED_BYTES = 3_000_000_000
# Output of pip and uv if the index is unreachable.
NETWORK = re.compile(
    r"[Cc]onnection|dns error|name resolution|getaddrinfo|timed out|error sending request|Retrying \(Retry|[Pp]roxy"
)
# The shared part of every pip call; -I so that no module of the caller's directory is imported.
PIP = ("-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--require-hashes", "--no-deps")


def main() -> int:
    """Return the exit code for the launcher: 0 ready, 2 refused with one line on standard error."""
    home = Path(os.environ.get("FAULTLINE_HOME") or ROOT / ".faultline").absolute()
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        with bootstrap_lock(home) as lock:
            prepare(ROOT, home, lock)
    except FaultlineError as error:
        return _report_refusal(str(error))
    except OSError as error:
        return _report_refusal(explain_os_error(error, home))
    except KeyboardInterrupt:
        _report_refusal("interrupted; rerun `./faultline` to resume")
        return 130
    return 0


def prepare(root: Path, home: Path, lock: int) -> None:
    """Bring the state directory up to date with the locks; do only what is missing."""
    expected = stamp_text(root, home)
    stamped = home / "stamp"
    if _read(stamped) == expected and _is_usable(home / "venv") and not jars.missing_jars(home, root / "jars.lock"):
        return  # another caller did it while this one waited
    stamped.unlink(missing_ok=True)
    started = time.monotonic()
    java = find_java(home / "java.json")
    VirtualEnvironment(root, home, lock).make()
    _make_jars(root, home, java, lock)
    write_atomic(stamped, expected)
    progress(f"ready after {time.monotonic() - started:.0f} s")


def stamp_text(root: Path, home: Path) -> str:
    """Return the stamp, which changes with the folders or a stamped file; the launcher computes the same."""
    sums = subprocess.run(["cksum", *STAMPED_FILES], cwd=root, stdout=subprocess.PIPE, check=True, text=True).stdout
    return f"{root}\n{home}\n{sums}"


class VirtualEnvironment:
    """Virtual environment `venv` in the state directory, recreated if the lock or the Python changes."""

    def __init__(
        self, root: Path, home: Path, lock: int, requirements: str = "requirements.lock", command: str = "./faultline"
    ) -> None:
        self.requirements = root / requirements
        # The command that the user reruns after fixing a problem.
        self.command = command
        self.root, self.home, self.lock = root, home, lock
        self.venv = home / "venv"
        self.log = home / "logs" / "bootstrap.log"

    def make(self) -> None:
        """Create a complete environment, or leave a detectably incomplete one. Raises FaultlineError."""
        made_of = self.venv / "made-of"
        wanted = self._identity()
        # Written last, so that an interrupted installation is detected and recreated: installers accept partially
        # installed packages.
        if _read(made_of) != wanted or not _is_usable(self.venv):
            self._check_machine()
            self.log.unlink(missing_ok=True)
            progress(f"environment: creating {self.home} (once; 1.5 GB, about a minute)")
            if self.venv.exists():
                shutil.rmtree(self.venv)
            self._create()
            self._install()
            write_atomic(made_of, wanted)
        self._link_project()

    def _identity(self) -> str:
        digest = hashlib.sha256(self.requirements.read_bytes()).hexdigest()
        return f"{sys.version_info.major}.{sys.version_info.minor} {digest} {self.venv}\n"

    def _check_machine(self) -> None:
        if importlib.util.find_spec("ensurepip") is None:
            raise ConfigError(f"{sys.executable}: ensurepip is missing; fix: {venv_command()}")
        free = shutil.disk_usage(self.home).free
        if free < REQUIRED_BYTES:
            raise ConfigError(
                f"{self.home}: got {free / 1e9:.1f} GB of free disk; expected {REQUIRED_BYTES / 1e9:.0f} GB;"
                " fix: free disk space, or set FAULTLINE_HOME to another disk"
            )

    def _create(self) -> None:
        failed = self._run([sys.executable, "-I", "-m", "venv", str(self.venv)])
        if failed is not None:
            raise self._explain(failed, "creating the environment")

    def _install(self) -> None:
        seed = self.venv / "first.txt"
        seed.write_text(lock_entries(self.requirements.read_text(), SEED_PACKAGES))
        failed = self._run([self._python, *PIP, "--only-binary", ":all:", "-r", str(seed)])
        if failed is not None:
            raise self._explain(failed, "installing uv")
        progress("installing the Python packages of requirements.lock")
        self.install(self.requirements, "--no-build-isolation")

    def install(self, requirements: Path, *options: str) -> None:
        """Install the pinned packages; `options` for both uv and pip. Raises FaultlineError."""
        given = [*options, "-r", str(requirements)]
        uv = [str(self.venv / "bin" / "uv"), "pip", "install", "--python", self._python, "--no-progress"]
        failed = self._run([*uv, "--require-hashes", "--no-deps", *given])
        if failed is None:
            return
        error = self._explain(failed, "installing the Python packages")
        if isinstance(error, ConfigError):
            raise error  # pip would fail as well: full disk or wrong hash
        progress("uv: failed; trying pip, which is slower")
        failed = self._run([self._python, *PIP, *given])
        if failed is not None:
            raise self._explain(failed, "installing the Python packages")

    def _link_project(self) -> None:
        """Make `faultline`, `generators`, `fault` and `spark_jobs` importable from the checkout.

        Uses a .pth file, not `pip install -e`: it builds nothing, runs nothing at each start of Python, and type
        checkers can read it. Its folders are last in sys.path, so they shadow nothing, and Airflow's own folders
        (dags/, plugins/) are unchanged.
        """
        for packages in self.venv.glob("lib/python3.*/site-packages"):
            write_atomic(packages / "faultline.pth", f"{self.root / 'include'}\n{self.root}\n")

    @property
    def _python(self) -> str:
        return str(self.venv / "bin" / "python")

    def _run(self, command: Sequence[str]) -> str | None:
        """Run a command and append its output to the log. Returns the output, or None on success."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a+", encoding="utf-8", errors="replace") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            begin = log.seek(0, os.SEEK_END)
            done = subprocess.run(
                list(command),
                cwd=self.home,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
                pass_fds=(self.lock,),
            )
            if done.returncode == 0:
                return None
            log.seek(begin)
            return log.read() or f"exit code {done.returncode}"

    def _explain(self, output: str, doing: str) -> FaultlineError:
        return explain(output, doing, self.log, self.requirements.name, self.command)

    def _environment(self) -> dict[str, str]:
        """Return the caller's variables without those that redirect installs, with pip's settings for uv too."""
        elsewhere = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "VIRTUAL_ENV")
        variables = {name: value for name, value in os.environ.items() if name not in elsewhere}
        variables["PIP_USER"] = "0"
        for pip_name, uv_name in (
            ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"),
            ("PIP_EXTRA_INDEX_URL", "UV_INDEX"),
            ("PIP_FIND_LINKS", "UV_FIND_LINKS"),
            ("PIP_CERT", "SSL_CERT_FILE"),
        ):
            if variables.get(pip_name):
                variables.setdefault(uv_name, variables[pip_name])
        return variables


def lock_entries(lock: str, names: Sequence[str]) -> str:
    """Return the entries of a lock for the named packages: pinned lines with hashes, without comments."""
    return "".join(text for pin, text in _lock_parts(lock) if re.split(r"[=\s;]", pin, maxsplit=1)[0] in names)


def added_entries(lock: str, to: str) -> str:
    """Return the entries of a lock that `to` lacks; another version or condition counts as another entry."""
    there = {pin for pin, _ in _lock_parts(to)}
    return "".join(text for pin, text in _lock_parts(lock) if pin not in there)


def _lock_parts(lock: str) -> Iterator[tuple[str, str]]:
    """Yield each pinned line of a lock, and that line with its hashes, without comments."""
    lines = [line for line in lock.splitlines() if not line.lstrip().startswith("#")]
    begins = [number for number, line in enumerate(lines) if line[:1].isalnum()]
    for begin, end in itertools.pairwise([*begins, len(lines)]):
        yield lines[begin], "".join(f"{line}\n" for line in lines[begin:end])


def explain(
    output: str, doing: str, log: Path, lock: str = "requirements.lock", command: str = "./faultline"
) -> FaultlineError:
    """Return an error with the fix for the output of a failed installer.

    ConfigError: another installer cannot help. InfrastructureError: it may.
    """
    if re.search(r"No space left on device|os error 28|Errno 28|[Dd]isk quota exceeded", output):
        return ConfigError(
            f"{doing} failed: disk full; fix: free 3 GB, or set FAULTLINE_HOME to another disk; log: {log}"
        )
    mismatch = re.search(r"Hash mismatch for `([^`]+)`", output)
    if mismatch or "DO NOT MATCH THE HASHES" in output:
        package = mismatch[1] if mismatch else _package_of_pip_mismatch(output)
        return ConfigError(
            f"{doing} failed: {package} differs from {lock} (wrong SHA-256);"
            f" fix: check the package index or proxy in use, then rerun `{command}`; log: {log}"
        )
    if NETWORK.search(output):
        return InfrastructureError(
            f"{doing} failed: package index unreachable; fix: check the network, HTTPS_PROXY and pip's settings,"
            f" then rerun `{command}`; log: {log}"
        )
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "no output")
    return InfrastructureError(f"{doing} failed: {last}; fix: rerun `{command}`; log: {log}")


def explain_os_error(error: OSError, home: Path) -> str:
    """Return one line for an error of the file system."""
    place = error.filename or home
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{place}: disk full; fix: free 3 GB, or set FAULTLINE_HOME to another disk"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT):
        return f"{place}: {error.strerror}; fix: make it writable, or set FAULTLINE_HOME to a writable folder"
    return f"{place}: {error.strerror or error}"


def venv_command() -> str:
    """Return the command that adds the venv module that Debian omits from its Python."""
    system = Path("/usr/bin/python3")
    default = system.exists() and system.resolve() == Path(sys.executable).resolve()
    return as_root(f"apt-get install python3{'' if default else f'.{sys.version_info.minor}'}-venv")


def _make_jars(root: Path, home: Path, java: Java, lock: int) -> None:
    wanted = jars.missing_jars(home, root / "jars.lock")
    if wanted:
        progress(f"jars: fetching {len(wanted)} of Kafka and Spark")
        jars.fetch(home, java, root / "jars.lock", keep_open=(lock,))
    jars.verify(home, root / "jars.lock")


def _package_of_pip_mismatch(output: str) -> str:
    """Return the first package of pip's list, whose lines are ` name==1.0 from <address>:`."""
    listed = re.search(r"^\s+(\S+==\S+?)(?: from .*)?:\s*$", output, re.MULTILINE)
    return listed[1] if listed else "a package"


@contextlib.contextmanager
def bootstrap_lock(home: Path) -> Iterator[int]:
    """Hold the bootstrap lock; yield its descriptor."""
    home.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(home / "bootstrap.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("environment: waiting for another call that creates it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_usable(venv: Path) -> bool:
    """Return whether its Python runs and has the same minor version."""
    python = venv / "bin" / "python"
    try:
        done = subprocess.run([python, "-I", "-c", "import sys; print(sys.prefix)"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and (venv / "lib" / f"python3.{sys.version_info.minor}").is_dir()


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def write_atomic(path: Path, text: str) -> None:
    """Write a file atomically."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.replace(path)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    """Exit normally on SIGTERM, so that the running installer is ended too."""
    sys.exit(128 + number)


def progress(text: str) -> None:
    print(f"faultline: {text}", file=sys.stderr, flush=True)


def _report_refusal(text: str) -> int:
    progress(text)
    return 2


if __name__ == "__main__":
    sys.exit(main())
