"""What the probes read: only data, no judgement.

Every fact is `T | Unread`: a value that was seen, or the reason why it was not. `Unread` is never
health and never a fault. Sizes are bytes, times are seconds unless a name says `_us`, speeds are
megabits per second as sysfs has them, bandwidths are GB/s of 1e9 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from ncclcheck.probes.facts_fabric import Bound as Bound
from ncclcheck.probes.facts_fabric import Counter as Counter
from ncclcheck.probes.facts_fabric import DeviceFile as DeviceFile
from ncclcheck.probes.facts_fabric import Errors as Errors
from ncclcheck.probes.facts_fabric import Fabric as Fabric
from ncclcheck.probes.facts_fabric import Gid as Gid
from ncclcheck.probes.facts_fabric import Governor as Governor
from ncclcheck.probes.facts_fabric import Hca as Hca
from ncclcheck.probes.facts_fabric import HugePages as HugePages
from ncclcheck.probes.facts_fabric import Link as Link
from ncclcheck.probes.facts_fabric import NumaNode as NumaNode
from ncclcheck.probes.facts_fabric import PciDevice as PciDevice
from ncclcheck.probes.facts_fabric import Port as Port
from ncclcheck.probes.facts_fabric import Rdma as Rdma
from ncclcheck.probes.facts_gpu import Gpu as Gpu
from ncclcheck.probes.facts_gpu import GpuPeer as GpuPeer
from ncclcheck.probes.facts_gpu import GpuProcess as GpuProcess
from ncclcheck.probes.facts_gpu import Gpus as Gpus
from ncclcheck.probes.facts_gpu import NvFabric as NvFabric
from ncclcheck.probes.facts_gpu import NvLinks as NvLinks
from ncclcheck.probes.facts_gpu import RemappedRows as RemappedRows
from ncclcheck.probes.facts_gpu import RetiredPages as RetiredPages
from ncclcheck.probes.facts_gpu import Xid as Xid
from ncclcheck.probes.facts_place import Container as Container
from ncclcheck.probes.facts_place import Lock as Lock
from ncclcheck.probes.facts_place import Mount as Mount
from ncclcheck.probes.facts_place import Namespace as Namespace
from ncclcheck.probes.facts_place import Place as Place
from ncclcheck.probes.facts_place import PortRange as PortRange
from ncclcheck.probes.facts_place import Room as Room
from ncclcheck.probes.facts_place import SharedMemory as SharedMemory
from ncclcheck.probes.facts_place import Sign as Sign
from ncclcheck.probes.facts_place import Storage as Storage
from ncclcheck.probes.facts_place import System as System
from ncclcheck.probes.unread import NOT_RECORDED as NOT_RECORDED
from ncclcheck.probes.unread import Unread as Unread
from ncclcheck.probes.unread import UnreadKind as UnreadKind

T = TypeVar("T")

# Saved files are input from outside: counts are bounded, and words that end in a line to paste are words.
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Pid = Annotated[int, Meta(ge=1, le=2**31)]
Word = Annotated[str, Meta(pattern="^[a-z0-9_]{0,40}$")]


class NotKnown(Exception):
    """Raised by `known` for an unread fact; the judge turns it into an `unknown` finding."""

    def __init__(self, unread: Unread) -> None:
        super().__init__(unread.why)
        self.unread = unread


def known(fact: T | Unread) -> T:
    """The value of a fact that the rule's `needs=` has already asked for."""
    if isinstance(fact, Unread):
        raise NotKnown(fact)
    return fact


def value_or(fact: T | Unread, otherwise: T) -> T:
    """The value of a fact that only embellishes; never for what decides a verdict."""
    return otherwise if isinstance(fact, Unread) else fact


class Limits(Struct, frozen=True, kw_only=True, tag="limits"):
    """A resource limit; -1 is unlimited. Source: getrlimit(2)."""

    soft: int
    hard: int


class Space(Struct, frozen=True, kw_only=True, tag="space"):
    """A file system's size and what is free for this user, bytes. Source: statvfs(3)."""

    size: int
    free: int
    path: str = ""


class Resolution(Struct, frozen=True, kw_only=True, tag="resolution"):
    """What a name resolves to on this node, in the resolver's order."""

    name: str
    addresses: list[str]


