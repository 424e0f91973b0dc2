"""Over what the job really ran: by NCCL's own log, by the sockets of its ranks, and by counters of the cards."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Whole
from ncclcheck.probes.facts.guard.unread import NOT_RECORDED, Unread


class Endpoint(Struct, frozen=True, kw_only=True, tag="endpoint"):
    """An interface and the address of it that was used."""

    interface: str
    address: str


class NetDevice(Struct, frozen=True, kw_only=True):
    """A device that NCCL's network takes. name: as `mlx5_0:1`, several where NCCL merges ports into one.

    index: NCCL's number of it, as in NET/IB/3. link: IB or RoCE. gpudirect: whether NCCL said that the card
    reaches the memory of GPUs.
    """

    name: str
    index: Count
    link: str = ""
    speed_mbit: int | None = None
    gpudirect: bool | None = None


class Connections(Struct, frozen=True, kw_only=True):
    """Connections of one kind: P2P/CUMEM, P2P/IPC, SHM, NET/IB/GDRDMA, NET/Socket, ... or TCP.

    peers: whether the other end is on the same node. devices: numbers of the network devices, in NET/IB/3 the 3.
    """

    kind: str
    peers: Literal["intra", "inter", "unknown"]
    count: Count
    devices: list[int] = field(default_factory=list)


class Diagnosis(Struct, frozen=True, kw_only=True):
    """One result of NCCL's own diagnostics (2.31 and later). ok: by its tag; check: p2p, net bw, ECC, ..."""

    ok: bool
    check: str
    text: str


class Diagnostics(Struct, frozen=True, kw_only=True):
    """What NCCL's own diagnostics said when they were run. problem: why they did not come to their end."""

    results: list[Diagnosis] = field(default_factory=list)
    seconds: Amount = 0.0
    problem: str = ""


class Transport(Struct, frozen=True, kw_only=True):
    """How one rank was connected. source: its NCCL log, or (gloo) its open sockets.

    network: what NCCL chose, as IB, Socket or a plugin's name. interfaces: those of NET/Socket, or of sockets.
    devices: those of NET/IB. communicators: how many it began, completed: how many came to be; nranks and nnodes
    are of the largest. no_infiniband: the line that says why NET/IB cannot be used. rings and trees: connected.
    warnings: NCCL's own words. Lines that nobody understood are counted.
    """

    rank: Count
    node: str
    source: Literal["log", "sockets"]
    version: str | Unread = NOT_RECORDED
    bootstrap: Endpoint | Unread = NOT_RECORDED
    network: str | Unread = NOT_RECORDED
    connections: list[Connections] | Unread = NOT_RECORDED
    interfaces: list[Endpoint] = field(default_factory=list)
    devices: list[NetDevice] = field(default_factory=list)
    plugin: str = ""
    tuner: str = ""
    no_infiniband: str = ""
    nvls: bool | None = None
    channels: Count | None = None
    rings: bool = False
    trees: bool = False
    nranks: Count | None = None
    nnodes: Count | None = None
    bus_id: str = ""
    communicators: Count = 0
    completed: Count = 0
    warnings: list[str] = field(default_factory=list)
    lines: Whole = 0
    unknown_lines: Whole = 0
    unknown_samples: list[str] = field(default_factory=list)


class Moved(Struct, frozen=True, kw_only=True):
    """Whole that went over one interface (`eth0`) or one port of an HCA (`mlx5_0:1`) during the job."""

    name: str
    sent: Whole
    received: Whole


class Risen(Struct, frozen=True, kw_only=True):
    """By how much counters of one interface (`eth0`) or port of an HCA (`mlx5_0:1`) rose during the job."""

    name: str
    counters: dict[str, Whole]


class LinkEvents(Struct, frozen=True, kw_only=True):
    """How often one interface (`eth0`) or port of an HCA (`mlx5_0:1`) lost its link during the job."""

    name: str
    downs: Whole


class Sent(Struct, frozen=True, kw_only=True):
    """How TCP connections from an address here to one elsewhere fared during the job, all together.

    segments: sent; again: sent once more, less those that the other side reported as needless (DSACK).
    unanswered_s: the time in which the connection that fared worst repeated what it had sent, and had no
    acknowledgement of it; outages: in how many pieces. Source: sock_diag(7), TCP_INFO.
    """

    source: str
    target: str
    segments: Whole = 0
    again: Whole = 0
    unanswered_s: Amount = 0.0
    outages: Whole = 0


class Interruptions(Struct, frozen=True, kw_only=True):
    """What held up one node between the start of its torchrun and its end, whatever ran there.

    paused_s: the longest time in which a thread with nothing to do but to wake up did not, though it waited for no
    core: the host was stopped. starved_s: the longest time in which it waited for a core. Both are null where the
    kernel does not count that waiting. silent_s: the longest time in which the launcher heard nothing of the node,
    which says something every 0.5 s. links: those that lost their link. segments, retransmits: of TCP, of all of
    the host. sent: by the addresses of both ends, the worst ones; null in older files.
    Source: /proc/thread-self/schedstat, /sys/class/net/*/carrier_down_count,
    /sys/class/infiniband/*/ports/*/counters/link_downed, /proc/net/snmp.
    """

    node: str
    seconds: Amount
    paused_s: Amount | None = None
    starved_s: Amount | None = None
    silent_s: Amount = 0.0
    links: list[LinkEvents] = field(default_factory=list)
    segments: Whole | None = None
    retransmits: Whole | None = None
    sent: list[Sent] | None = None


class Traffic(Struct, frozen=True, kw_only=True):
    """How far the counters of one node rose from the start of its torchrun to its end.

    counted: ports and interfaces that count losses, pauses and congestion; risen: those where one of them rose.
    Source: /proc/net/dev; /sys/class/infiniband/*/ports/*/counters/port_{xmit,rcv}_data, four bytes each; its
    other counters and hw_counters; ethtool statistics.
    """

    node: str
    seconds: Amount
    interfaces: list[Moved] | Unread = NOT_RECORDED
    hcas: list[Moved] | Unread = NOT_RECORDED
    counted: list[str] = field(default_factory=list)
    risen: list[Risen] = field(default_factory=list)
