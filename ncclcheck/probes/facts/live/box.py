"""What a black box holds: one node's view of a job, from its start to its end."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Pid, Whole

Rank = int  # -1: none
Role = Literal["root", "rank", "helper", "other"]
# Seconds after the end of a stall from which on the job had gone on; in them ranks move as they are ended. Chosen:
# launchers give their ranks 30 s, some twice.
WENT_ON_S = 60.0


class BoxProcess(Struct, frozen=True, kw_only=True):
    """A process of the job. born, gone: seconds since the epoch, gone null where it was never seen to end.

    role: COMMAND's own, a rank's, one that works for a rank, any other. status: as waitpid(2) has it, null where
    nobody saw it. rss_most: bytes, the largest that was seen. state: its last letter of /proc/PID/stat; wchan: the
    kernel function in which it waited at a stall. idle_s: for how long before its end, or that of the record, it
    had used no CPU. stack: of its main thread when it was last asked or crashed, the innermost frame first.
    cores, apart, wrote: of a rank, for each of the box's samples: cores in use, the share of looks at which
    its main thread waited for nobody, and bytes that it wrote a second. injected: whether its Python could say
    why it ended; null where nobody looked. printed: its last lines in the job's output, as far as they can be
    told from those of others; odd: the first of them with a value that is not finite. left_at: where it called
    sys.exit() or os._exit(), the innermost frame first; caught: the exception that it had caught then, where
    it left with exit code 0; left: when its Python came to its end with exit code 0. asked, code: when it
    had asked to end with another one. aborted: what was printed
    as SIGABRT ended it. gave_up: after which time its own faulthandler ended it. threads: lines of the user's
    in which its other threads were then. world, meets: WORLD_SIZE and MASTER_ADDR:MASTER_PORT in its
    environment. lock: the file for whose end its torch waits (FileBaton). mapped: as SIGBUS ended it, the
    file that was cut while it had it in memory, or how small /dev/shm is, in words. pipe: the named pipe that
    it was opening while a rank failed, which nobody had opened at its other end.
    """

    pid: Pid
    parent: Whole = 0
    rank: Rank = -1
    role: Role = "other"
    command: str = ""
    born: Amount = 0.0
    gone: Amount | None = None
    status: Whole | None = None
    rss_most: Whole = 0
    state: str = ""
    wchan: str = ""
    idle_s: Amount = 0.0
    local_rank: int = -1
    injected: bool | None = None
    cores: list[Amount] = field(default_factory=list)
    apart: list[Amount] = field(default_factory=list)
    wrote: list[Amount] = field(default_factory=list)
    stack: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    odd: str = ""
    left_at: list[str] = field(default_factory=list)
    caught: str = ""
    left: Amount | None = None
    aborted: str = ""
    threads: list[str] = field(default_factory=list)
    gave_up: str = ""
    world: Whole = 0
    meets: str = ""
    asked: Amount | None = None
    code: Whole = 0
    lock: str = ""
    mapped: str = ""
    pipe: str = ""


class BoxRaised(Struct, frozen=True, kw_only=True):
    """An exception that nobody caught. frames: `FILE:LINE in FUNCTION`, the innermost last. cause: its own.

    host: where, if that is not the box's own: srun passes the box's settings on to all nodes. printed: it was read
    in the job's output, where its process could not say it into the box. thread: of the thread that it ended, for
    one that is not the main thread: its process went on. code: of sys.exit(), for one that the program caught and
    ended itself for, null otherwise. not_finite: names of the program's variables that were NaN or infinite there.
    port: that was in use, 0 for unknown; holder: the process that listened there, 0 for unknown; holds: its name.
    """

    t: Amount
    pid: Pid
    rank: Rank = -1
    type: str
    message: str = ""
    cause: str = ""
    host: str = ""
    printed: bool = False
    thread: str = ""
    code: Whole | None = None
    frames: list[str] = field(default_factory=list)
    not_finite: list[str] = field(default_factory=list)
    port: Whole = 0
    holder: Whole = 0
    holds: str = ""


class BoxSent(Struct, frozen=True, kw_only=True):
    """A signal that a Python process of the job has sent. to: a process, or with `group` a group of them.

    at: the line in which it did, the innermost frame first.
    """

    t: Amount
    pid: Pid
    rank: Rank = -1
    to: Pid
    number: Whole
    group: bool = False
    at: list[str] = field(default_factory=list)


class BoxBegan(Struct, frozen=True, kw_only=True):
    """A program that a Python process of the job has started. at: the line, the innermost frame first."""

    t: Amount
    pid: Pid
    rank: Rank = -1
    command: str
    at: list[str] = field(default_factory=list)


class BoxLimit(Struct, frozen=True, kw_only=True):
    """A limit that a rank had used up while one of the job failed, in words."""

    t: Amount
    pid: Pid
    text: str


class BoxSignal(Struct, frozen=True, kw_only=True):
    """A signal that reached the wrapper. by: the command of its sender; empty for the kernel's terminal."""

    t: Amount
    number: Whole
    sender: Whole = 0
    by: str = ""
    of_group: bool = False


