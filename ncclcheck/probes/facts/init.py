"""How a job's ranks are started and find each other, and what each node sees of that place before the job."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Count

Start = Literal["torchrun", "spawn"]
InitKind = Literal["env", "tcp", "file"]


def host_and_port(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[HOST]:PORT` -> both. Raises ValueError with what is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} does not end in a port of 1 to 65535")
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or (":" in host and not bracketed):
        raise ValueError(f"{text!r} has no host" if not host else f"an IPv6 address stands in brackets: [{host}]")
    return host.strip("[]"), int(port)


class TcpInit(Struct, frozen=True, kw_only=True):
    """tcp://HOST:PORT from one node. hosts: rank 0 runs here and has to listen there.

    addresses: what HOST resolves to here, in the order in which they are tried; unresolved: why it does not.
    own: one of them is an address of this machine; loopback: all of them are only this machine's.
    listened: what opening the port gave where rank 0 runs, with the kernel's or the holder's words in `detail`.
    connect: what a connection to the very port gave; stranger: something else than this run listens there.
    """

    hosts: bool = False
    addresses: list[str] = field(default_factory=list)
    unresolved: str = ""
    own: bool = False
    loopback: bool = False
    listened: Literal["", "ok", "in use", "denied", "failed"] = ""
    detail: str = ""
    connect: Literal["", "ok", "refused", "timed_out", "unreachable", "stranger", "failed"] = ""
    connect_detail: str = ""


class FileInit(Struct, frozen=True, kw_only=True):
    """file:///PATH from one node. problem: why no file can be made in its folder, in the kernel's words.

    bytes, age_s, owner: of a file that is there already; None where there is none. kind: of what stands there.
    filesystem, options: of the mount below it. unlocked: why flock(2) is refused there, empty where it works.
    sees, missing: nodes whose file beside it is there for this node, and those whose file is not.
    lock_is_local: this node could lock what node rank 0 had locked.
    """

    problem: str = ""
    kind: Literal["", "file", "folder", "link", "other"] = ""
    bytes: Count | None = None
    age_s: float | None = None
    owner: str = ""
    filesystem: str = ""
    options: list[str] = field(default_factory=list)
    unlocked: str = ""
    sees: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    lock_is_local: bool = False


class InitSeen(Struct, frozen=True, kw_only=True):
    """What one node sees of the place where the ranks are to find each other."""

    node: str
    url: str
    tcp: TcpInit | None = None
    file: FileInit | None = None
