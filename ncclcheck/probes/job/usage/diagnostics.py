"""NCCL's own diagnostics (2.31 and later): run in processes of their own, and read as the manual documents them.

Source: NCCL user guide, Diagnostics: NCCL_RUN_DIAGNOSTICS exercises the paths that NCCL means to use while a
communicator is made, NCCL_RUN_RAS_DIAGNOSTICS compares the state of the ranks; rank 0 prints both to its stdout.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence

from ncclcheck.probes.facts import Diagnosis, Diagnostics, Unread
from ncclcheck.probes.machine import process

_ASKED = {"NCCL_RUN_DIAGNOSTICS": "1", "NCCL_RUN_RAS_DIAGNOSTICS": "1", "NCCL_DEBUG": "WARN"}
_RESULT = re.compile(r"NCCL DIAG \[(OK|INFO)\]\s+(?:([^:]{1,60}): )?(.{1,500})")
_END = re.compile(r"NCCL DIAG .*\bcompleted in\b")
_MOST_RESULTS = 100  # of one rank: chosen, what is printed is not trusted to end


def command(backend: str, python: str = sys.executable) -> list[str]:
    """What each rank starts; it meets the others in the store of this torchrun, under a prefix of its own."""
    return [python, "-m", "ncclcheck.probes.job.usage.diagnostics_child", backend]


def run(argv: Sequence[str], seconds: float, env: Mapping[str, str] | None = None) -> Diagnostics:
    """Run one rank's part to its end or to the limit. Only rank 0 hears the results."""
    begun = time.monotonic()
    out = process.run(argv, seconds, env={**(_environment() if env is None else env), **_ASKED})
    taken = round(time.monotonic() - begun, 1)
    if isinstance(out, Unread):
        return Diagnostics(seconds=taken, problem=out.why)
    results = parse(out.out)
    if out.status != 0:
        last = next(iter(reversed(out.err.strip().splitlines())), "")[:500]
        return Diagnostics(results=results, seconds=taken, problem=f"ended with exit status {out.status}: {last}")
    complete = _END.search(out.out) is not None
    return Diagnostics(results=results, seconds=taken, problem="" if complete else "NCCL printed no end of them")


def parse(text: str) -> list[Diagnosis]:
    """The result lines of a report, each once: a report is printed for every communicator."""
    matches = (_RESULT.search(line) for line in text.splitlines())
    results = [
        Diagnosis(ok=match[1] == "OK", check=match[2] or "", text=match[3].strip()) for match in matches if match
    ]
    return list({(result.check, result.text): result for result in results}.values())[:_MOST_RESULTS]


def _environment() -> dict[str, str]:
    """Ours, without what would send NCCL's log to the file of the rank that asks."""
    return {name: value for name, value in os.environ.items() if name != "NCCL_DEBUG_FILE"}
