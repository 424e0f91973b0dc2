"""What the nodes saw of each other before the job."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.unread import NOT_RECORDED, Unread
from ncclcheck.probes.facts.machine.host import Resolution
from ncclcheck.probes.facts.machine.network import Filter, KeptBy, KernelRoute, Neighbour


class Door(Struct, frozen=True, kw_only=True):
    """Where a node can be reached while reach is measured. token: what a visitor says first; never saved.

    file: what this node has put into its working directory; empty where it could not. spare: more TCP ports
    on which it listens, one in each part of the range from which the kernel gives them.
    """

    node: int
    name: str
    interface: str
    address: str
    tcp_port: int
    udp_port: int
    mtu: int
    token: str
    file: str = ""
    spare: list[int] = []


class NoDoor(Struct, frozen=True, kw_only=True):
    """A node that could open no port on its own address. why: the kernel's word. interfaces: that it then has."""

    node: str
    address: str
    protocol: Literal["TCP", "UDP"]
    why: str
    interfaces: list[str] = []


ConnectOutcome = Literal["ok", "refused", "timed_out", "unreachable", "stranger", "silent", "not_sent"]


class Connect(Struct, frozen=True, kw_only=True, tag="connect"):
    """A TCP connection to a peer's random high port. detail: the kernel's word.

    stranger: what listens there is not our peer. silent: it was accepted, and nobody spoke. not_sent: the
    kernel here refused to try. kept: what on this host kept the packets from leaving it; empty where they left it,
    or that was not seen. neighbour: no machine on the wire said that it has the address.
    """

    outcome: ConnectOutcome
    detail: str = ""
    kept: KeptBy = ""


class ClockOffset(Struct, frozen=True, kw_only=True, tag="clock_offset"):
    """The peer's clock minus ours, and how far off that may be: half a round trip."""

    seconds: float
    within_s: float


class Volley(Struct, frozen=True, kw_only=True, tag="volley"):
    """TCP connections that were opened at once. late: those not answered before the kernel would ask again.

    refused: those that were refused, though one by itself was not; they are not late.
    again: where some were late, those tried once more from the same ports in the reverse order; same: of them,
    those that fared as before.
    """

    opened: int
    late: int
    refused: int = 0
    again: int = 0
    same: int = 0


class Spread(Struct, frozen=True, kw_only=True, tag="spread"):
    """Ports all over the peer's own range, on all of which it listens: those that answered, those that did not."""

    open: list[int]
    shut: list[int]


class Echoes(Struct, frozen=True, kw_only=True, tag="echoes"):
    """Small UDP packets: sent by us, arrived at the peer by its own count, answers that came back."""

    sent: int
    arrived: int
    returned: int


class PathMtu(Struct, frozen=True, kw_only=True, tag="path_mtu"):
    """IP packets that may not be fragmented. sent: the largest, arrived: the largest that the peer confirmed.

    told: the path MTU that routers told our kernel, which TCP then keeps to; 0 where none did.
    """

    sent: int
    arrived: int
    told: int = 0


class Burst(Struct, frozen=True, kw_only=True, tag="burst"):
    """A TCP stream to one peer, counted at the peer; segments and retransmits of the whole stream (TCP_INFO).

    starved: the share of its time in which sender or receiver, whichever more, waited for a core of its host.
    """

    bytes: int
    seconds: float
    segments: int | Unread = NOT_RECORDED
    retransmits: int | Unread = NOT_RECORDED
    starved: float = 0.0


class ByName(Struct, frozen=True, kw_only=True, tag="by_name"):
    """A TCP connection to the address that gloo would tell by the peer's own name, where that is another one.

    Nothing of ours listens there: refused means that the peer, or a firewall before it, answers.
    """

    address: str
    connect: Connect


class PeerReach(Struct, frozen=True, kw_only=True):
    """What one node saw of one peer. source, interface: whence the kernel sends to it. bursts: to the peer.

    seen_as: the address from which the peer saw it come. mss: bytes that the kernel here puts into a segment.

    neighbour: where the kernel sends it on the wire, after all tries; absent where nothing is known or a router is
    between. way: how the kernel sends to it, where it was not reached or not every connection was answered.
    """

    peer: str
    address: str
    connect: Connect | Unread = NOT_RECORDED
    rtt_us: float | Unread = NOT_RECORDED
    clock: ClockOffset | Unread = NOT_RECORDED
    echoes: Echoes | Unread = NOT_RECORDED
    path_mtu: PathMtu | Unread = NOT_RECORDED
    source: str | Unread = NOT_RECORDED
    seen_as: str | Unread = NOT_RECORDED
    interface: str | Unread = NOT_RECORDED
    resolved: Resolution | Unread = NOT_RECORDED
    bursts: list[Burst] = field(default_factory=list)
    volley: Volley | Unread = NOT_RECORDED
    spread: Spread | Unread = NOT_RECORDED
    mss: int | Unread = NOT_RECORDED
    neighbour: Neighbour | Unread = NOT_RECORDED
    by_name: ByName | Unread = NOT_RECORDED
    way: KernelRoute | Unread = NOT_RECORDED


class Counters(Struct, frozen=True, kw_only=True, tag="counters"):
    """How far the counters of an interface rose during the bursts, both directions. Source: /proc/net/dev.

    bytes_in, bytes_out: by direction; seconds: between the two looks. 0: not recorded.
    """

    packets: int
    errors: int
    drops: int
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0


class Marks(Struct, frozen=True, kw_only=True, tag="marks"):
    """Whether nodes stand in one directory: each makes a file in its working directory, and looks for the others'.

    path: the directory here. written_s: how long it took to make ours. seen, missing: nodes whose file is here, or
    was made and is not here.
    """

    path: str
    written_s: float | Unread
    seen: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


class NodeReach(Struct, frozen=True, kw_only=True):
    """What one node saw of the others from the interface that the job would use.

    udp_overflows: UDP packets that this host itself dropped, its buffers full (RcvbufErrors, /proc/net/snmp).
    own: a connection to its own address, as the ranks of one node make to each other.
    beside: how the counters rose in the second before the bursts, in which nodes sent each other little.
    filters: its own packet filter as it was then, where some peer was not reached.
    running: threads of the whole machine that could run, for each of its cores, on average while bursts were sent;
    0: not recorded. claimed: the MAC addresses of other machines that said that they have this node's address.
    """

    node: str
    interface: str
    address: str
    mtu: int
    own: Connect | Unread = NOT_RECORDED
    peers: list[PeerReach] = field(default_factory=list)
    counters: Counters | Unread = NOT_RECORDED
    beside: Counters | Unread = NOT_RECORDED
    udp_overflows: int = 0
    marks: Marks | Unread = NOT_RECORDED
    filters: list[Filter] | Unread = NOT_RECORDED
    claimed: list[str] | Unread = NOT_RECORDED
    running: float = 0.0
    seconds: float = 0.0
