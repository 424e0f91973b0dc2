"""Scenarios of init methods: tcp://HOST:PORT and file:///PATH as tutorials write them, on two hosts.

A bare script only hangs or fails on each of them; `benchmarks.init_faults` runs both side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab import faults
from tests.scenarios.scenario import ALL, Expect, Play, Scenario, both, nothing

SHARED = Path("/tmp/ncclcheck-init")  # of both hosts, which have one file system
STALE = SHARED / "stale"
_PORT = 23456


def url(scenario: Scenario) -> str:
    """The init method of one of these."""
    return scenario.arguments[ALL][-1]


def _scenario(name: str, method: str, fault: Play, expect: Expect, first: str | None = None) -> Scenario:
    return Scenario(
        name=f"init: {name}",
        hosts=2,
        command=("bench", "--quick", "--nproc-per-node", "1"),
        fault=fault,
        arguments={ALL: ("--init-method", method)},
        expect=(expect,),
        first=first if first is not None else f"{expect.code} on {expect.node}",
        refused=True,
        seconds=60,
    )


@contextmanager
def _left(text: bytes) -> Iterator[None]:
    """What a run that was killed left there."""
    SHARED.mkdir()
    STALE.write_bytes(text)
    try:
        yield
    finally:
        STALE.unlink(missing_ok=True)
        SHARED.rmdir()


OF_INIT = (
    _scenario(
        "tcp://localhost on two hosts",
        f"tcp://localhost:{_PORT}",
        nothing,
        Expect(code="INI001", node="h2", words="localhost is h2 itself", remedy=f"tcp://10.77.0.11:{_PORT}"),
    ),
    _scenario(
        "a name that /etc/hosts of one host makes 127.0.1.1",
        f"tcp://head:{_PORT}",
        lambda s: both(faults.names(s["h1"], head=s["h1"].address), faults.names(s["h2"], head="127.0.1.1")),
        Expect(code="INI001", node="h2", words="head is h2 itself (127.0.1.1)"),
    ),
    _scenario(
        "HOST is an address of the other host",
        f"tcp://10.77.0.22:{_PORT}",
        nothing,
        Expect(code="INI001", node="h2", words="is an address of h2, and rank 0 runs on h1"),
        first="",
    ),
    _scenario(
        "the port is in use",
        f"tcp://10.77.0.11:{_PORT}",
        lambda s: faults.listener(s["h1"], _PORT),
        Expect(code="INI002", node="h1", words=f"port {_PORT} is in use on h1", remedy="tcp://10.77.0.11:23467"),
    ),
    _scenario(
        "the port is blocked",
        f"tcp://10.77.0.11:{_PORT}",
        lambda s: faults.filtered(s["h1"], "input", f"tcp dport {_PORT} drop"),
        Expect(code="INI003", node="h2", words=f"h2 does not reach port {_PORT} of h1"),
    ),
    _scenario(
        "a file of a run that was killed",
        f"file://{STALE}",
        lambda _: _left(b"left by a run that was killed"),
        Expect(code="INI004", words="29 bytes of root", remedy=f"rm -- {STALE}"),
        first="",
    ),
    _scenario(
        "a folder that is not shared",
        f"file://{SHARED}/new",
        lambda s: faults.own_directory(SHARED, s["h2"]),
        Expect(code="INI005", words="does not see in /tmp/ncclcheck-init"),
        first="",
    ),
)
