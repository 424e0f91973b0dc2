"""Bounds of what comes from outside: saved files, and what other nodes say."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

# Saved files are input from outside: counts are bounded, and words that end in a line to paste are words.
Count = Annotated[int, Meta(ge=0, le=1_000_000)]


Pid = Annotated[int, Meta(ge=1, le=2**31)]


Word = Annotated[str, Meta(pattern="^[a-z0-9_]{0,40}$")]
