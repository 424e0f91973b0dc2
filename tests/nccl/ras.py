"""NCCL's RAS, which every process of a job serves on port 28028 of its host (from 2.24 on): asked and read."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from tests.lab import PYTHON, Host

PORT = 28028
# Talks the protocol of the server: lines, and after the last question text up to the end of the connection.
_CLIENT = f"""
import socket, sys
questions, seconds = sys.argv[1:-1], float(sys.argv[-1])
with socket.create_connection(("127.0.0.1", {PORT}), timeout=seconds) as server:
    talk = server.makefile("rw", newline="\\n")
    for line in ["CLIENT PROTOCOL 2", f"TIMEOUT {{seconds:.0f}}", *questions[:-1]]:
        print(line, file=talk, flush=True)
        talk.readline()
    print(questions[-1], file=talk, flush=True)
    sys.stdout.write(talk.read())
"""


@dataclass(frozen=True)
class Answer:
    """What RAS on a host said, or why nothing came."""

    host: str
    text: str
    refused: str
    seconds: float


@dataclass(frozen=True)
class Group:
    """A row of `Communicators`: ranks of each, how many of them were heard of, and what RAS finds of it."""

    ranks: int
    heard: int
    status: str
    errors: str


@dataclass(frozen=True)
class Status:
    """The text of STATUS. apart: rank -> what is said of it alone, in the sections Errors and Warnings."""

    version: str
    processes: int
    groups: list[Group]
    apart: dict[int, str]


_VERSION = re.compile(r"NCCL version (\S+) compiled with CUDA")
_TOTALS = re.compile(r"^ *(\d+) +[\d-]+ +[\d-]+ +(\d+) +\d+$", re.MULTILINE)
_GROUP = re.compile(r"^ *\d+ +\d+ +[\d-]+ +[\d-]+ +(\d+) +(\d+) +([A-Z]+) +([A-Z]+)$", re.MULTILINE)
_APART = re.compile(r"^  Rank (\d+) (.+)$", re.MULTILINE)


def read(text: str) -> Status:
    """What RAS said. Raises ValueError where it is no status."""
    version, totals = _VERSION.search(text), _TOTALS.search(text)
    if version is None or totals is None:
        raise ValueError(f"no status of RAS: {text[:80]!r}")
    groups = [Group(int(ranks), int(heard), *words) for ranks, heard, *words in _GROUP.findall(text)]
    apart = {int(rank): state for rank, state in _APART.findall(text)}
    return Status(version[1], int(totals[2]), groups, apart)


def ask(host: Host, *, verbose: bool = True, json: bool = False, seconds: float = 30) -> Answer:
    """STATUS, once. JSON is known to 2.28 and later."""
    question = "VERBOSE STATUS" if verbose else "STATUS"
    lines = [*(["SET FORMAT json"] if json else []), question]
    began = time.monotonic()
    done = host.run([*PYTHON, "-S", "-c", _CLIENT, *lines, str(seconds)], seconds=seconds + 10)
    why = done.stderr.strip().splitlines()[-1] if done.returncode and done.stderr.strip() else ""
    return Answer(host.name, done.stdout, why, time.monotonic() - began)
