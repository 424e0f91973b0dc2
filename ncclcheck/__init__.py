"""Cluster diagnostics and NCCL health checks: probes -> facts -> rules -> report."""

from __future__ import annotations

import resource
import sys
from typing import TYPE_CHECKING, Any

if 0 <= resource.getrlimit(resource.RLIMIT_FSIZE)[0] < 2**20:  # bytes; the larger ones of ours have 30 KiB
    sys.dont_write_bytecode = True  # Python would leave .pyc files that end in the middle, and fail from then on

if TYPE_CHECKING:
    from ncclcheck.commands.steps.in_code import NotReady, StepResult, preflight

__version__ = "0.1.0"
__all__ = ["NotReady", "StepResult", "__version__", "preflight"]


def __getattr__(name: str) -> Any:
    """What training scripts use is loaded when it is asked for: `ncclcheck env` needs none of it."""
    if name in ("NotReady", "Result", "preflight"):
        from ncclcheck.commands.steps import in_code  # noqa: PLC0415

        return getattr(in_code, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
