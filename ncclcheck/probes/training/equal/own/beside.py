"""What a model, the step's state or a global variable keeps beside parameters, buffers and state_dicts, and what
depends on it.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ncclcheck.probes.dataloader.ours import is_users
from ncclcheck.probes.facts.training import Beside, KeptState
from ncclcheck.probes.training.equal.alike import MOST, odd, of_all_ranks
from ncclcheck.probes.training.equal.own import variables
from ncclcheck.probes.training.equal.state import fingerprint
from ncclcheck.probes.training.feed import samples_of
from ncclcheck.probes.training.loop import TrainingSetting

_MOST_VALUES, _MOST_BYTES, _DEEPEST = 1000, 64 * 1024**2, 3  # that are followed; chosen
_MOST_TRIED = 8  # values that are put back one by one, a pass or two each; chosen
_CLOSE = 1e-6  # of the largest number: below it is the rounding of fp32
_GLOBALS = 2  # the roots are the model, the state and globals
_OF: tuple[Literal["model", "state", "global"], ...] = ("model", "state", "global")
_OF_TORCH = frozenset(vars(nn.Module()))

Step = tuple[str, Any]  # "." and an attribute, "[" and a key
Path = tuple[Step, ...]
# What training comes to with these roots, as tensors; the roots may be changed by it.
Roots = tuple[nn.Module, Mapping[str, Any], variables.Variables]
Result = Callable[[Any], list[Tensor]]


class FollowedValues:
    """The values of these roots as training begins. Only with DDP: pieces of a model are not copied."""

    def __init__(self, setting: TrainingSetting, model: nn.Module, state: Mapping[str, Any] | None = None) -> None:
        self._setting = setting
        self._roots = (model, state if state is not None else {})
        self._begun_globals = variables.copied(variables.variables()) if setting.plan.strategy == "ddp" else {}
        self._begun = {path: _copied(value) for path, value in self._values(self._roots)}
        self._batch = samples_of(setting.first[0]) if setting.first else 0

    def _values(self, roots: Any) -> Iterator[tuple[Path, Any]]:
        if self._setting.plan.strategy == "ddp":
            yield from _values(roots)

    def changes(self, steps: int, result: Result) -> Beside | None:
        """What changed meanwhile and steers the training. All ranks must ask."""
        now = dict(self._values(self._roots))
        changed = self._changed_globals()
        now |= {(("[", _GLOBALS), ("[", at)): value for at, value in changed.items() if _is_value(value)}
        self._begun |= {(("[", _GLOBALS), ("[", at)): self._begun_globals[at] for at in changed}
        mine = {
            _said(path): _hash(value)
            for path, value in now.items()
            if not self._of_batch(value) and (path not in self._begun or _hash(self._begun[path]) != _hash(value))
        }
        ranks = of_all_ranks(self._setting.peers, dict([*mine.items()][:_MOST_VALUES]))
        names = [name for name in ranks[0] if all(name in rank for rank in ranks)]
        names.sort(key=lambda name: len({rank[name] for rank in ranks}) == 1)  # those that differ come first
        paths = {_said(path): path for path in now}
        tried = {name: paths[name] for name in names[:_MOST_TRIED] if name in paths}
        steer = self._steering((*self._roots, changed), tried, result)
        every = of_all_ranks(self._setting.peers, steer)
        kept = []
        for name in names:
            if any(name in hashes for hashes in every):
                values = [rank[name] for rank in ranks]
                others = odd(values) if len({*values}) > 1 else []
                kept.append(self._kept(paths[name], now[paths[name]], others))
        return Beside(steps=steps, kept=kept[:MOST]) if kept else None

    def _changed_globals(self) -> dict[variables.VariableName, Any]:
        """Globals that are others than they were, with what they hold now."""
        now = variables.variables()
        return {
            at: now[at]
            for at, before in self._begun_globals.items()
            if at in now and type(before) is type(now[at]) and not _alike(before, now[at])
        }

    def _of_batch(self, value: Any) -> bool:
        """Whether it belongs to the samples of the last batch, as the hidden state of an LSTM does."""
        shape = tuple(getattr(value, "shape", ()))
        samples = shape[: max(1, len(shape) - 1)]  # the last of several is that of features
        return getattr(value, "grad_fn", None) is not None or (self._batch > 1 and self._batch in samples)

    def _steering(self, roots: Roots, paths: Mapping[str, Path], result: Result) -> list[str]:
        """Those with which training comes to something else when they have another value."""
        if not paths:
            return []
        try:
            as_is, again = (_result(copy.deepcopy(roots), result) for _ in range(2))
            if _apart(as_is, again):
                return []  # random by itself
            return [name for name, path in paths.items() if _apart(as_is, self._with_another(roots, path, result))]
        except Exception:  # what cannot be copied, or does not run in one process: nothing is known of it
            return []

    def _with_another(self, given: Roots, path: Path, result: Result) -> list[Tensor]:
        roots = copy.deepcopy(given)
        owner = _at(roots, path[:-1])
        value = _at(owner, path[-1:])
        _put(owner, path[-1], _other(value, self._begun.get(path)))
        return _result(roots, result)

    def _kept(self, path: Path, value: Any, ranks: list[int]) -> KeptState:
        model = path[0][1] == 0
        owner = None if path[0][1] == _GLOBALS else _at(self._roots, path[:-1])
        return KeptState(
            name=_said(path)[:200],
            of=_OF[path[0][1]],
            kind="tensor" if isinstance(value, Tensor) else "array" if _is_array(value) else "number",
            ranks=ranks[:MOST],
            owner=type(owner).__name__ if model else "",
            made=_made(owner, str(path[-1][1]))[:120] if model and path[-1][0] == "." else "",
        )


def _result(roots: Roots, result: Result) -> list[Tensor]:
    """What training comes to with these roots and globals; the real globals stay as they are."""
    model, state, of_modules = roots
    with variables.placed(of_modules):
        return result((model, state))


def _alike(before: Any, now: Any) -> bool:
    if _is_value(before):
        return _hash(before) == _hash(now)
    return len(before) == len(now) and repr(before) == repr(now)


def _values(roots: Any) -> Iterator[tuple[Path, Any]]:
    model, state = roots
    count, seen = 0, {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    for path, value in (*_inner(model, (("[", 0),), 0), *_inner(state, (("[", 1),), 0)):
        if id(value) in seen and isinstance(value, Tensor):
            continue
        count += 1
        if count > _MOST_VALUES:
            return
        yield path, value


def _inner(thing: Any, path: Path, depth: int) -> Iterator[tuple[Path, Any]]:
    if _is_value(thing):
        yield path, thing
    elif isinstance(thing, nn.Module):
        for name, value in vars(thing).items():
            if name not in _OF_TORCH and not isinstance(value, nn.Module):
                yield from _inner(value, (*path, (".", name)), depth + 1)
        for name, child in thing.named_children():
            yield from _inner(child, (*path, (".", name)), depth)
    elif depth <= _DEEPEST:
        for step, value in _parts(thing):
            yield from _inner(value, (*path, step), depth + 1)


def _parts(thing: Any) -> Iterator[tuple[Step, Any]]:
    if isinstance(thing, dict):
        yield from ((("[", name), value) for name, value in thing.items() if isinstance(name, str | int))
    elif isinstance(thing, list):
        yield from ((("[", number), value) for number, value in enumerate(thing[:MOST]))
    elif _is_users_object(thing):
        yield from (((".", name), value) for name, value in vars(thing).items())


def _is_value(thing: Any) -> bool:
    if isinstance(thing, int | float):
        return not isinstance(thing, bool)
    if isinstance(thing, Tensor):
        return type(thing) is Tensor and thing.layout is torch.strided and thing.nbytes <= _MOST_BYTES
    return _is_array(thing) and thing.dtype.kind in "biuf" and thing.nbytes <= _MOST_BYTES


def _is_array(thing: Any) -> bool:
    return type(thing).__module__ == "numpy" and type(thing).__name__ == "ndarray"


def _is_users_object(thing: Any) -> bool:
    kind = type(thing)
    if hasattr(thing, "state_dict") or not hasattr(thing, "__dict__") or isinstance(thing, type):
        return False
    module = inspect.getmodule(kind)
    return is_users(getattr(module, "__file__", None) or "<frozen")


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)


def _hash(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(fingerprint(value))
    data = value.tobytes() if _is_array(value) else repr(value).encode()
    return blake2b(data, digest_size=8).hexdigest()


def _other(value: Any, begun: Any) -> Any:
    """Another value of the same form: the one that it began with, if that can be had."""
    if isinstance(value, int | float):
        return value * 2 + 1 if begun is None or begun == value else begun
    if begun is not None and begun.shape == value.shape:
        return copy.deepcopy(begun)
    return value.flip([*range(value.dim())]) if isinstance(value, Tensor) else value[::-1].copy()


def _apart(some: list[Tensor], others: list[Tensor]) -> bool:
    if len(some) != len(others):
        return True
    for tensor, other in zip(some, others, strict=True):
        if tensor.shape != other.shape:
            return True
        most = float(tensor.abs().max()) if tensor.numel() else 0.0
        if not torch.allclose(tensor, other, rtol=0.0, atol=_CLOSE * max(most, 1e-30), equal_nan=True):
            return True
    return False


def _at(roots: Any, path: Path) -> Any:
    for kind, name in path:
        roots = getattr(roots, name) if kind == "." else roots[name]
    return roots


def _put(owner: Any, step: Step, value: Any) -> None:
    kind, name = step
    if kind == ".":
        setattr(owner, name, value)
    else:
        owner[name] = value


def _said(path: Path) -> str:
    """`model.vq.codebook`, `state['center']`, `train.FREQUENCIES`."""
    if path[0][1] == _GLOBALS:
        return str(path[1][1])
    text = "state" if path[0][1] else "model"
    for kind, name in path[1:]:
        text += f".{name}" if kind == "." else f"[{name!r}]"
    return text


def _made(owner: Any, name: str) -> str:
    """The expression that __init__ gives it, as in `torch.randn(n, d)`; empty where it is not found."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(owner).__init__)))
    except (OSError, TypeError, SyntaxError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == f"self.{name}" for target in node.targets):
            return ast.unparse(node.value)
    return ""
