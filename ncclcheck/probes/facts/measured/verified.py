"""Whether a job ran with the settings that would be recommended."""

from __future__ import annotations

from msgspec import Struct, field


class Verified(Struct, frozen=True, kw_only=True):
    """A short run with all of these variables set or taken away. survived: every rank finished."""

    variables: list[str] = field(default_factory=list)
    survived: bool = False
