"""Bootstrap of the agent, which finds and signals processes on a host: its code arrives over the SSH connection.

The host needs Python 3.11 and no package; the code is in a temporary folder. To allow the SSH key nothing but the
agent, give it a forced command in `authorized_keys`:
`restrict,command="…"` with `boot_command()`.
"""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path

PYTHON = "python3"
# The boot program: read a length and that many bytes, and execute them.
_BOOT = "import sys; i = sys.stdin.buffer; exec(i.read(int(i.readline())))"
# The loader: read the archive with the code, and import from it. It also removes the folders of killed agents.
_LOADER = """\
import fcntl, os, shutil, sys, tempfile
PREFIX = "faultline-agent-"
def held(folder):
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock
for entry in os.scandir(tempfile.gettempdir()):
    try:
        if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
            if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                lock = held(entry.path)
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(lock)
    except OSError:
        continue  # in use, or already removed
# Until the folder is locked, it has a name that no other agent removes.
made = tempfile.mkdtemp(prefix="faultline-new-agent-")
lock = held(made)
folder = os.path.join(os.path.dirname(made), PREFIX + made.rpartition("-")[2])
os.rename(made, folder)
try:
    archive = os.path.join(folder, "fault.zip")
    with open(archive, "xb") as file:
        file.write(i.read(int(i.readline())))
    sys.path.insert(0, archive)
    sys.dont_write_bytecode = True
    from fault.handler import serve
    serve(i, sys.stdout.buffer)
finally:
    shutil.rmtree(folder, ignore_errors=True)
"""


def boot_command(python: str = PYTHON) -> str:
    """Return the command run on the host, isolated from its environment and installed packages."""
    return f"{python} -I -S -c '{_BOOT}'"


@cache
def bootstrap_payload() -> bytes:
    """Return the bytes sent first: the loader, and the modules of the agent."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in sorted(Path(__file__).parent.glob("*.py")):
            archive.writestr(f"fault/{module.name}", module.read_bytes())
    parts = (_LOADER.encode(), packed.getvalue())
    return b"".join(b"%d\n%s" % (len(part), part) for part in parts)
