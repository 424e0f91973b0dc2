"""The nodes of a document in few bytes: one whole, and of those like it the differences alone.

`--save` writes it for large clusters, so that a file of 10,000 nodes is some megabytes; `--from` and `report` read
both forms, and `-o json` and `--json` write every node whole.

    {"name": "gpu-2", "like": "gpu-1", "differs": {"/host/hostname": "gpu-2", "/network/interfaces/0/mtu": 1500}}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ncclcheck.probes.facts import Node
from ncclcheck.probes.facts.guard.alike import Kinds, NotAlike, Once, applied
from ncclcheck.reports.judgement.findings import Verdict

# Nodes from which on a saved file is written so: a smaller one is some megabytes that people take apart with jq.
FROM_NODES = 65
# Findings of one check that such a file keeps, the worst first: they are judged anew whenever it is read.
MOST_FINDINGS = 64
# Bytes of JSON that the nodes of a file may stand for: 50,000 nodes of 8 GPUs; a small file cannot ask for more.
_MOST = 2**32


class LikeEntry(Struct, frozen=True, kw_only=True):
    """A node by its differences from an earlier one that is written whole. differs: JSON Pointer -> value."""

    name: str
    like: str
    differs: dict[str, Any]


class _EitherForm(Struct, frozen=True, kw_only=True):
    """Either form, as it is read."""

    name: str
    facts: msgspec.Raw | UnsetType = UNSET
    like: str = ""
    differs: dict[str, msgspec.Raw] = {}


class UnreadableNodes(ValueError):
    """The nodes of a saved file cannot be read; the text names the field and what is allowed there."""


def nodes(entries: Sequence[msgspec.Raw], kinds: Kinds) -> list[Node]:
    """The nodes of a saved file; what they have in common is one object. Raises UnreadableNodes."""
    whole: dict[str, tuple[Node, int]] = {}
    made_once = Once()
    restored: list[Node] = []
    size = 0
    for place, raw in enumerate(entries):
        entry = _decoded(raw, f"$.nodes[{place}]", _entry)
        if not isinstance(entry.facts, UnsetType):
            node = _decoded(entry.facts, f"$.nodes[{place}].facts", _node)
            made = kinds.shared(msgspec.structs.replace(node, name=entry.name))
            whole[entry.name] = made, len(memoryview(entry.facts))
        elif entry.like not in whole:
            which = f"like {entry.like!r}, which is no node before it that is written whole" if entry.like else ""
            raise UnreadableNodes(f"$.nodes[{place}]: it has no facts" + (f" and is {which}" if which else ""))
        else:
            prototype, its_size = whole[entry.like]
            size += its_size
            try:
                made = msgspec.structs.replace(applied(prototype, entry.differs, made_once), name=entry.name)
            except NotAlike as error:
                raise UnreadableNodes(f"$.nodes[{place}].differs: {error}") from None
        if size > _MOST:
            raise UnreadableNodes(f"$.nodes: they stand for more than {_MOST / 2**30:.0f} GiB of facts")
        restored.append(made)
    return restored


_entry: msgspec.json.Decoder[_EitherForm] = msgspec.json.Decoder(_EitherForm)
_node: msgspec.json.Decoder[Node] = msgspec.json.Decoder(Node)


def _decoded(data: msgspec.Raw, place: str, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise UnreadableNodes(str(error).replace("`$", f"`{place}", 1)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableNodes(f"{place}: {error}") from None


def entries(listed: Iterable[tuple[str, Node]]) -> list[msgspec.Raw]:
    """Name and facts of every node, each whole or as its differences from an earlier one, as JSON."""
    kinds = Kinds()
    made = []
    for name, node in listed:
        prototype, _, differs = kinds.compared(node)
        if prototype is None:
            entry: object = {"name": name, "facts": node}
        else:
            differs.pop("/name", None)  # it stands beside them
            entry = LikeEntry(name=name, like=prototype.name, differs=differs)
        made.append(msgspec.Raw(msgspec.json.encode(entry)))
    return made


def verdicts(judged: Iterable[Verdict]) -> list[dict[str, Any]]:
    """The verdicts with the worst findings of each, and how many were left out."""
    return [_short(verdict) for verdict in judged]


def _short(verdict: Verdict) -> dict[str, Any]:
    fields = msgspec.structs.asdict(verdict)
    if (left := len(verdict.findings) - MOST_FINDINGS) > 0:
        fields |= {"findings": verdict.findings[:MOST_FINDINGS], "findings_left_out": left}
    return fields
