"""Variables that hold a device."""

from __future__ import annotations

import ast
from collections import Counter

from ncclcheck.probes.script.sources import ParsedFile
from ncclcheck.probes.script.words import text


def of_source(source: ParsedFile) -> dict[str, str]:
    """Variables that are given one device, and nothing else anywhere in the file: `device = "cuda"`."""
    given: dict[str, list[str]] = {}
    for assign in source.of(ast.Assign):
        for target in assign.targets:
            given.setdefault(text(target), []).append(_device(assign.value))
    devices = {name: values[0] for name, values in given.items() if values[0] and len({*values}) == 1}
    stores = Counter(name.id for name in source.of(ast.Name) if devices and isinstance(name.ctx, ast.Store))
    return {name: device for name, device in devices.items() if stores[name] in (0, len(given[name]))}


def _device(value: ast.expr) -> str:
    """The device that an expression names in plain words, where CUDA is there; empty where it does not."""
    if isinstance(value, ast.IfExp):
        both = {_device(value.body), _device(value.orelse)} - {"cpu"}
        return both.pop() if len(both) == 1 else ""
    if isinstance(value, ast.Call) and len(value.args) == 1 and text(value.func) in ("torch.device", "device"):
        return _device(value.args[0])
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
