"""What logs say: lines that mean something, and what each process told of itself."""

from __future__ import annotations

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Count, Pid, Whole
from ncclcheck.probes.facts.log.fields import LogFields
from ncclcheck.probes.facts.log.flight import Flight
from ncclcheck.probes.facts.measured.transport import Endpoint


class LogFile(Struct, frozen=True, kw_only=True):
    """One file that was read. problem: why it was not, or not to its end. empty_folder: it is one, and no file.

    records: lines that NCCL wrote; operations: of these the ones that tell of a single collective.
    last_record: the number of the last line that NCCL wrote. advanced: of the last on which a progress bar went on
    by some steps. familiar: NCCL, torch or a launcher is named in it.
    """

    name: str
    bytes: Whole = 0
    lines: Whole = 0
    records: Whole = 0
    operations: Whole = 0
    last_record: Whole = 0
    advanced: Whole = 0
    familiar: bool = False
    problem: str = ""
    empty_folder: bool = False


class LogEvent(Struct, frozen=True, kw_only=True):
    """A line that is known. sign: what it says, by the name in probes/logs/signs; fields: what was named in it.

    order: its place among all lines of all files, in the order of the files. host, pid: as NCCL wrote them before
    it; rank: of that process, or by the launcher's prefix. time: seconds since the year began, by the log's own
    clock. level: NCCL's or torch's. count: how often this process said it (or nobody known).
    """

    sign: str
    file: str
    line: Whole
    text: str
    order: Whole
    host: str = ""
    pid: Pid | None = None
    rank: Count | None = None
    time: float | None = None
    level: str = ""
    fields: LogFields = field(default_factory=LogFields)
    count: Whole = 1


class LogProcess(Struct, frozen=True, kw_only=True):
    """What one process said of itself in NCCL's words; of communicators the largest.

    devices: of NET/IB, name -> link (`mlx5_0:1` -> `RoCE`); direct: HCA -> whether GPUDirect RDMA is on.
    vias: kind of connection (`P2P/IPC`, `SHM`, `NET/IB/GDRDMA`, `NET/Socket`) -> how many channels.
    began, completed: communicators.
    chunk: bytes that P2P sends at once.
    rails: numbers of the network devices that connections went over.
    several: its ranks where it has several GPUs, and so no rank of its own.
    first_line, started_line: of its file, its first line and the last that tells of a start that came through.
    """

    host: str
    pid: Pid
    rank: Count | None = None
    several: list[Count] = field(default_factory=list)
    version: str = ""
    driver: str = ""
    bootstrap: Endpoint | None = None
    network: str = ""
    plugin: str = ""
    no_infiniband: str = ""
    interfaces: list[Endpoint] = field(default_factory=list)
    devices: dict[str, str] = field(default_factory=dict)
    direct: dict[str, bool] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    vias: dict[str, Whole] = field(default_factory=dict)
    rails: list[Count] = field(default_factory=list)
    nranks: Count | None = None
    nnodes: Count | None = None
    local_ranks: Count | None = None
    bus_id: str = ""
    channels: Count | None = None
    began: Count = 0
    completed: Count = 0
    ended: Count = 0
    rings: bool = False
    trees: bool = False
    nvls: bool | None = None
    chunk: Whole | None = None
    first_line: Whole = 0
    started_line: Whole = 0
    file: str = ""


class LogMember(Struct, frozen=True, kw_only=True):
    """One rank of a communicator, as its process told. line: that of "Init START", else of "COMPLETE"."""

    rank: Count
    nranks: Count
    host: str
    pid: Pid
    bus_id: str = ""
    file: str = ""
    line: Whole = 0
    complete: bool = False
    ended: bool = False


class LogCommunicator(Struct, frozen=True, kw_only=True):
    """A communicator of which not every rank, each once, is told to have come through its start.

    id: NCCL's commId; of a split its parent's, its number there and its colour.
    """

    id: str
    members: list[LogMember] = field(default_factory=list)


class Logs(Struct, frozen=True, kw_only=True, dict=True):  # its __dict__: what reports derive from it
    """All that the given files say. version: told without a process. dropped: lines that were known and not kept.

    world: the ranks of the largest communicator. ranks: those that anything was heard of.
    communicators: those that are not whole.
    """

    files: list[LogFile] = field(default_factory=list)
    events: list[LogEvent] = field(default_factory=list)
    processes: list[LogProcess] = field(default_factory=list)
    communicators: list[LogCommunicator] = field(default_factory=list)
    ranks: list[Count] = field(default_factory=list)
    world: Count | None = None
    version: str = ""
    dropped: Whole = 0
    flight: Flight | None = None
