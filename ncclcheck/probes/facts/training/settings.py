"""What the user's own files say of saving: those of DeepSpeed, transformers and Accelerate."""

from __future__ import annotations

from msgspec import Struct, field

from ncclcheck.probes.facts.bounds import Count


class SaveSetting(Struct, frozen=True, kw_only=True):
    """One setting, under the name that its file gives it; line 0: of a JSON file."""

    name: str
    value: str
    line: Count = 0


class SettingsFile(Struct, frozen=True, kw_only=True):
    """The settings in a file that saving depends on. settings: in their order there."""

    path: str
    settings: list[SaveSetting] = field(default_factory=list)
