"""Settings of a training run that decide how it saves, read from its files; nothing in them is executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ncclcheck.probes import files
from ncclcheck.probes.facts.training.settings import SaveSetting, SettingsFile

# DeepSpeed (the second name is that of versions before 0.6), Accelerate, transformers, torch.
NAMES = (
    "stage",
    "zero_stage",
    "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
    "zero3_save_16bit_model",
    "ddp_timeout",
    "InitProcessGroupKwargs.timeout",
    "init_process_group.timeout",
)
_MOST_BYTES = 4 * 2**20
_MOST_SETTINGS = 50
_LINE = re.compile(r"^\s*(?:--)?[\"']?(\w+)[\"']?(?:\s*[:=]\s*|\s+)[\"']?([\w.+-]{1,40})")
# The arguments of timedelta in their order.
_UNITS = {
    "days": 86400.0,
    "seconds": 1.0,
    "microseconds": 1e-6,
    "milliseconds": 0.001,
    "minutes": 60.0,
    "hours": 3600.0,
    "weeks": 604800.0,
}


class Unreadable(ValueError):
    """The file cannot be taken for settings; the text says why."""


def read(path: str) -> SettingsFile:
    """JSON by its keys, Python by its syntax tree, anything else line by line. Raises Unreadable."""
    try:
        data = files.content(path, _MOST_BYTES)
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror or error}") from None
    text = data.decode(errors="backslashreplace")
    reader = {".json": _of_json, ".py": _of_python}.get(Path(path).suffix, _of_lines)
    try:
        found = [one for one in reader(text) if one.name in NAMES]
    except (msgspec.MsgspecError, SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise Unreadable(f"{path}: {type(error).__name__}: {error}") from None
    if not found:
        raise Unreadable(f"{path}: it has none of the settings {', '.join(NAMES)}")
    return SettingsFile(path=path, settings=found[:_MOST_SETTINGS])


def _of_json(text: str) -> Iterator[SaveSetting]:
    held = msgspec.json.decode(text)
    pending: list[Any] = [held]
    while pending:
        one = pending.pop()
        for name, value in one.items() if isinstance(one, dict) else ():
            if isinstance(value, dict):
                pending.append(value)
            elif isinstance(value, (bool, int, float, str)):
                yield SaveSetting(name=str(name), value=_plain(value))


def _of_python(text: str) -> Iterator[SaveSetting]:
    """Keywords of calls and entries of dictionaries; `timeout` under the name of its call."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            for keyword in node.keywords:
                name = f"{called}.timeout" if keyword.arg == "timeout" else keyword.arg or ""
                yield from _setting(name, keyword.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield from _setting(str(key.value), value)


def _setting(name: str, value: ast.expr) -> Iterator[SaveSetting]:
    """What is not written out in numbers is told as it stands, so that nobody takes it for left out."""
    if name not in NAMES:
        return
    if isinstance(value, ast.Constant):
        said = _plain(value.value)
    elif (number := _number(value)) is not None:
        said = f"{number:g}"
    else:
        said = ast.unparse(value)[:40]
    yield SaveSetting(name=name, value=said, line=min(value.lineno, 1_000_000))


def _number(value: ast.expr) -> float | None:
    """`2 * 3600` and timedelta(minutes=30), in seconds; None where a name stands in it."""
    if isinstance(value, ast.Constant):
        number = value.value
        return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None
    if isinstance(value, ast.BinOp):
        left, right = _number(value.left), _number(value.right)
        if left is not None and right is not None and isinstance(value.op, ast.Mult):
            return left * right
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("timedelta"):
        return _timedelta(value)
    return None


def _timedelta(value: ast.Call) -> float | None:
    given = [*zip(_UNITS, value.args, strict=False), *((one.arg, one.value) for one in value.keywords)]
    total = 0.0
    for unit, expression in given:
        number = _number(expression)
        if unit not in _UNITS or number is None:
            return None
        total += number * _UNITS[unit]
    return total


def _of_lines(text: str) -> Iterator[SaveSetting]:
    """YAML's `name: value` and a command line's `--name value`."""
    for number, line in enumerate(text.splitlines(), 1):
        for part in re.split(r"\s(?=--)", line):
            if (match := _LINE.match(part)) is not None:
                yield SaveSetting(name=match[1], value=match[2].lower(), line=min(number, 1_000_000))


def _plain(value: object) -> str:
    return str(value).lower()[:40] if isinstance(value, bool) else str(value)[:40]
