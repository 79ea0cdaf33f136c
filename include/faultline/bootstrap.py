"""Makes Faultline's environment: the packages of requirements.lock, the jars of jars.lock, in the state directory.

The launcher runs it as `python -I include/faultline/bootstrap.py` on a bare system Python, hence the standard
library only. (-I keeps this directory out of sys.path, where its modules would shadow the standard ones.)

Order: Java is looked for first, because that costs nothing; then packages; then jars; the stamp comes last. A
half-made environment therefore has no stamp, and the next run throws away what was half-made. One lock lets a second
caller wait; child processes inherit it, so a killed bootstrap whose installer still writes keeps others out.
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

# What the stamp vouches for. The launcher computes the same sums with the same command.
STAMPED_FILES = ("include/faultline/bootstrap.py", "jars.lock", "pyproject.toml", "requirements.lock")
# Installed by pip before the rest: uv because it needs a third of pip's time, setuptools because PySpark comes as
# source and an isolated build would fetch a setuptools that no hash vouches for.
SEED_PACKAGES = ("setuptools", "uv")
# The environment takes 1.5 GB, unpacking PySpark another one for a moment.
REQUIRED_BYTES = 3_000_000_000
# What pip and uv write when they cannot reach the index.
NETWORK = re.compile(
    r"[Cc]onnection|dns error|name resolution|getaddrinfo|timed out|error sending request|Retrying \(Retry|[Pp]roxy"
)
# The shared part of every pip call; -I so that no module of the caller's directory is imported.
PIP = ("-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--require-hashes", "--no-deps")


def main() -> int:
    """Exit code for the launcher: 0 ready, 2 refused with one line on standard error."""
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
        _report_refusal("interrupted; run `./faultline` again to go on")
        return 130
    return 0


def prepare(root: Path, home: Path, lock: int) -> None:
    """Brings the state directory to what the locks say; does only what is not yet done."""
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
    """Text that changes when the places or a stamped file change; equal to what the launcher computes."""
    sums = subprocess.run(["cksum", *STAMPED_FILES], cwd=root, stdout=subprocess.PIPE, check=True, text=True).stdout
    return f"{root}\n{home}\n{sums}"


class VirtualEnvironment:
    """The virtual environment `venv` in the state directory, made anew whenever the lock or the Python changed."""

    def __init__(
        self, root: Path, home: Path, lock: int, requirements: str = "requirements.lock", command: str = "./faultline"
    ) -> None:
        self.requirements = root / requirements
        # What the user has typed, and types again once a trouble is mended.
        self.command = command
        self.root, self.home, self.lock = root, home, lock
        self.venv = home / "venv"
        self.log = home / "logs" / "bootstrap.log"

    def make(self) -> None:
        """Leaves a complete environment, or none that could be taken for one. Raises FaultlineError."""
        made_of = self.venv / "made-of"
        wanted = self._identity()
        # Written last and inside, so that an interrupted installation is told from a complete one and made anew;
        # an installer takes a package that is half there for installed.
        if _read(made_of) != wanted or not _is_usable(self.venv):
            self._check_machine()
            self.log.unlink(missing_ok=True)
            progress(f"making the Python environment in {self.home} (once; 1.5 GB, about a minute)")
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
            raise ConfigError(
                f"{sys.executable} cannot make environments (no ensurepip). Install it with: {venv_command()}"
            )
        free = shutil.disk_usage(self.home).free
        if free < REQUIRED_BYTES:
            raise ConfigError(
                f"{self.home}: needs {REQUIRED_BYTES / 1e9:.0f} GB of free disk, has {free / 1e9:.1f}:"
                " free some, or set FAULTLINE_HOME to a directory on another disk"
            )

    def _create(self) -> None:
        failed = self._run([sys.executable, "-I", "-m", "venv", str(self.venv)])
        if failed is not None:
            raise self._explain(failed, "making the environment")

    def _install(self) -> None:
        seed = self.venv / "first.txt"
        seed.write_text(lock_entries(self.requirements.read_text(), SEED_PACKAGES))
        failed = self._run([self._python, *PIP, "--only-binary", ":all:", "-r", str(seed)])
        if failed is not None:
            raise self._explain(failed, "installing uv")
        progress("installing the Python packages of requirements.lock")
        self.install(self.requirements, "--no-build-isolation")

    def install(self, requirements: Path, *options: str) -> None:
        """Installs what the file pins, with options that uv and pip both know. Raises FaultlineError."""
        given = [*options, "-r", str(requirements)]
        uv = [str(self.venv / "bin" / "uv"), "pip", "install", "--python", self._python, "--no-progress"]
        failed = self._run([*uv, "--require-hashes", "--no-deps", *given])
        if failed is None:
            return
        trouble = self._explain(failed, "installing the Python packages")
        if isinstance(trouble, ConfigError):
            raise trouble  # a full disk or a wrong hash: pip would end no better
        progress("uv did not succeed; trying pip, which takes longer")
        failed = self._run([self._python, *PIP, *given])
        if failed is not None:
            raise self._explain(failed, "installing the Python packages")

    def _link_project(self) -> None:
        """Makes `faultline`, `generators`, `fault` and `spark_jobs` importable from where they lie.

        A .pth file rather than `pip install -e`: nothing is built or written into the repository, nothing runs at
        every start of Python, and type checkers can read it. Its directories come after everything else in
        sys.path, so they shadow nothing, and what Airflow adds itself (dags/, plugins/) is unchanged.
        """
        for packages in self.venv.glob("lib/python3.*/site-packages"):
            write_atomic(packages / "faultline.pth", f"{self.root / 'include'}\n{self.root}\n")

    @property
    def _python(self) -> str:
        return str(self.venv / "bin" / "python")

    def _run(self, command: Sequence[str]) -> str | None:
        """None when the command succeeded, else its output. Everything also goes into the log."""
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
        """The caller's variables without those that install elsewhere; pip's settings also under uv's names."""
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
    """The parts of a lock that belong to the named packages: the pinned line and its hashes, comments left out."""
    return "".join(text for pin, text in _lock_parts(lock) if re.split(r"[=\s;]", pin, maxsplit=1)[0] in names)


