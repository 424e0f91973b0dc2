"""What NCCL's RAS answered about a job that runs now."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Whole


class RasRank(Struct, frozen=True, kw_only=True):
    """A rank of a communicator. host: an address of its node; pid: in its own namespace; else empty and 0."""

    rank: Count
    host: str = ""
    pid: Whole = 0
    gpu: str = ""


class RasShare(Struct, frozen=True, kw_only=True):
    """Ranks of a communicator that are alike. ranks: those that RAS names, which may be fewer than `count`."""

    count: Whole
    ranks: list[RasRank] = field(default_factory=list)


class RasLaunched(RasShare, frozen=True, kw_only=True):
    """How many operations of one kind they have launched; op is empty before 2.26, which counts all kinds as one.

    A launch is what the program has handed to its GPU, and says nothing of its end. Send and Recv are not counted.
    """

    op: str = ""
    launched: Whole = 0


class RasStatus(RasShare, frozen=True, kw_only=True):
    """Their state there: INIT, RUNNING, FINALIZE, ABORT, NOCOMM (before 2.26 UNKNOWN), or an error."""

    status: str


class RasCommunicator(Struct, frozen=True, kw_only=True):
    """A communicator whose ranks differ or do not answer. launched: of each operation in which they differ."""

    hash: str
    launched: list[RasLaunched] = field(default_factory=list)
    statuses: list[RasStatus] = field(default_factory=list)
    missing: list[RasRank] = field(default_factory=list)


class RasGroup(Struct, frozen=True, kw_only=True):
    """Communicators that are alike: how many, of how many ranks, how many of these answered in all."""

    communicators: Whole
    ranks: Whole
    answered: Whole
    status: str
    errors: list[str] = field(default_factory=list)


class RasLook(Struct, frozen=True, kw_only=True):
    """One answer. launches: of all communicators and kinds together, where RAS tells them (JSON).

    processes: (address, pid) of those that do not answer; dead: as many RAS has given up. timeouts: while it
    asked around. unread: lines that are of no known form. cut: it was longer than what is read.
    """

    version: str = ""
    seconds: Amount = 0.0
    tries: Whole = 1
    form: Literal["text", "json"] = "text"
    groups: list[RasGroup] = field(default_factory=list)
    troubled: list[RasCommunicator] = field(default_factory=list)
    processes: list[tuple[str, Whole]] = field(default_factory=list)
    dead: Whole = 0
    timeouts: Whole = 0
    launches: Whole | None = None
    unread: Whole = 0
    cut: bool = False


class Ras(Struct, frozen=True, kw_only=True):
    """What RAS said of one job at two questions, or why nothing.

    version: of the libnccl that is mapped. apart_s: between the questions. diagnostics: of DIAGNOSTICS (2.31) the
    lines that find something.
    """

    job: str
    scope: str = ""
    host: str = ""
    version: str = ""
    port: Whole = 28028
    looks: list[RasLook] = field(default_factory=list)
    apart_s: Amount = 0.0
    diagnostics: list[str] = field(default_factory=list)
    problem: str = ""
