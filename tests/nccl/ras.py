"""Asking NCCL's RAS, which every process of a job serves on port 28028 of its host (from 2.24 on)."""

from __future__ import annotations

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


def ask(host: Host, *, verbose: bool = True, json: bool = False, seconds: float = 30) -> Answer:
    """STATUS, once. JSON is known to 2.28 and later."""
    question = "VERBOSE STATUS" if verbose else "STATUS"
    lines = [*(["SET FORMAT json"] if json else []), question]
    began = time.monotonic()
    done = host.run([*PYTHON, "-S", "-c", _CLIENT, *lines, str(seconds)], seconds=seconds + 10)
    why = done.stderr.strip().splitlines()[-1] if done.returncode and done.stderr.strip() else ""
    return Answer(host.name, done.stdout, why, time.monotonic() - began)
