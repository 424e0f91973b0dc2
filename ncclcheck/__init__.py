"""Cluster diagnostics and NCCL health checks: probes -> facts -> rules -> report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ncclcheck.in_code import NotReady, Result, preflight

__version__ = "0.1.0"
__all__ = ["NotReady", "Result", "__version__", "preflight"]


def __getattr__(name: str) -> Any:
    """What training scripts use is loaded when it is asked for: `ncclcheck env` needs none of it."""
    if name in ("NotReady", "Result", "preflight"):
        from ncclcheck import in_code  # noqa: PLC0415

        return getattr(in_code, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
