"""Words of NCCL, torch, gloo, Slurm and the kernel that mean something: each kind of line has a name, a sign.

A sign says what was said, not what it means: rules judge. One module a subject, each with its table SIGNS.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from ncclcheck.probes.logs.signs.sign import Sign

__all__ = ["Sign", "all_signs"]


@cache
def all_signs() -> tuple[Sign, ...]:
    """Every sign of every module here, in the order of the modules' names."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    tables = [getattr(importlib.import_module(f"{__name__}.{name}"), "SIGNS", ()) for name in names]
    return tuple(sign for table in tables for sign in table)
