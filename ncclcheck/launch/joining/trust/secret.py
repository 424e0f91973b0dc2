"""The secret of a join: by it nodes know each other, and nobody else takes part or is obeyed.

From a variable or a file of the user's own, which are the same on every node; in a step of Slurm else from munge,
which every node there runs. Never from the command line, which every user of the machine can read.
"""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass, field
from typing import Literal

from ncclcheck.base.errors import UsageError
from ncclcheck.launch.given import Env
from ncclcheck.launch.joining.trust import munge
from ncclcheck.probes.machine import files

VARIABLE = "NCCLCHECK_SECRET"
FILE = "NCCLCHECK_SECRET_FILE"
_LEAST = 16  # bytes; 22 letters of base64 are 128 bits, and whoever types one by hand types fewer
_MOST = 4096  # bytes of a secret file that are read
HOW_TO = (
    f"give every node the same secret (one `openssl rand -hex 32` for all), in {VARIABLE} or with "
    "--secret-file FILE, mode 0600"
)

Kind = Literal["none", "secret", "munge"]
WITH: dict[Kind, str] = {
    "none": "without a secret",
    "secret": "with a secret",
    "munge": "with munge's credentials",
}


@dataclass(frozen=True)
class Secret:
    """What this node shows itself by. key: of kind `secret`; a credential of munge is made for each connection."""

    kind: Kind = "none"
    key: bytes = field(default=b"", repr=False)

    def offer(self) -> tuple[bytes, str]:
        """The key of one connection, and what lets the other side know it too. Raises OSError."""
        if self.kind != "munge":
            return self.key, ""
        key = secrets.token_bytes(32)
        return key, munge.encode(key)

    def accept(self, credential: str) -> bytes:
        """The key of a connection from what the other side offered. Raises OSError, ValueError."""
        return munge.decode(credential) if self.kind == "munge" else self.key


NO_SECRET = Secret()


def read(env: Env, file: str | None, *, in_slurm: bool = False) -> Secret:
    """The secret of this run. Raises UsageError for a file that others can read, or for one too short."""
    if file:
        return Secret("secret", _checked(_content(file), "--secret-file"))
    if env.get(VARIABLE):
        return Secret("secret", _checked(env[VARIABLE].encode(errors="surrogateescape"), VARIABLE))
    return Secret("munge") if in_slurm and munge.works() else NO_SECRET


def _checked(key: bytes, source: str) -> bytes:
    key = key.strip()
    if len(key) < _LEAST:
        raise UsageError(f"{source}: it has {len(key)} bytes; allowed are {_LEAST} and more")
    return key


def _content(path: str) -> bytes:
    try:
        with open(files.opened(path), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (0, os.geteuid()) or stat.S_IMODE(status.st_mode) & 0o077:
                raise UsageError(
                    f"--secret-file: {path!r} has {files.described(status)}; "
                    "allowed is a file of your own that nobody else can read: chmod 600"
                )
            return file.read(_MOST)
    except OSError as error:
        raise UsageError(f"--secret-file: {path!r} cannot be read: {error.strerror}") from None
