"""The reason why a fact was not seen. All import it from `facts`; it stands here for what `facts` imports."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

UnreadKind = Literal["absent", "denied", "no_tool", "recorded", "timed_out", "broken"]


class Unread(Struct, frozen=True, tag="unread"):
    """A fact that was not seen.

    absent: there is no such thing here. denied: no right to read it. no_tool: a program or library
    is missing. recorded: the recorded machine or the file does not hold it. timed_out: it did not
    answer within its limit. broken: it answered what nobody can understand.
    """

    kind: UnreadKind
    why: str


NOT_RECORDED = Unread("recorded", "not in this document")
