"""The folder of a box: of mode 0700, with a folder for each node that writes into it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ncclcheck import __version__
from ncclcheck.base.errors import UsageError
from ncclcheck.probes.box import injected
from ncclcheck.probes.box.journal import NEW
from ncclcheck.probes.box.read import folders
from ncclcheck.probes.facts.guard.secrets import is_secret, masked
from ncclcheck.watch import settings

_MOST = 1000  # folders of one node in one box: ranks that each have a wrapper, attempts of a requeued job
CLOCKS = "NCCLCHECK_CLOCKS"  # node -> seconds that its clock was ahead of one of them, in the pre-flight; JSON
_MOST_CLOCKS = 100_000  # characters
_SHOWN = re.compile(r"(NCCL|TORCH|GLOO)_\w+")


class Opened(NamedTuple):
    """A box, this node's own folder in it, and what is set for the job."""

    box: str
    node: str
    settings: dict[str, str]


def create(given: str | None, command: Sequence[str]) -> Opened:
    """A box that has what is there before the job begins. Raises UsageError."""
    places = [given] if given else _usual()
    for at, box in enumerate(places):
        node = ""
        try:
            with suppress(FileExistsError):
                os.mkdir(box, 0o700)
            _check(box)
            node = _of_node(box)
            wanted = settings.settings(node, os.environ, command)
            _fill(node, command, wanted)
            return Opened(box, node, wanted)
        except OSError as error:
            if node:
                remove(box, node)
            if at == len(places) - 1:
                raise UsageError(f"--box: {box}: {error.strerror or error}") from None
    raise AssertionError


def _usual() -> list[str]:
    """In the working directory, which the nodes of a job often share; else where it can be written.

    Nodes of one job of Slurm share the name.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    own = job if job.isdigit() else f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    here = []
    with suppress(OSError):
        here = [os.getcwd()]
    return [os.path.join(folder, f"ncclcheck-box-{own}") for folder in (*here, tempfile.gettempdir())]


def _check(box: str) -> None:
    """Nobody else may put anything there. Raises UsageError or OSError."""
    stats = os.lstat(box)
    if not stat.S_ISDIR(stats.st_mode):
        raise UsageError(f"--box: {box} is no folder")
    if stats.st_uid != os.geteuid() or stats.st_mode & 0o022:
        raise UsageError(f"--box: {box}: others may write there; give a folder of your own (mode 0700)")


def _of_node(box: str) -> str:
    host = re.sub(r"[^\w.-]", "_", socket.gethostname()) or "node"
    for count in range(_MOST):
        path = os.path.join(os.path.abspath(box), host if not count else f"{host}.{count + 1}")
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
            return path
    raise UsageError(f"--box: {box} holds {_MOST} folders of {host}; give another one")


def _fill(node: str, command: Sequence[str], wanted: Mapping[str, str]) -> None:
    """Raises OSError."""
    for name in ("said", "fault", "site", "server"):
        os.mkdir(os.path.join(node, name), 0o700)
    source = Path(injected.__file__).parent / "sitecustomize.py"
    write(os.path.join(node, "site", "sitecustomize.py"), source.read_bytes())
    variables = {**{n: v for n, v in os.environ.items() if _SHOWN.fullmatch(n)}, **wanted}
    facts = {
        "schema": 1,
        "version": __version__,
        "host": socket.gethostname(),
        "started": round(time.time(), 3),
        "command": masked(shlex.join(command)),
        "variables": {
            n: masked(v) for n, v in sorted(variables.items()) if not is_secret(n) and n != "PYTHONPATH"
        },
    }
    write(os.path.join(node, "meta.json"), json.dumps(facts | _clocks()).encode())


def _clocks() -> dict[str, object]:
    """What the pre-flight has found, if this is what follows it."""
    with suppress(ValueError, RecursionError):
        clocks = json.loads(os.environ.get(CLOCKS, "")[:_MOST_CLOCKS])
        if isinstance(clocks, dict) and all(isinstance(ahead, float | int) for ahead in clocks.values()):
            return {"clocks": clocks}
    return {}


def write(path: str, content: bytes) -> None:
    """A new file of mode 0600. Raises OSError."""
    with open(path, "xb", opener=lambda name, _: os.open(name, NEW, 0o600)) as file:
        file.write(content)


def remove_after_success(box: str, node: str) -> None:
    """All of the box, where every other node has ended well too: what one did may explain another's end."""
    others = folders.others(node)
    if any(other.status != 0 or other.stalled for other in others):
        return
    for other in others:
        shutil.rmtree(other.folder, ignore_errors=True)
    remove(box, node)


def is_first_to_fail(node: str, others: Sequence[folders.BoxFolder]) -> bool:
    """Whether the page is to be printed here: once for a job."""
    return not [other for other in others if other.status and other.folder < node]


def remove(box: str, node: str) -> None:
    """This node's folder; the box, where that was the last."""
    shutil.rmtree(node, ignore_errors=True)
    with suppress(OSError):
        os.rmdir(box)
