"""Dumps of torch's Flight Recorder -> facts. A dump is a pickle or JSON from anywhere: hostile until parsed.

plain: bytes -> lists, dicts, texts and numbers, and nothing else. form: those -> typed records.
calls: records -> calls and counts. ranks: whose dump it is. reading: many files -> `Flight`.
"""

from __future__ import annotations

from ncclcheck.probes.logs.flight.reading import is_dump, read

__all__ = ["is_dump", "read"]
