"""What the nodes of a join say to each other: one line of JSON a record, beside the agents' own lines.

Node rank 0 greets first, so that nobody takes another program's port for the meeting point. Both sides then
prove that they know the run's key (sealed.py) over all that was said, and every later line is sealed. What an
agent says travels as it is (it begins with its node's number), and so do the orders to it; only records begin
with a brace.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, TypeVar, Union

import msgspec
from msgspec import Meta, Struct

from ncclcheck.base import protocol, wire
from ncclcheck.launch.joining.trust import sealed
from ncclcheck.launch.joining.trust.secret import Kind
from ncclcheck.probes.facts import Meeting, replace

T = TypeVar("T")

MOST_FROM_NODE = 65536  # bytes of a line from a node that has not yet proved who it is
MOST_FROM_MEETING = 256 * 2**20  # bytes of a line from node 0: the result of thousands of nodes
HANDSHAKE_S = 5.0  # s until a connection must have proved who it is; chosen
BEAT_S = 2.0  # s between two signs of life on a connection; chosen
SILENT_S = 15.0  # s without a sign of life before a peer is unresponsive: seven beats; chosen

Refusal = Literal[
    "other run", "other secret", "same rank", "other count", "other command", "other protocol", "late"
]


class Greeting(Struct, tag="ncclcheck", frozen=True, kw_only=True):
    """The meeting point's first line, before it knows who came.

    run: a digest of the run's id. secret: by what the run's nodes know each other. place: a digest of the run's id
    or, where that says nothing, of the endpoint: by another address only the very same run is joined.
    """

    protocol: int
    version: str
    nonce: str
    run: str = ""
    secret: Kind = "none"
    place: str = ""


class Join(Struct, tag="join", frozen=True, kw_only=True):
    """A node asks to take part. address: its own end of this connection.

    credential: by which the meeting point comes to know the key, where the secret is munge's.
    """

    protocol: int
    version: str
    command: str
    nodes: int
    node_rank: int
    name: str
    address: str
    nonce: str
    secret: Kind = "none"
    credential: str = ""
    proof: str = ""


class Welcome(Struct, tag="welcome", frozen=True, kw_only=True):
    """It takes part, under this name, which no other node has."""

    name: str
    proof: str


class RefusedJoin(Struct, tag="refused", frozen=True, kw_only=True):
    """It does not take part, and why. proof: that the meeting point of its own run says so."""

    kind: Refusal
    reason: str
    proof: str = ""


class JoinBeat(Struct, tag="beat", frozen=True, kw_only=True):
    """The other side is there, though it has nothing to tell."""


class Begun(Struct, tag="begun", frozen=True, kw_only=True):
    """The wait for others is over, and deadlines count from now."""


class AgentEnd(Struct, tag="ended", frozen=True, kw_only=True):
    """A node's agent is gone. detail: the last that it wrote to stderr."""

    detail: str


class CutOffNode(Struct, tag="cut off", frozen=True, kw_only=True):
    """A node came by another address, since the endpoint failed it so; None: it does not any more."""

    meeting: Meeting | None = None


class JoinOutcome(Struct, tag="done", frozen=True, kw_only=True):
    """The outcome for all nodes. document: the report as JSON, where every node is to keep one."""

    exit_code: Annotated[int, Meta(ge=0, le=255)]
    decision: str
    document: bytes | None = None


FromNode = Union[Join, JoinBeat, AgentEnd, CutOffNode]
FromMeeting = Union[Greeting, Welcome, RefusedJoin, Begun, JoinBeat, JoinOutcome]

_encoder = msgspec.json.Encoder()
_from_node: msgspec.json.Decoder[FromNode] = msgspec.json.Decoder(FromNode)
_from_meeting: msgspec.json.Decoder[FromMeeting] = msgspec.json.Decoder(FromMeeting)


def encode(record: FromNode | FromMeeting) -> bytes:
    """A record as one line of JSON."""
    return _encoder.encode(record) + b"\n"


def from_node(line: bytes) -> FromNode:
    """What a node says. Raises ValueError for whatever else it is."""
    return _read(_from_node, line)


def from_meeting(line: bytes) -> FromMeeting:
    """What the meeting point says. Raises ValueError for whatever else it is."""
    return _read(_from_meeting, line)


def _read(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a record: {error}") from None


def run_digest(run_id: str) -> str:
    """What tells runs apart on one port, and gives no id away."""
    return hashlib.sha256(b"ncclcheck run " + run_id.encode(errors="backslashreplace")).hexdigest()[:16]


def place_digest(run_id: str, endpoint: str) -> str:
    """What tells runs apart on all hosts of a network, where the same id, mostly none, is that of several."""
    return run_digest(f"id {run_id}" if run_id else f"at {endpoint}")


class Handshake:
    """What both sides have said before the first sealed line, and what each proves and seals with over it."""

    def __init__(self, key: bytes, greeting: Greeting, join: Join) -> None:
        self._key = key
        self._said = encode(greeting) + encode(replace(join, proof=""))

    def of_node(self) -> str:
        """The proof of a node that it knows the secret, in hexadecimal."""
        return sealed.proof(self._key, "node", self._said)

    def of_meeting(self, answer: Welcome | RefusedJoin) -> str:
        """The meeting point's proof over its answer."""
        return sealed.proof(self._key, "meeting", self._said + encode(replace(answer, proof="")))

    def seals(self) -> tuple[sealed.Seal, sealed.Seal]:
        """For the lines of the node, and for those of the meeting point."""
        return sealed.Seal(self._key, "node", self._said), sealed.Seal(self._key, "meeting", self._said)


PROTOCOL = protocol.of(__name__, wire.__name__) ^ wire.PROTOCOL
