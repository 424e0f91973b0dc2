"""The user's dataset and loader: one host process imports the user's code, every look happens in a child of it."""

from __future__ import annotations

from ncclcheck.probes.dataloader.phases import examine

__all__ = ["examine"]
