"""How a job's ranks are started and find each other, and what each node sees of that place before the job."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from ncclcheck.probes.facts.guard.bounds import Count

Start = Literal["torchrun", "spawn"]
InitKind = Literal["env", "tcp", "file"]
Host = Annotated[str, Meta(pattern=r"^[\w.:%-]{1,253}$")]  # 253: the longest name of DNS, RFC 1035
Port = Annotated[int, Meta(ge=1, le=65535)]


def host_and_port(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[HOST]:PORT` -> both. Raises ValueError with what is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} does not end in a port of 1 to 65535")
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or (":" in host and not bracketed):
        raise ValueError(f"{text!r} has no host" if not host else f"an IPv6 address stands in brackets: [{host}]")
    return host.strip("[]"), int(port)


def tcp_url(host: str, port: int) -> str:
    """tcp://HOST:PORT, an IPv6 address in brackets."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


class TcpInit(Struct, frozen=True, kw_only=True):
    """tcp://HOST:PORT from one node. hosts: rank 0 runs here and has to listen there.

    host stands without the brackets of an IPv6 address.
    addresses: what HOST resolves to here, in the order in which they are tried; unresolved: why it does not.
    own: one of them is an address of this machine; loopback: all of them are only this machine's.
    listened: what opening the port gave where rank 0 runs, with the kernel's or the holder's words in `detail`.
    connect: what a connection to the very port gave; stranger: something else than this run listens there.
    """

    host: Host
    port: Port
    hosts: bool = False
    addresses: list[str] = field(default_factory=list)
    unresolved: str = ""
    own: bool = False
    loopback: bool = False
    listened: Literal["", "ok", "in use", "denied", "failed"] = ""
    detail: str = ""
    connect: Literal["", "ok", "refused", "timed_out", "unreachable", "stranger", "failed"] = ""
    connect_detail: str = ""

    @property
    def url(self) -> str:
        """As a script writes it."""
        return tcp_url(self.host, self.port)


class FileInit(Struct, frozen=True, kw_only=True):
    """file:///PATH from one node. problem: why no file can be made in its folder, in the kernel's words.

    bytes, age_s, owner: of a file that is there already; None where there is none. kind: of what stands there.
    filesystem, options: of the mount below it. unlocked: why flock(2) is refused there, empty where it works.
    sees, missing: nodes whose file beside it is there for this node, and those whose file is not.
    lock_is_local: this node could lock what node rank 0 had locked.
    """

    path: Annotated[str, Meta(pattern="^/.")]
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

    @property
    def url(self) -> str:
        """As a script writes it."""
        return f"file://{self.path}"


class InitSeen(Struct, frozen=True, kw_only=True):
    """What one node sees of the place where the ranks are to find each other."""

    node: str
    tcp: TcpInit | None = None
    file: FileInit | None = None