class Host(Struct, frozen=True, kw_only=True, tag="host"):
    """The machine, and what this process may use of it.

    ipc_lock: this process has CAP_IPC_LOCK of the machine itself, so that the memlock limit does not bind it.
    """

    hostname: str | Unread = NOT_RECORDED
    system: str | Unread = NOT_RECORDED
    kernel: str | Unread = NOT_RECORDED
    boot_id: str | Unread = NOT_RECORDED
    cores: int | Unread = NOT_RECORDED
    usable_cores: float | Unread = NOT_RECORDED
    memory: int | Unread = NOT_RECORDED
    memory_limit: int | Unread = NOT_RECORDED
    memory_available: int | Unread = NOT_RECORDED
    memlock: Limits | Unread = NOT_RECORDED
    ipc_lock: bool | Unread = NOT_RECORDED
    nofile: Limits | Unread = NOT_RECORDED
    shm: Space | Unread = NOT_RECORDED
    tmp: Space | Unread = NOT_RECORDED
    clocksource: str | Unread = NOT_RECORDED
    own_name: Resolution | Unread = NOT_RECORDED


class Address(Struct, frozen=True, kw_only=True):
    """An address of an interface, with its prefix length."""

    family: Literal["ipv4", "ipv6"]
    address: str
    prefix: int


InterfaceKind = Literal[
    "physical", "bond", "vlan", "bridge", "veth", "tunnel", "loopback", "macvlan", "ipoib", "virtual"
]


class Interface(Struct, frozen=True, kw_only=True):
    """One network interface, as getifaddrs(3) and /sys/class/net tell it."""

    name: str
    kind: InterfaceKind | Unread = NOT_RECORDED
    up: bool | Unread = NOT_RECORDED
    running: bool | Unread = NOT_RECORDED
    mtu: int | Unread = NOT_RECORDED
    speed_mbit: int | Unread = NOT_RECORDED
    addresses: list[Address] | Unread = NOT_RECORDED
    members: list[str] | Unread = NOT_RECORDED
    driver: str | Unread = NOT_RECORDED


class Route(Struct, frozen=True, kw_only=True):
    """One route of the kernel's main table; `gateway` is empty where the peer is on the link."""

    destination: str
    gateway: str
    interface: str
    metric: int


class Network(Struct, frozen=True, kw_only=True, tag="network"):
    """Interfaces in getifaddrs(3) order, which is the order in which NCCL considers them."""

    interfaces: list[Interface] | Unread = NOT_RECORDED
    routes: list[Route] | Unread = NOT_RECORDED


class Library(Struct, frozen=True, kw_only=True, tag="library"):
    """One libnccl on this machine.

    `version` is what the library itself answers (ncclGetVersion), as (major, minor, patch).
    `origin` says who would find it: torch's wheel, LD_LIBRARY_PATH, the system's linker.
    """

    path: str
    origin: str
    version: str | Unread = NOT_RECORDED


class ConfLine(Struct, frozen=True, kw_only=True):
    """One line of an nccl.conf file, split at the first `=` and not trimmed, as NCCL does it."""

    line: int
    name: str
    value: str


class ConfFile(Struct, frozen=True, kw_only=True):
    """One nccl.conf file that this libnccl would read, in order of precedence."""

    path: str
    lines: list[ConfLine] | Unread = NOT_RECORDED


class StrayLine(Struct, frozen=True, kw_only=True):
    """An NCCL_* assignment in a login file; `reached` says whether this process has it."""

    path: str
    line: int
    name: str
    value: str
    reached: bool


class PluginFile(Struct, frozen=True, kw_only=True):
    """A plugin library that NCCL would load, and its SHA-256."""

    name: str
    path: str
    sha256: str | Unread = NOT_RECORDED


class NamedFile(Struct, frozen=True, kw_only=True):
    """A path in the variable `name`. output: NCCL or torch writes there, so that its directory counts.

    fits: whether a file to be read can be read, or one to be written can be written.
    """

    name: str
    path: str
    output: bool
    fits: bool


class Wheel(Struct, frozen=True, kw_only=True):
    """An installed Python package that brings a libnccl; all of them write to the same file."""

    name: str
    version: str