def added_entries(lock: str, to: str) -> str:
    """The parts of a lock that another one has not: another version or another condition is another part."""
    there = {pin for pin, _ in _lock_parts(to)}
    return "".join(text for pin, text in _lock_parts(lock) if pin not in there)


def _lock_parts(lock: str) -> Iterator[tuple[str, str]]:
    """Each pinned line of a lock, and that line with its hashes; comments left out."""
    lines = [line for line in lock.splitlines() if not line.lstrip().startswith("#")]
    begins = [number for number, line in enumerate(lines) if line[:1].isalnum()]
    for begin, end in itertools.pairwise([*begins, len(lines)]):
        yield lines[begin], "".join(f"{line}\n" for line in lines[begin:end])


def explain(
    output: str, doing: str, log: Path, lock: str = "requirements.lock", command: str = "./faultline"
) -> FaultlineError:
    """One line with the remedy for the output of a failed installer.

    ConfigError: another installer cannot help. InfrastructureError: it may.
    """
    if re.search(r"No space left on device|os error 28|Errno 28|[Dd]isk quota exceeded", output):
        return ConfigError(
            f"{doing}: the disk is full. Free 3 GB, or set FAULTLINE_HOME to a directory on another disk; log: {log}"
        )
    mismatch = re.search(r"Hash mismatch for `([^`]+)`", output)
    if mismatch or "DO NOT MATCH THE HASHES" in output:
        package = mismatch[1] if mismatch else _package_of_pip_mismatch(output)
        return ConfigError(
            f"{doing}: {package} is not what {lock} promises (wrong SHA-256) and was not installed."
            f" Check the package index or proxy in use, then run `{command}` again; log: {log}"
        )
    if NETWORK.search(output):
        return InfrastructureError(
            f"{doing}: the package index cannot be reached. Check the network, HTTPS_PROXY and pip's settings,"
            f" then run `{command}` again; log: {log}"
        )
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "no output")
    return InfrastructureError(f"{doing} failed: {last}. Run `{command}` again; log: {log}")


def explain_os_error(error: OSError, home: Path) -> str:
    """One line for what the file system refused."""
    place = error.filename or home
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{place}: the disk is full. Free 3 GB, or set FAULTLINE_HOME to a directory on another disk"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT):
        return f"{place}: {error.strerror}. Make it writable, or set FAULTLINE_HOME to a directory that is"
    return f"{place}: {error.strerror or error}"


def venv_command() -> str:
    """The exact command that adds what Debian leaves out of its Python."""
    system = Path("/usr/bin/python3")
    default = system.exists() and system.resolve() == Path(sys.executable).resolve()
    return as_root(f"apt-get install python3{'' if default else f'.{sys.version_info.minor}'}-venv")


def _make_jars(root: Path, home: Path, java: Java, lock: int) -> None:
    wanted = jars.missing_jars(home, root / "jars.lock")
    if wanted:
        progress(f"fetching jars of Kafka and Spark: {len(wanted)}")
        jars.fetch(home, java, root / "jars.lock", keep_open=(lock,))
    jars.verify(home, root / "jars.lock")


def _package_of_pip_mismatch(output: str) -> str:
    """pip lists each culprit as `    name==1.0 from <address>:` after the heading."""
    listed = re.search(r"^\s+(\S+==\S+?)(?: from .*)?:\s*$", output, re.MULTILINE)
    return listed[1] if listed else "a package"


@contextlib.contextmanager
def bootstrap_lock(home: Path) -> Iterator[int]:
    """Holds the bootstrap's lock; yields its descriptor."""
    home.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(home / "bootstrap.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another call is making the environment; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_usable(venv: Path) -> bool:
    """False also when the Python below it was removed or upgraded to another minor version."""
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
    """Whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.replace(path)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    """An ordinary end on SIGTERM, so that the running installer is ended too."""
    sys.exit(128 + number)


def progress(text: str) -> None:
    print(f"faultline: {text}", file=sys.stderr, flush=True)


def _report_refusal(text: str) -> int:
    progress(text)
    return 2


if __name__ == "__main__":
    sys.exit(main())
