"""What the nodes of a join say to each other: one line of JSON a record, beside the agents' own lines.

Node rank 0 greets first, so that nobody takes another program's port for the meeting point. Both sides then
prove that they know the run's id, over numbers that the other side chose. What an agent says travels as it
is (it begins with its node's number), and so do the orders to it; only records begin with a brace.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Literal, TypeVar, Union

import msgspec
from msgspec import Struct

T = TypeVar("T")

PROTOCOL = 1
MOST_FROM_NODE = 65536
MOST_FROM_MEETING = 256 * 2**20
HANDSHAKE_S = 5.0
BEAT_S = 2.0
SILENT_S = 15.0

Refusal = Literal["other run", "same rank", "other count", "other command", "other protocol", "late"]


class Greeting(Struct, tag="ncclcheck", frozen=True, kw_only=True):
    """The meeting point's first line, before it knows who came."""

    protocol: int
    version: str
    nonce: str


class Join(Struct, tag="join", frozen=True, kw_only=True):
    """A node asks to take part. address: its own end of this connection."""

    protocol: int
    version: str
    command: str
    nodes: int
    node_rank: int
    name: str
    address: str
    nonce: str
    proof: str


class Welcome(Struct, tag="welcome", frozen=True, kw_only=True):
    """It takes part, under this name, which no other node has."""

    name: str
    proof: str


class Refused(Struct, tag="refused", frozen=True, kw_only=True):
    """It does not take part, and why."""

    kind: Refusal
    reason: str


class Beat(Struct, tag="beat", frozen=True, kw_only=True):
    """The other side is there, though it has nothing to tell."""


class Begun(Struct, tag="begun", frozen=True, kw_only=True):
    """The wait for others is over, and deadlines count from now."""


class Ended(Struct, tag="ended", frozen=True, kw_only=True):
    """A node's agent is gone. detail: the last that it wrote to stderr."""

    detail: str


class Done(Struct, tag="done", frozen=True, kw_only=True):
    """The outcome for all nodes. document: the report as JSON, where every node is to keep one."""

    exit_code: int
    decision: str
    document: bytes | None = None


FromNode = Union[Join, Beat, Ended]
FromMeeting = Union[Greeting, Welcome, Refused, Begun, Beat, Done]

_encoder = msgspec.json.Encoder()
_from_node: msgspec.json.Decoder[FromNode] = msgspec.json.Decoder(FromNode)
_from_meeting: msgspec.json.Decoder[FromMeeting] = msgspec.json.Decoder(FromMeeting)


def encode(record: FromNode | FromMeeting) -> bytes:
    """One line."""
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


def nonce() -> str:
    """A number that nobody can foresee."""
    return secrets.token_hex(16)


def proof(run_id: str, *said: object) -> str:
    """What only somebody who knows the run's id can say over these words."""
    key = hashlib.sha256(b"ncclcheck run " + run_id.encode(errors="backslashreplace")).digest()
    return hmac.new(key, "\n".join(map(str, said)).encode(), hashlib.sha256).hexdigest()


def proof_of_node(run_id: str, greeting: Greeting, nodes: int, node_rank: int) -> str:
    """A node's proof, for this greeting only."""
    return proof(run_id, "node", greeting.nonce, nodes, node_rank)


def proof_of_meeting(run_id: str, join: Join) -> str:
    """The meeting point's proof to this node."""
    return proof(run_id, "meeting", join.nonce, join.node_rank)


def same(one: str, other: str) -> bool:
    """Compared in a time that tells nothing."""
    return hmac.compare_digest(one.encode(errors="backslashreplace"), other.encode(errors="backslashreplace"))