class Nccl(Struct, frozen=True, kw_only=True, tag="nccl"):
    """The NCCL library and everything that configures it.

    `known_names` are the NCCL_* names in the .rodata of the library that torch would load. wanted: the version of
    the wheel that torch's own metadata asks for.
    """

    loaded: Library | Unread = NOT_RECORDED
    others: list[Library] | Unread = NOT_RECORDED
    known_names: list[str] | Unread = NOT_RECORDED
    plugins: list[str] | Unread = NOT_RECORDED
    plugin_files: list[PluginFile] | Unread = NOT_RECORDED
    named_files: list[NamedFile] | Unread = NOT_RECORDED
    wheels: list[Wheel] | Unread = NOT_RECORDED
    wanted: str | Unread = NOT_RECORDED
    conf_files: list[ConfFile] | Unread = NOT_RECORDED
    stray_lines: list[StrayLine] | Unread = NOT_RECORDED


class Stack(Struct, frozen=True, kw_only=True, tag="stack"):
    """Software versions, read from files; torch is never imported for them."""

    python: str | Unread = NOT_RECORDED
    executable: str | Unread = NOT_RECORDED
    ncclcheck: str | Unread = NOT_RECORDED
    torch: str | Unread = NOT_RECORDED
    torch_path: str | Unread = NOT_RECORDED
    torch_cuda: str | Unread = NOT_RECORDED
    driver: str | Unread = NOT_RECORDED


class Variable(Struct, frozen=True, kw_only=True):
    """An environment variable of the families that the tool may report."""

    name: str
    value: str


class PortHolder(Struct, frozen=True, kw_only=True):
    """A listener on a port of this node. pid 0: another user's process, which may not be seen."""

    port: int
    pid: int
    name: str
    address: str = ""


class JobFacts(Struct, frozen=True, kw_only=True, tag="job"):
    """What the job system and the user gave to this process.

    master: what MASTER_ADDR resolves to on this node. port_holders: who listens on MASTER_PORT here, without us
    and whoever started us.
    """

    variables: list[Variable] | Unread = NOT_RECORDED
    launcher_programs: list[str] | Unread = NOT_RECORDED
    master: Resolution | Unread = NOT_RECORDED
    port_holders: list[PortHolder] | Unread = NOT_RECORDED


class ProbeRun(Struct, frozen=True, kw_only=True):
    """How one probe went on one node."""

    name: str
    seconds: float
    unread: Unread | None = None


class Node(Struct, frozen=True, kw_only=True):
    """All facts of one node, under the name that the launcher gave it."""

    name: str
    simulated: bool = False
    host: Host | Unread = NOT_RECORDED
    network: Network | Unread = NOT_RECORDED
    nccl: Nccl | Unread = NOT_RECORDED
    stack: Stack | Unread = NOT_RECORDED
    job: JobFacts | Unread = NOT_RECORDED
    gpus: Gpus | Unread = NOT_RECORDED
    rdma: Rdma | Unread = NOT_RECORDED
    fabric: Fabric | Unread = NOT_RECORDED
    container: Container | Unread = NOT_RECORDED
    storage: Storage | Unread = NOT_RECORDED
    system: System | Unread = NOT_RECORDED
    probes: list[ProbeRun] = field(default_factory=list)


Launcher = Literal["local", "slurm", "ssh", "join", "torchrun"]


class Arrival(Struct, frozen=True, kw_only=True):
    """A node that came to the meeting point of a join. nodes: how many it was told that there are."""

    outcome: Literal["joined", "left", "same rank", "other count", "other command", "other protocol", "late"]
    node_rank: int
    name: str
    address: str = ""
    nodes: int = 0
    detail: str = ""


class Meeting(Struct, frozen=True, kw_only=True):
    """How the nodes of a join met, as this node saw it; node rank 0 opens the meeting point on `endpoint`.

    told_by: the options or variables that it was read from. outcome: open, or on node rank 0 taken (no port could
    be opened), or on the others why node rank 0 was not reached. addresses: what the host resolves to here.
    """

    endpoint: str
    told_by: str
    outcome: Literal["open", "taken", "unresolved", "no_route", "refused", "silent", "stranger", "turned_away"]
    node_rank: int = 0
    detail: str = ""
    addresses: list[str] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    seconds: float = 0.0


