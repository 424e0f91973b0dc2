"""Settings of a training run that decide how it saves, read from its files; nothing in them is executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ncclcheck.probes.facts.training.settings import DISTRIBUTED, FSDP, NAMES, SaveSetting, SettingsFile
from ncclcheck.probes.machine import files

# LLaMA-Factory's `stage: sft` is no stage of ZeRO.
_STAGES = re.compile(r"[0-3]|auto")
# Strategies of Lightning and NeMo that save in a way of their own, by name, as an instance or as Hydra's class; an
# instance of FSDPStrategy gathers unless it says else.
_CLASSES = r"(?i:(?:[\w.]*\.)?(?:nlp)?(?:fsdp|fsdp2|megatron|modelparallel)strategy)"
_STRATEGIES = re.compile(rf"(?:deepspeed|fsdp|megatron).{{0,40}}|{_CLASSES}(?:\(.{{0,40}})?")
# transformers' `fsdp: full_shard auto_wrap`, or a list of such words; no word: it is off.
_SHARDS = re.compile(r"(?i:.*(?:full_shard|shard_grad_op|hybrid_shard).*|true)")
_VALUES = {
    "stage": _STAGES,
    "strategy": _STRATEGIES,
    "_target_": re.compile(_CLASSES),
    "fsdp": _SHARDS,
    **dict.fromkeys(DISTRIBUTED, re.compile(r"torch_dist|zarr|fsdp_dtensor")),
}
_ANY = re.compile(r".*")
_MINUTES = "timeout_minutes"  # of NeMo Automodel's dist_env
# Positional arguments that are named here, by the function: their names in order.
_POSITIONS = {
    "init_process_group": ("backend", "init_method", "timeout"),
    "state_dict_type": ("module", "state_dict_type"),
}
_OF_THEIR_CALL = ("timeout", "state_dict_type", "sharded_checkpoint")
# Of transformers and LLaMA-Factory, of Accelerate, of transformers: another file that says the rest.
_FOLLOWED = ("deepspeed", "deepspeed_config_file", "fsdp_config")

_MOST_BYTES = 4 * 2**20  # of a file of settings: chosen, written ones have KB
_MOST_SETTINGS = 50  # that are known and found in it: chosen
_LINE = re.compile(r"^\s*(?:--|\+)?(?:\w+\.)*[\"']?(\w+)[\"']?(?:\s*[:=]\s*|\s+)[\[\"']{0,2}([\w.+/-]{1,200})")
_ALONE, _ENTRY = re.compile(r"^\s*(\w+):\s*(?:#.*)?$"), re.compile(r"^\s*-\s+[\"']?([\w.+/-]{1,200})")
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


class NoSettings(ValueError):
    """The file cannot be taken for settings; the text says why."""


def read_all(paths: Iterable[str]) -> list[SettingsFile]:
    """These files, and before each the one that it names, as with `deepspeed: FILE`. Raises NoSettings."""
    listed: list[SettingsFile] = []
    for path in paths:
        own, named = _read(path)
        if named:
            listed.append(_read(named)[0] if own.settings else read(named))
        listed.append(own if named else _not_empty(own))
    return listed


def read(path: str) -> SettingsFile:
    """One file. Raises NoSettings."""
    return _not_empty(_read(path)[0])


def _not_empty(file: SettingsFile) -> SettingsFile:
    if not file.settings:
        raise NoSettings(f"{file.path}: it has none of the settings {', '.join(NAMES)}")
    return file


def _read(path: str) -> tuple[SettingsFile, str | None]:
    """JSON by its keys, Python by its syntax tree, anything else line by line; and the file that it names."""
    try:
        data = files.content(path, _MOST_BYTES)
    except OSError as error:
        raise NoSettings(f"{path}: {error.strerror or error}") from None
    text = data.decode(errors="backslashreplace")
    reader = {".json": _of_json, ".py": _of_python}.get(Path(path).suffix, _of_lines)
    try:
        every = [*reader(text)]
    except (msgspec.MsgspecError, SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise NoSettings(f"{path}: {type(error).__name__}: {error}") from None
    settings = [
        _in_seconds(setting)
        for setting in every
        if setting.name in NAMES and _VALUES.get(setting.name, _ANY).fullmatch(setting.value)
    ]
    named = next(
        (setting.value for setting in every if setting.name in _FOLLOWED and setting.value.endswith(".json")), None
    )
    return SettingsFile(path=path, settings=settings[:_MOST_SETTINGS]), _beside(path, named) if named else None


def _in_seconds(setting: SaveSetting) -> SaveSetting:
    if setting.name == _MINUTES and re.fullmatch(r"\d{1,6}(?:\.\d{1,6})?", setting.value):
        return replace(setting, value=f"{60 * float(setting.value):g}")
    return setting


def _beside(path: str, named: str) -> str:
    """Relative to where the training starts, else to the file that names it."""
    beside = str(Path(path).parent / named)
    return named if Path(named).is_file() or not Path(beside).is_file() else beside


def _of_json(text: str) -> Iterator[SaveSetting]:
    document = msgspec.json.decode(text)
    pending: list[Any] = [document]
    while pending:
        mapping = pending.pop()
        for name, value in mapping.items() if isinstance(mapping, dict) else ():
            if isinstance(value, dict):
                pending.append(value)
            elif isinstance(value, list) and name in FSDP:
                yield SaveSetting(name=str(name), value=_plain(" ".join(map(str, value))))
            elif isinstance(value, (bool, int, float, str)):
                shown = value if name in _FOLLOWED and isinstance(value, str) else _plain(_of_class(name, value))
                yield SaveSetting(name=str(name), value=shown)


def _of_python(text: str) -> Iterator[SaveSetting]:
    """Keywords of calls, entries of dictionaries, attributes that are set; `timeout` under the name of its call.

    A name that the file gives a value once stands for that value.
    """
    tree = ast.parse(text)
    known = _constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            positions = zip(_POSITIONS.get(called, ()), node.args, strict=False)
            for given, value in (*positions, *((keyword.arg or "", keyword.value) for keyword in node.keywords)):
                name = f"{called}.{given}" if given in _OF_THEIR_CALL and called != given else given
                yield from _setting(name, _meant(value, known))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            yield from _setting(node.targets[0].attr, _meant(node.value, known))
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield from _setting(str(key.value), value)


def _constants(tree: ast.AST) -> dict[str, ast.expr]:
    """Names that are given one value and no other."""
    given: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            given.setdefault(node.targets[0].id, []).append(node.value)
    return {name: values[0] for name, values in given.items() if len(values) == 1}


def _meant(value: ast.expr, known: dict[str, ast.expr]) -> ast.expr:
    return known.get(value.id, value) if isinstance(value, ast.Name) else value


def _setting(name: str, value: ast.expr) -> Iterator[SaveSetting]:
    """What is not written out in numbers is told as it stands, so that nobody takes it for left out."""
    if name not in NAMES and name not in _FOLLOWED:
        return
    if isinstance(value, ast.Constant):
        text = _plain(value.value)
    elif (number := _number(value)) is not None:
        text = f"{number:g}"
    else:
        text = ast.unparse(value)[:40]
    yield SaveSetting(name=name, value=text, line=min(value.lineno, 1_000_000))


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
    given = [*zip(_UNITS, value.args, strict=False), *((keyword.arg, keyword.value) for keyword in value.keywords)]
    total = 0.0
    for unit, expression in given:
        number = _number(expression)
        if unit not in _UNITS or number is None:
            return None
        total += number * _UNITS[unit]
    return total


def _of_lines(text: str) -> Iterator[SaveSetting]:
    """YAML's `name: value`, also as the first of a list below it, and a command line's `--name value`."""
    above = ""
    for number, line in enumerate(text.splitlines(), 1):
        if (entry := _ENTRY.match(line)) is not None and above:
            yield SaveSetting(name=above, value=entry[1].lower()[:40], line=min(number, 1_000_000))
        above = alone[1] if (alone := _ALONE.match(line)) is not None else ""
        for part in re.split(r"\s(?=--)", line):
            if (match := _LINE.match(part)) is not None:
                yield SaveSetting(
                    name=match[1],
                    value=match[2] if match[1] in _FOLLOWED else _of_class(match[1], match[2]).lower()[:40],
                    line=min(number, 1_000_000),
                )


def _of_class(name: object, value: Any) -> Any:
    """Of Hydra's `_target_: package.module.Class` the class."""
    return str(value).rpartition(".")[2] if name == "_target_" else value


def _plain(value: object) -> str:
    return str(value).lower()[:40] if isinstance(value, bool) else str(value)[:40]