class BoxOom(Struct, frozen=True, kw_only=True):
    """Processes that the kernel killed for want of memory. by: cgroup -> how many, `node` for all of the node.

    limit: bytes that the nearest cgroup with a limit allows.
    """

    t: Amount
    by: dict[str, Whole] = field(default_factory=dict)
    limit: Whole | None = None


class BoxStall(Struct, frozen=True, kw_only=True):
    """No sign of life for `silent` seconds when it was noticed at `t`. resumed: when there was one again."""

    t: Amount
    silent: Amount
    limit: Amount = 0.0
    killed: bool = False
    resumed: Amount | None = None


class BoxTold(Struct, frozen=True, kw_only=True):
    """A message of the kernel, or counters of a network interface that grew."""

    t: Amount
    text: str


class BoxRoom(Struct, frozen=True, kw_only=True):
    """The least room that was seen in a folder in which ranks had files open for writing."""

    folder: str
    free: Whole
    t: Amount


class BoxXid(Struct, frozen=True, kw_only=True):
    """A critical error of the driver that NVML reported. gpu: its index of NVML's, -1 where it was not told."""

    t: Amount
    gpu: int
    code: Whole


class BoxPeers(Struct, frozen=True, kw_only=True):
    """From `t` on: addresses that did not answer what was sent to them."""

    t: Amount
    by: list[str] = field(default_factory=list)


class BoxSample(Struct, frozen=True, kw_only=True):
    """What one node did since the sample before. rss: bytes of all processes of the job; cores: in use by them.

    others: cores in use by processes that are none of the job's; stolen: by the hypervisor. sent, received: bytes
    a second of all interfaces. unsent: bytes that waited to be sent or answered. swapped: pages a second; held:
    seconds of CPU limits a second. clocks, busy, watts: of each GPU, in MHz, percent and watts, -1 for unknown.
    """

    t: Amount
    rss: Whole = 0
    cores: Amount = 0.0
    others: Amount = 0.0
    stolen: Amount = 0.0
    sent: Amount = 0.0
    received: Amount = 0.0
    unsent: Whole = 0
    swapped: Amount = 0.0
    held: Amount = 0.0
    clocks: list[int] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    watts: list[int] = field(default_factory=list)


class Box(Struct, frozen=True, kw_only=True):
    """One node's folder. status: COMMAND's, negative for a signal; null where its end was not written.

    last: when the watcher last wrote anything; closed: it came to its end. world: the largest that ranks told.
    clock: seconds that were added to all its times, so that they can be compared with those of other nodes; null
    where nothing is known of its clock. addresses: of its interfaces. silent: nodes that wrote nothing any more,
    as this one saw it when its job had ended. gpu_pids: processes on each GPU.
    lost: what could not be read or recorded, in words.
    """

    host: str
    folder: str
    command: str = ""
    started: Amount = 0.0
    ended: Amount | None = None
    status: int | None = None
    last: Amount = 0.0
    closed: bool = False
    world: Whole = 0
    processes: list[BoxProcess] = field(default_factory=list)
    raised: list[BoxRaised] = field(default_factory=list)
    signals: list[BoxSignal] = field(default_factory=list)
    limits: list[BoxLimit] = field(default_factory=list)
    sent: list[BoxSent] = field(default_factory=list)
    began: list[BoxBegan] = field(default_factory=list)
    ooms: list[BoxOom] = field(default_factory=list)
    stalls: list[BoxStall] = field(default_factory=list)
    kernel: list[BoxTold] = field(default_factory=list)
    network: list[BoxTold] = field(default_factory=list)
    rooms: list[BoxRoom] = field(default_factory=list)
    samples: list[BoxSample] = field(default_factory=list)
    clock: float | None = None
    addresses: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    xids: list[BoxXid] = field(default_factory=list)
    peers: list[BoxPeers] = field(default_factory=list)
    gpu_pids: list[list[Pid]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