class Job(Struct, frozen=True, kw_only=True):
    """The run that was asked for. `chosen_by` is the variable or the option that chose the launcher.

    backend: nccl or gloo, empty before a job; backend_asked: what the user wanted, auto where nothing.
    """

    launcher: Launcher = "local"
    chosen_by: str = ""
    simulated: bool = False
    backend: str = ""
    backend_asked: str = "auto"
    nodes_asked: Count = 1
    nodes_answered: Count = 0
    ranks: Count = 0
    missing: list[str] = field(default_factory=list)
    meeting: Meeting | None = None


class RankState(Struct, frozen=True, kw_only=True):
    """The last that was seen of one rank.

    proc_state: the letter of /proc/PID/stat, or "gone". exit: the exit status, negative for a signal.
    phase: start (no world yet), world (joined), done (all parts finished).
    """

    rank: Count
    node: str
    local_rank: Count = 0
    pid: Pid | None = None
    phase: Literal["start", "world", "done"] = "start"
    last_step: str = ""
    since_s: float = 0.0
    proc_state: str = ""
    exit: int | None = None
    error: str = ""
    first: bool = False


class Silence(Struct, frozen=True, kw_only=True):
    """A node that did not answer: what it did last, and what its process said."""

    node: str
    last_step: str
    since_s: float
    detail: str = ""


class JobEnd(Struct, frozen=True, kw_only=True):
    """How the torchrun of one node ended. detail: the last lines that it printed."""

    node: str
    exit: int | None
    detail: str = ""


class Leftover(Struct, frozen=True, kw_only=True):
    """A process that SIGKILL did not end: state D, which only the device behind `wchan` can end."""

    node: str
    pid: int
    state: str
    wchan: str
    devices: str = ""
    command: str


class Run(Struct, frozen=True, kw_only=True):
    """What happened while the tool ran."""

    ranks: list[RankState] = field(default_factory=list)
    silent: list[Silence] = field(default_factory=list)
    ends: list[JobEnd] = field(default_factory=list)
    leftovers: list[Leftover] = field(default_factory=list)
    started_job: bool = False
    stopped_by: Literal[
        "", "deadline", "signal", "dead rank", "stopped rank", "silent node", "early end", "refused"
    ] = ""


class Times(Struct, frozen=True, kw_only=True):
    """Microseconds over iterations, each the maximum over ranks."""

    p50: float
    p95: float
    p99: float
    min: float
    max: float
    mean: float


class Expected(Struct, frozen=True, kw_only=True):
    """The range in which busbw should lie, GB/s, and what says so."""

    low: float
    high: float
    basis: str


class Collective(Struct, frozen=True, kw_only=True):
    """One row of the table. state: ok, wrong (result), skipped (with `reason`)."""

    op: Word
    bytes: int
    dtype: Word
    nodes: Count
    ranks: Count
    iterations: int = 0
    time_us: Times | None = None
    algbw_gb_s: float | None = None
    busbw_gb_s: float | None = None
    expected_gb_s: Expected | None = None
    correct: bool | None = None
    state: Literal["ok", "fail", "skipped"] = "ok"
    reason: str = ""


class WrongResult(Struct, frozen=True, kw_only=True):
    """The first wrong element that one rank found. Offsets count elements of the rank's result."""

    op: Word
    bytes: int
    dtype: Word
    rank: Count
    node: str
    wrong: int
    offset: int
    expected_bits: str
    got_bits: str


class Startup(Struct, frozen=True, kw_only=True):
    """Seconds, the slowest rank of each."""

    import_: float = field(name="import")
    rendezvous: float
    init: float
    first_collective: float


class Door(Struct, frozen=True, kw_only=True):
    """Where a node can be reached while reach is measured. token: what a visitor says first; never saved."""

    node: int
    name: str
    interface: str
    address: str
    tcp_port: int
    udp_port: int
    mtu: int
    token: str


ConnectOutcome = Literal["ok", "refused", "timed_out", "unreachable", "stranger", "silent", "not_sent"]


class Connect(Struct, frozen=True, kw_only=True, tag="connect"):
    """A TCP connection to a peer's random high port. detail: the kernel's word.

    stranger: what listens there is not our peer. silent: it was accepted, and nobody spoke. not_sent: the
    kernel here refused to try.
    """

    outcome: ConnectOutcome
    detail: str = ""


