"""The reason why a fact was not seen. All import it from `facts`; it stands here for what `facts` imports."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, TypeVar, final

import msgspec
from msgspec import Struct

UnreadKind = Literal["absent", "denied", "no_tool", "recorded", "timed_out", "broken"]


@final
class Unread(Struct, frozen=True, tag="unread"):
    """A fact that was not seen.

    absent: there is no such thing here. denied: no right to read it. no_tool: a program or library
    is missing. recorded: the recorded machine or the file does not hold it. timed_out: it did not
    answer within its limit. broken: it answered what nobody can understand.
    """

    kind: UnreadKind
    why: str


NOT_RECORDED = Unread("recorded", "not in this document")


T = TypeVar("T")


class NotKnown(Exception):
    """Raised by `known` for an unread fact; the judge turns it into an `unknown` finding."""

    def __init__(self, unread: Unread) -> None:
        super().__init__(unread.why)
        self.unread = unread


# Rules ask this millions of times, and isinstance is slow for a Struct: `type(...) is` takes a fifth of its time.


def known(fact: T | Unread) -> T:
    """The value of a fact that the rule's `needs=` has already asked for."""
    if type(fact) is Unread:
        raise NotKnown(fact)
    return fact


def value_or(fact: T | Unread, otherwise: T) -> T:
    """The value of a fact that only embellishes; never for what decides a verdict."""
    return otherwise if type(fact) is Unread else fact


def at(subject: Any, path: str) -> Any:
    """The fact at a dotted path below `subject`, or the Unread that stands in the way."""
    for part in _parts(path):
        if type(subject) is Unread:
            return subject
        subject = getattr(subject, part)
    return subject


@cache
def _parts(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


_PLAIN = {str, int, float, bool, type(None)}


def unread_in(subject: Any, path: str = "") -> Iterator[tuple[str, Unread]]:
    """Every unread fact below `subject`, with its dotted path."""
    if type(subject) is Unread:
        yield path, subject
    elif isinstance(subject, list):
        for index, item in enumerate(subject):
            if type(item) not in _PLAIN:
                yield from unread_in(item, f"{path}[{getattr(item, 'name', index)}]")
    elif isinstance(subject, Struct):
        for name in subject.__struct_fields__:
            if type(value := getattr(subject, name)) not in _PLAIN:  # most are, and none is unread
                yield from unread_in(value, f"{path}.{name}" if path else name)


replace = msgspec.structs.replace
