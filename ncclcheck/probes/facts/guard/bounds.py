"""Bounds of what comes from outside: saved files, and what other nodes say."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

# Saved files are input from outside: counts are bounded, and words that end in a line to paste are words.
Count = Annotated[int, Meta(ge=0, le=1_000_000)]

# What was measured: seconds, microseconds, GB/s. So large a number overflows nowhere.
Amount = Annotated[float, Meta(ge=0, le=1e15)]

# Bytes, elements, iterations.
Whole = Annotated[int, Meta(ge=0, le=2**60)]

Bits = Annotated[str, Meta(pattern="^0x[0-9a-f]{1,32}$")]


Pid = Annotated[int, Meta(ge=1, le=2**31)]


Word = Annotated[str, Meta(pattern="^[a-z0-9_]{0,40}$")]