class ClockOffset(Struct, frozen=True, kw_only=True, tag="clock_offset"):
    """The peer's clock minus ours, and how far off that may be: half a round trip."""

    seconds: float
    within_s: float


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


class PeerReach(Struct, frozen=True, kw_only=True):
    """What one node saw of one peer. source, interface: whence the kernel sends to it. bursts: to the peer."""

    peer: str
    address: str
    connect: Connect | Unread = NOT_RECORDED
    rtt_us: float | Unread = NOT_RECORDED
    clock: ClockOffset | Unread = NOT_RECORDED
    echoes: Echoes | Unread = NOT_RECORDED
    path_mtu: PathMtu | Unread = NOT_RECORDED
    source: str | Unread = NOT_RECORDED
    interface: str | Unread = NOT_RECORDED
    resolved: Resolution | Unread = NOT_RECORDED
    bursts: list[Burst] = field(default_factory=list)


class Counters(Struct, frozen=True, kw_only=True, tag="counters"):
    """How far the counters of an interface rose during the bursts, both directions. Source: /proc/net/dev."""

    packets: int
    errors: int
    drops: int


class NodeReach(Struct, frozen=True, kw_only=True):
    """What one node saw of the others from the interface that the job would use.

    udp_overflows: UDP packets that this host itself dropped, its buffers full (RcvbufErrors, /proc/net/snmp).
    """

    node: str
    interface: str
    address: str
    mtu: int
    peers: list[PeerReach] = field(default_factory=list)
    counters: Counters | Unread = NOT_RECORDED
    udp_overflows: int = 0
    seconds: float = 0.0


class Measurements(Struct, frozen=True, kw_only=True):
    """What the job measured, and before it the nodes of each other."""

    collectives: list[Collective] = field(default_factory=list)
    wrong: list[WrongResult] = field(default_factory=list)
    startup_s: Startup | None = None
    reach: list[NodeReach] = field(default_factory=list)


class Requirement(Struct, frozen=True, kw_only=True):
    """One `--require`: a count (`gpu=8`) or, with count None, the code of a rule."""

    what: str
    count: int | None = None


class Policy(Struct, frozen=True, kw_only=True):
    """What the site and the user expect; from options, NCCLCHECK_* and ncclcheck.toml."""

    require: list[Requirement] = field(default_factory=list)
    thresholds: dict[str, float] = field(default_factory=dict)
    contact: str = ""


class Crash(Struct, frozen=True, kw_only=True):
    """A rule that raised."""

    code: str
    error: str


class Cluster(Struct, frozen=True, kw_only=True):
    """All that is known: the only thing that a rule sees."""

    command: Word = "env"
    nodes: list[Node] = field(default_factory=list)
    job: Job = field(default_factory=Job)
    run: Run = field(default_factory=Run)
    measurements: Measurements = field(default_factory=Measurements)
    policy: Policy = field(default_factory=Policy)
    crashes: list[Crash] = field(default_factory=list)


def at(subject: Any, path: str) -> Any:
    """The fact at a dotted path below `subject`, or the Unread that stands in the way."""
    for part in _parts(path):
        if isinstance(subject, Unread):
            return subject
        subject = getattr(subject, part)
    return subject


@cache
def _parts(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


def unread_in(subject: Any, path: str = "") -> Iterator[tuple[str, Unread]]:
    """Every unread fact below `subject`, with its dotted path."""
    if isinstance(subject, Unread):
        yield path, subject
    elif isinstance(subject, Struct):
        for name in subject.__struct_fields__:
            if not isinstance(value := getattr(subject, name), (str, int, float)):  # most are, and none is unread
                yield from unread_in(value, f"{path}.{name}" if path else name)
    elif isinstance(subject, list):
        for index, item in enumerate(subject):
            yield from unread_in(item, f"{path}[{getattr(item, 'name', index)}]")


def variables(node: Node) -> dict[str, str]:
    """The environment of a node's job as a mapping; empty where it was not read."""
    listed = at(node, "job.variables")
    return {} if isinstance(listed, Unread) else {v.name: v.value for v in listed}


replace = msgspec.structs.replace
