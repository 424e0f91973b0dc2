"""The run that was asked for, and how its nodes met."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Count
from ncclcheck.probes.facts.machine.network import KeptBy, KernelRoute, Neighbour, Resolver
from ncclcheck.probes.facts.run.init import Start

Launcher = Literal["local", "slurm", "ssh", "join", "torchrun"]


class Arrival(Struct, frozen=True, kw_only=True):
    """A node that came to the meeting point of a join. nodes: how many it was told that there are.

    unreached: the endpoint failed it, as it saw that, and it came by another address of node rank 0.
    """

    outcome: Literal["joined", "left", "same rank", "other count", "other command", "other protocol", "late"]
    node_rank: int
    name: str
    address: str = ""
    nodes: int = 0
    detail: str = ""
    unreached: Meeting | None = None


class Meeting(Struct, frozen=True, kw_only=True):
    """How the nodes of a join met, as this node saw it; node rank 0 opens the meeting point on `endpoint`.

    told_by: the options or variables that it was read from. outcome: open, or on node rank 0 taken (no port could
    be opened), or on the others why node rank 0 was not reached. addresses: what the host resolves to here;
    sources: whence the kernel here would send to each of them, empty where it cannot; neighbours: whither on the
    wire, address and entry, where it knows.
    secret: by what the nodes know each other; "none": by nothing, so that anybody on the network may be one.
    unrouted: this host itself does not send there, kept: by what; no_route: it, or a machine on the way, says that
    there is none. ways: how the kernel here sends to each of the addresses. resolver: where a name was given;
    elsewhere: other addresses, which DNS or /etc/hosts of this host know, at which node rank 0 answered.
    """

    endpoint: str
    told_by: str
    outcome: Literal[
        "open", "taken", "unresolved", "unrouted", "no_route", "refused", "silent", "stranger", "turned_away"
    ]
    node_rank: int = 0
    detail: str = ""
    addresses: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    neighbours: dict[str, Neighbour] = field(default_factory=dict)
    arrivals: list[Arrival] = field(default_factory=list)
    seconds: float = 0.0
    secret: Literal["", "none", "secret", "munge"] = ""
    kept: KeptBy = ""
    ways: list[KernelRoute] = field(default_factory=list)
    resolver: Resolver | None = None
    elsewhere: list[str] = field(default_factory=list)


class OtherStep(Struct, frozen=True, kw_only=True):
    """A job step of Slurm that runs beside ours: its number (12.0), the name of its command, its nodes."""

    id: str
    name: str
    nodes: str = ""


class PlainStep(Struct, frozen=True, kw_only=True):
    """What an srun without options of ours met in this allocation.

    outcome: starts, refused (said: in srun's words), or waits for what the other steps hold. lost: variables of
    the shell that its task was not given. given: options that the user's own command has. typed: that command is
    known and begins with srun; else nobody knows how the job will be started.
    """

    outcome: Literal["starts", "refused", "waits"]
    said: str = ""
    seconds: float = 0.0
    lost: list[str] = field(default_factory=list)
    others: list[OtherStep] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    typed: bool = False


class Job(Struct, frozen=True, kw_only=True):
    """The run that was asked for. `chosen_by` is the variable or the option that chose the launcher.

    backend: nccl or gloo, empty before a job; backend_asked: what the user wanted, auto where nothing.
    injected: faults that the user had injected, as they were asked for.
    start: what starts the ranks of a node; init_method: its URL, empty for env://.
    jobs: how many jobs of one shape stand side by side; more than one in merged results alone.
    """

    launcher: Launcher = "local"
    chosen_by: str = ""
    simulated: bool = False
    backend: str = ""
    backend_asked: str = "auto"
    nodes_asked: Count = 1
    nodes_answered: Count = 0
    ranks: Count = 0
    jobs: Count = 1
    missing: list[str] = field(default_factory=list)
    meeting: Meeting | None = None
    step: PlainStep | None = None
    injected: list[str] = field(default_factory=list)
    start: Start = "torchrun"
    init_method: str = ""
