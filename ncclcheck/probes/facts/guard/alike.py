"""The nodes of a cluster are much alike: what one has in common with another is kept and written once.

A prototype is a node with all its facts. Of a node like it the differences tell the rest: by the place of each (a
JSON Pointer, RFC 6901) the value there. Ten thousand nodes are a prototype and some lines each, in memory
and in a file.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from ncclcheck.probes.facts.node import Node

Differences = dict[str, Any]

# Kinds of machines that are told apart: a cluster has a few, a fleet of ten years some more.
_MOST_KINDS = 16
# Differing places up to which a node is of a prototype's kind: own names, addresses, serials and counters of one
# with 16 GPUs and 16 HCAs are some 300; nodes of another kind differ in whole lists, which are few but large.
_MOST_PLACES = 1_000
_LARGE = 8_192  # bytes of what differs beyond which another prototype is looked for


class NotAlike(ValueError):
    """Differences that do not fit their prototype; the text names the place and what is allowed there."""


class Kinds:
    """Nodes as they come: each shares with an earlier one of its kind what both have in common."""

    def __init__(self) -> None:
        self._prototypes: list[Node] = []

    def shared(self, node: Node) -> Node:
        """An equal node that holds the same objects as the prototype of its kind wherever both are equal."""
        return self.compared(node)[1]

    def compared(self, node: Node) -> tuple[Node | None, Node, Differences]:
        """Its prototype, the node that shares with it, and the differences; none where it becomes a prototype."""
        for place, prototype in enumerate(self._prototypes):
            differences: Differences = {}
            made = _shared(prototype, node, "", differences)
            if len(differences) <= _MOST_PLACES and _size(differences) <= _LARGE:
                self._prototypes.insert(0, self._prototypes.pop(place))  # neighbours are of one kind
                return prototype, made, differences
        self._prototypes = [node, *self._prototypes][:_MOST_KINDS]
        return None, node, {}


def _size(differences: Differences) -> int:
    """Bytes of the values that are more than a word."""
    large = [value for value in differences.values() if isinstance(value, (Struct, list, dict))]
    return len(msgspec.json.encode(large)) if large else 0


def differences(prototype: Node, node: Node) -> Differences:
    """What is to be changed in the prototype to have this node."""
    changes: Differences = {}
    _shared(prototype, node, "", changes)
    return changes


def _shared(old: Any, new: Any, place: str, changes: Differences) -> Any:
    """`new` with what equals `old` taken from it; the places that differ are added to `changes`."""
    if old is new:
        return old
    kind = type(new)
    if type(old) is kind:
        if old == new:
            return old
        if isinstance(new, Struct):
            kept = {
                name: _shared(before, now, f"{place}/{name}", changes)
                for name in kind.__struct_fields__
                if (before := getattr(old, name)) is not (now := getattr(new, name))
            }
            return msgspec.structs.replace(old, **kept)
        if kind is list and len(old) == len(new) and isinstance(new[0], (Struct, list)):
            pairs = enumerate(zip(old, new, strict=True))
            return [_shared(before, now, f"{place}/{index}", changes) for index, (before, now) in pairs]
        if kind is dict and old.keys() == new.keys():
            return {key: _shared(old[key], new[key], f"{place}/{_escaped(key)}", changes) for key in new}
    changes[place] = new
    return new


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


class Once:
    """Fields of nodes made from a prototype: those of equal differences are one object, as a rule asks of it."""

    _MOST = 4096  # fields that are kept: a few kinds of nodes have a few each; addresses of their own, all have

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Any] = {}

    def made(self, prototype: Node, name: str, below: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives for these differences below a field of a prototype."""
        key = (id(prototype), name, *_told(below, ""))
        if key not in self._made:
            if len(self._made) >= self._MOST:
                self._made.pop(next(iter(self._made)))
            self._made[key] = make()
        return self._made[key]


def _told(below: Any, place: str) -> Iterator[object]:
    """The differences of a tree, flat."""
    if isinstance(below, Mapping):
        for part, inner in below.items():
            yield from _told(inner, f"{place}/{part}")
    else:
        yield place
        yield bytes(below)


def applied(prototype: Node, changed: Mapping[str, msgspec.Raw], once: Once | None = None) -> Node:
    """The node that these differences tell; with `once`, it shares fields with others like it. Raises NotAlike."""
    tree: dict[str, Any] = {}
    for pointer, value in changed.items():
        first, *parts = pointer.split("/")
        if first or not parts:
            raise NotAlike(f"{pointer!r} is no place: it begins with / and names a fact")
        inner = tree
        for part in parts[:-1]:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise NotAlike(f"{pointer!r} lies within a place that is given whole")
        if parts[-1] in inner:
            raise NotAlike(f"{pointer!r} is given whole and in parts")
        inner[parts[-1]] = value
    if once is None:
        made = _changed(prototype, Node, tree, "")
        assert isinstance(made, Node)
        return made
    hints, fields = _hints(Node), {}
    for name, below in tree.items():
        if name in hints:  # else of a newer version
            make = partial(_changed, getattr(prototype, name), hints[name], below, f"/{name}")
            fields[name] = once.made(prototype, name, below, make)
    return msgspec.structs.replace(prototype, **fields)


def _changed(old: Any, hint: Any, tree: Mapping[str, Any] | msgspec.Raw, place: str) -> Any:
    """What stands at a place of this declared type once the differences below it are applied."""
    if not isinstance(tree, Mapping):
        return _read(hint, tree, place)
    if isinstance(old, Struct):
        hints = _hints(type(old))
        # A field of a newer version is ignored here as it is in a node that is written whole.
        return msgspec.structs.replace(
            old,
            **{
                name: _changed(getattr(old, name), hints[name], below, f"{place}/{name}")
                for name, below in tree.items()
                if name in hints
            },
        )
    if isinstance(old, list):
        items, made = _part(hint, list)[0], [*old]
        for text, below in tree.items():
            if not (text.isdecimal() and text.isascii() and len(text) < 10 and int(text) < len(old)):
                raise NotAlike(f"{place}/{text}: the prototype has 0 to {len(old) - 1} there")
            made[int(text)] = _changed(old[int(text)], items, below, f"{place}/{text}")
        return made
    if isinstance(old, dict):
        values, kept = _part(hint, dict)[1], {_escaped(key): key for key in old}
        if unknown := [text for text in tree if text not in kept]:
            raise NotAlike(f"{place}/{unknown[0]}: the prototype has {', '.join(kept)} there"[:300])
        changes = {kept[t]: _changed(old[kept[t]], values, below, f"{place}/{t}") for t, below in tree.items()}
        return {**old, **changes}
    raise NotAlike(f"{place}/{next(iter(tree))}: the prototype has nothing below {place}")


def _read(hint: Any, value: msgspec.Raw, place: str) -> Any:
    try:
        return _decoder(hint).decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotAlike(f"{place}: {error}") from None


@cache
def _decoder(hint: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(hint)


@cache
def _hints(kind: type[Struct]) -> dict[str, Any]:
    """The declared types of the fields that are written."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


@cache
def _part(hint: Any, kind: type) -> tuple[Any, ...]:
    """The types inside list[...] or dict[...], which may stand in a union."""
    if get_origin(hint) is Annotated:
        return _part(get_args(hint)[0], kind)
    if get_origin(hint) in (Union, types.UnionType):
        return next(types_inside for variant in get_args(hint) if (types_inside := _part(variant, kind)))
    return get_args(hint) if get_origin(hint) is kind else ()
