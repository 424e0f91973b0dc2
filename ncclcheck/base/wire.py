"""The conversation of a launcher with its agents: typed records in lines that survive srun.

A record travels as JSON, cut into lines of at most 900 bytes, `node seq part/parts payload`: srun mixes
longer lines of different tasks (measured). Whatever else stands on the channel is kept as noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar, Union

import msgspec
from msgspec import Struct

from ncclcheck.base import protocol
from ncclcheck.probes import facts
from ncclcheck.probes.job import context


class NoRecord(ValueError):
    """A line that is no record: damaged, hostile or of another protocol."""


T = TypeVar("T")
MOST_RECORD = 32 * 2**20  # bytes: the facts of a node are 0.1 to 0.5 MB, the longest result of a job some MB
MOST_KEPT = 128 * 2**20  # bytes of one agent's records that are kept until the end: facts and results
RELAY = 999_999_999  # stands for a relay itself where a node's number stands
MOST_KNOCKS = 4  # silent nodes that the others try: more have one cause, a switch or the power
_MOST_LINE_BYTES = 900  # below the lines that srun mixes (above); 50 are for node, number and parts


class Hello(Struct, tag="hello", frozen=True, kw_only=True):
    """An agent's first word: who it is and what it speaks."""

    protocol: int
    version: str
    node: int
    hostname: str
    pid: int
    python: str
    path: str


class Facts(Struct, tag="facts", frozen=True, kw_only=True):
    """All that the probes read on this node."""

    node: facts.Node


class Alike(Struct, tag="alike", frozen=True, kw_only=True):
    """The facts of a node as differences from those of another that were said before on this channel."""

    like: int
    differences: dict[str, msgspec.Raw]


class RelayedEnd(Struct, tag="ended", frozen=True, kw_only=True):
    """A relay's word for a node behind it: the way to its agent closed. See agents.Closed."""

    detail: str
    printed: str = ""
    exit: int | None = None


class StepNotice(Struct, tag="step", frozen=True, kw_only=True):
    """What is about to begin; announced before it starts. rank is None for the agent itself."""

    text: str
    rank: int | None = None


class RankReport(Struct, tag="rank", frozen=True, kw_only=True):
    """The state of one rank of this node."""

    state: facts.RankState


class Listening(Struct, tag="listening", frozen=True, kw_only=True):
    """Where this node can be reached now, or why it cannot."""

    door: facts.Door | None
    problem: facts.NoDoor | None = None


class Reach(Struct, tag="reach", frozen=True, kw_only=True):
    """What this node saw of the others."""

    reach: facts.NodeReach


class Knocked(Struct, tag="knocked", frozen=True, kw_only=True):
    """What this node found where it tried silent ones."""

    found: list[facts.Knock]


class InitTried(Struct, tag="init_tried", frozen=True, kw_only=True):
    """What this node sees of the place where the ranks are to find each other, so far."""

    seen: facts.InitSeen


class RankResult(Struct, tag="result", frozen=True, kw_only=True):
    """Finished measurements of one rank."""

    part: facts.Measurements


class JobEnded(Struct, tag="job_ended", frozen=True, kw_only=True):
    """This node's torchrun or examiner has ended, or could not start. port_taken: that of the rendezvous was."""

    end: facts.JobEnd
    port_taken: bool = False
    leftovers: list[facts.Leftover] = []


class AgentBeat(Struct, tag="beat", frozen=True, kw_only=True):
    """The agent runs, though it has nothing to tell."""


class Bye(Struct, tag="bye", frozen=True, kw_only=True):
    """An agent's last word."""

    reason: str = ""


class StartJob(Struct, tag="job", frozen=True, kw_only=True):
    """Start this node's ranks. endpoint: host:port of the rendezvous; env: variables that the launcher adds.

    start: what starts them. init_method: where they find each other; empty: env://.

    place: of this node among those that take part. unset: variables of the user that the launcher takes away. The
    node whose `is_host` is true opens the store there; `seconds` is the limit of the whole job.
    """

    run_id: str
    endpoint: str
    is_host: bool
    place: int = 0
    local_addr: str
    nodes: int
    ranks_per_node: int
    backend: str
    plan: msgspec.Raw
    env: dict[str, str]
    unset: list[str] = []
    seconds: float
    start: facts.Start = "torchrun"
    init_method: str = ""


class Examine(Struct, tag="examine", frozen=True, kw_only=True):
    """Examine the user's dataset in a process of its own; a JobEnded tells its end. plan: a DataPlan."""

    plan: msgspec.Raw
    seconds: float


class Listen(Struct, tag="listen", frozen=True, kw_only=True):
    """Open a door on this address for the time of the reach stage."""

    address: str


class ReachPeers(Struct, tag="peers", frozen=True, kw_only=True):
    """Measure the way to these doors. names: host name of each peer -> the address that it should resolve to.

    gloo: by node, the address that gloo would tell there, where that is not the door's.
    """

    doors: list[facts.Door]
    names: dict[str, str]
    gloo: dict[int, str] = {}
    seconds: float


class KnockOrder(Struct, tag="knock", frozen=True, kw_only=True):
    """Try to connect to these nodes, which say nothing any more."""

    doors: list[facts.Door]
    seconds: float


