"""Which records this ncclcheck speaks, as one number: equal numbers understand each other, whatever the versions.

A version says nothing of two checkouts of one version, and a number that people raise by hand is forgotten.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from msgspec import Struct


def of(*modules: str) -> int:
    """A hash of the records and words that these modules and those below them define. 48 bits: exact in any JSON.

    Names, tags, fields and their types as they are written count; defaults and texts do not.
    """
    rows: set[str] = set()
    for name, module in list(sys.modules.items()):
        if name in modules or name.startswith(tuple(f"{module}." for module in modules)):
            rows.update(row for alias, value in vars(module).items() for row in _rows(alias, value))
    return int.from_bytes(hashlib.sha256("\n".join(sorted(rows)).encode()).digest()[:6], "big")


def _rows(alias: str, value: object) -> Iterator[str]:
    if isinstance(value, type) and issubclass(value, Struct):
        fields = ", ".join(f"{name}: {value.__annotations__.get(name)}" for name in value.__struct_fields__)
        yield f"{value.__name__} {value.__struct_config__.tag} {fields}"
    elif get_origin(value) is Literal:
        yield f"{alias} {get_args(value)}"
