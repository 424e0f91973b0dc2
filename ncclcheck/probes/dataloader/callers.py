"""Which of the user's files call set_epoch, and which hold a training loop; read, never run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

from ncclcheck.probes.machine import files

_MOST_FILES = 400
_MOST_BYTES = 300_000
_MOST_S = 0.15
_CALL = re.compile(rb"\.set_epoch\(")
_LOOP = re.compile(rb"\.backward\(")
_NOT_THEIRS = {"site-packages", "node_modules", "__pycache__", "build", "dist", "venv", "env"}


def set_epoch_callers(directory: str, factory: str) -> tuple[list[str], list[str]]:
    """Files that call set_epoch, and those with a backward pass, below the folder of the user's code.

    A loop counts only where its file holds the factory or imports its module: another loop has another loader.
    """
    module = factory.rpartition(":")[0]
    where = os.path.dirname(module) if ".py:" in factory else ""
    name_of_module = os.path.basename(module.removesuffix(".py")).rpartition(".")[2]
    imports = re.compile(rb"^\s*(from|import)\s.*\b" + re.escape(name_of_module.encode()) + rb"\b", re.MULTILINE)
    callers: list[str] = []
    loops: list[str] = []
    for name, text in _sources(os.path.join(directory, where)):
        if _CALL.search(text):
            callers.append(name)
        own = os.path.basename(name) == f"{name_of_module}.py"
        if _LOOP.search(text) and (own or imports.search(text)):
            loops.append(name)
    return callers[:5], loops[:5]


def _sources(directory: str) -> Iterator[tuple[str, bytes]]:
    end, count = time.monotonic() + _MOST_S, 0
    for folder, below, names in os.walk(directory):
        below[:] = sorted(name for name in below if name not in _NOT_THEIRS and not name.startswith("."))
        for name in sorted(name for name in names if name.endswith(".py")):
            count += 1
            if count > _MOST_FILES or time.monotonic() > end:
                return
            path = os.path.join(folder, name)
            try:
                with open(files.opened(path), "rb") as file:
                    yield os.path.relpath(path, directory), file.read(_MOST_BYTES)
            except OSError:
                continue