class InitOrder(Struct, tag="init", frozen=True, kw_only=True):
    """Try the place where the ranks are to find each other. token: of this trial; hosts: rank 0 runs here."""

    url: str
    token: str
    hosts: bool
    seconds: float


class InitLook(Struct, tag="init_look", frozen=True, kw_only=True):
    """All have opened what they had to: look now. nodes: those that take part, that of rank 0 first."""

    nodes: list[str]


class SpreadOrder(Struct, tag="spread", frozen=True, kw_only=True):
    """A relay's first order: start these agents and speak for them. here: the node that is the relay's own host.

    agents: what to start for each node; for the others it is an ssh.
    """

    here: int
    agents: dict[int, list[str]]


class Alive(Struct, tag="alive", frozen=True, kw_only=True):
    """The launcher is there; an agent that has heard this once and then nothing for long ends by itself."""


class Halt(Struct, tag="halt", frozen=True, kw_only=True):
    """End the job that runs, say how it went, and wait for the next order."""


class Stop(Struct, tag="stop", frozen=True, kw_only=True):
    """Kill everything you started, say bye and leave."""

    reason: str = ""


FromAgent = Union[
    Hello,
    Facts,
    Alike,
    RelayedEnd,
    StepNotice,
    Listening,
    Reach,
    Knocked,
    InitTried,
    RankReport,
    RankResult,
    JobEnded,
    AgentBeat,
    Bye,
]
FromLauncher = Union[
    Listen, ReachPeers, KnockOrder, InitOrder, InitLook, StartJob, Examine, SpreadOrder, Alive, Halt, Stop
]

PROTOCOL = protocol.of(__name__, facts.__name__, context.__name__)  # orders carry the plans of context

_encoder = msgspec.json.Encoder()
_from_agent: msgspec.json.Decoder[FromAgent] = msgspec.json.Decoder(FromAgent)
_from_launcher: msgspec.json.Decoder[FromLauncher] = msgspec.json.Decoder(FromLauncher)


def lines(record: FromAgent, node: int, seq: int) -> Iterator[bytes]:
    """The lines of one record, each with its newline."""
    payload = _encoder.encode(record)
    room = _MOST_LINE_BYTES - 50
    pieces = [payload[i : i + room] for i in range(0, len(payload), room)]
    for part, piece in enumerate(pieces, 1):
        yield b"%d %d %d/%d %s\n" % (node, seq, part, len(pieces), piece)


class TooMuch(ValueError):
    """An agent has said more than any agent has to say."""


class Assembler:
    """Puts the lines of one agent's channel together, which come in order. `noise` keeps what was not ours."""

    def __init__(self) -> None:
        self.noise: list[str] = []
        self._pieces: list[bytes] = []
        self._place = (0, 0)  # number and parts of the record that is under way
        self._size = self._kept = 0

    def feed(self, line: bytes) -> FromAgent | None:
        """The record that this line completes, if it does. What is damaged is noise. Raises TooMuch."""
        try:
            _, seq, place, payload = line.rstrip(b"\n").split(b" ", 3)
            part, parts = (int(number) for number in place.split(b"/"))
            number = int(seq)
        except ValueError:
            self._keep_noise(line)
            return None
        if part == 1:
            self._pieces, self._place, self._size = [], (number, parts), 0
        if self._place != (number, parts) or part != len(self._pieces) + 1 or part > parts:
            self._keep_noise(line)
            return None
        self._pieces.append(payload)
        self._size += len(payload)
        if self._size > MOST_RECORD:
            raise TooMuch(f"a record of more than {MOST_RECORD / 2**20:.0f} MiB")
        return self._decode(line) if part == parts else None

    def _decode(self, line: bytes) -> FromAgent | None:
        try:
            record = read_from_rank(b"".join(self._pieces))
        except NoRecord:
            self._keep_noise(line)
            return None
        finally:
            self._pieces = []
        if not isinstance(
            record, (RankReport, StepNotice, AgentBeat)
        ):  # each of these takes the place of the one before
            self._kept += self._size
            if self._kept > MOST_KEPT:
                raise TooMuch(f"records of more than {MOST_KEPT / 2**20:.0f} MiB")
        return record

    def _keep_noise(self, line: bytes) -> None:
        if len(self.noise) < 200:
            self.noise.append(line.decode(errors="backslashreplace").rstrip("\n")[:500])


def node_of(line: bytes) -> int:
    """The node that a line on a shared channel comes from or is meant for; -1 for what is not ours."""
    head = line.split(b" ", 1)[0]
    return int(head) if head.isdigit() and len(head) < 10 else -1


def order(node: int | None, record: FromLauncher) -> bytes:
    """One line for the agent of one node, or of all (None): srun gives every task every line."""
    return b"%s %s\n" % (b"*" if node is None else b"%d" % node, _encoder.encode(record))


def read_order(line: bytes, node: int) -> FromLauncher | None:
    """The launcher's record in one line; None for another node's. Raises NoRecord."""
    mine = line.startswith(b"* ") or node_of(line) == node
    return _read(_from_launcher, line.partition(b" ")[2]) if mine else None


def encode_from_rank(record: FromAgent) -> bytes:
    """One line for the agent's Unix socket."""
    return _encoder.encode(record) + b"\n"


def read_from_rank(line: bytes) -> FromAgent:
    """A rank's record in one line. Raises NoRecord."""
    return _read(_from_agent, line)


def _read(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NoRecord(str(error)) from None
