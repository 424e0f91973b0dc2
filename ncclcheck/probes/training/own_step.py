"""The user's own step, with its optimizer, scheduler, clipping and averages: over ranks, and in one process."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ncclcheck.probes.facts.training import Checks, Differing, OwnStep, Unchecked
from ncclcheck.probes.training import given, joined
from ncclcheck.probes.training.alike import MOST, agreement, odd, told
from ncclcheck.probes.training.feed import Batch, moved
from ncclcheck.probes.training.loop import Setting, bare, stream, wrap
from ncclcheck.probes.training.seeds import SEED, own_generators
from ncclcheck.probes.training.state import fingerprint, fingerprints, plain

_STEPS = 6
_ALONE = {"get_world_size": 1, "get_rank": 0, "is_initialized": False, "all_reduce": None, "barrier": None}

Step = Callable[[nn.Module, Batch, dict[str, Any]], Any]
Grads = dict[str, Tensor]


def seen(setting: Setting) -> Checks:
    """Steps on all ranks, then the first one again in one process that has the batches of all."""
    step = given.step(setting.plan)
    if step is None:
        return Checks(unchecked=[Unchecked(check="own_step", why="no step was given: --step MODULE:FUNCTION")])
    model, state, batches = wrap(setting, setting.fresh_model()), dict[str, Any](), stream(setting)
    ours = _first_gradients(setting, step, model, state, setting.first[0])
    steps = min(setting.plan.steps, _STEPS)
    for _ in range(steps - 1):
        setting.context.tick()
        step(model, moved(next(batches), setting.device), state)
    found = OwnStep(
        steps=steps,
        parameters=agreement(setting.peers, bare(model), fingerprints(bare(model))),
        state=_apart(setting, state),
    )
    return Checks(own_step=_against_one(setting, step, ours, found))


def _first_gradients(setting: Setting, step: Step, model: nn.Module, state: dict[str, Any], batch: Batch) -> Grads:
    """What the optimizer was given in one step: after clipping and unscaling."""
    found: Grads = {}

    def keep(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for name, one in model.named_parameters():
            if one.grad is not None and plain(name) not in found:
                found[plain(name)] = one.grad.detach().to_dense().float().clone()

    handle = register_optimizer_step_pre_hook(keep)
    try:
        with own_generators(setting.device, SEED):
            step(model, moved(batch, setting.device), state)
    finally:
        handle.remove()
    return found


def _against_one(setting: Setting, step: Step, ours: Grads, found: OwnStep) -> OwnStep:
    whole, why = joined.over_ranks(setting, setting.first[0])
    if whole is None or not all(told(setting.peers, bool(ours))):
        why = why or "its optimizer was not seen to step"
        return OwnStep(steps=found.steps, parameters=found.parameters, state=found.state, not_joined=why)
    measured = [0.0, 0.0]
    if setting.peers.rank == 0:
        with _alone():
            wanted = _first_gradients(setting, step, setting.fresh_model(), {}, whole)
        measured = [*_compared(ours, wanted)]
    off, ratio = told(setting.peers, measured)[0]
    return OwnStep(steps=found.steps, parameters=found.parameters, state=found.state, off=off, ratio=ratio)


def _compared(ours: Grads, wanted: Grads) -> tuple[float, float]:
    """The difference as a share of the norm wanted, and by which factor ours are those wanted."""
    names = ours.keys() & wanted.keys()
    dot = sum(float((ours[name] * wanted[name]).sum()) for name in names)
    square = sum(float(wanted[name].square().sum()) for name in names)
    apart = sum(float((ours[name] - wanted[name]).square().sum()) for name in names)
    if not square or not math.isfinite(dot + square + apart):
        return 0.0, 1.0
    return math.sqrt(apart / square), dot / square


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """As long as it lasts, this process is the only one of its world."""
    kept = {name: getattr(dist, name) for name in _ALONE}
    for name, answer in _ALONE.items():
        setattr(dist, name, lambda *_args, answer=answer, **_more: answer)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(dist, name, function)


def _apart(setting: Setting, state: Mapping[str, Any]) -> list[Differing]:
    """What has a state_dict and is there on all ranks: the entries of it that differ."""
    mine = {f"{name}{where}": value for name, one in state.items() for where, value in _prints(one).items()}
    ranks = told(setting.peers, mine)
    both = [name for name in mine if all(name in one for one in ranks)]
    columns = {name: [one[name] for one in ranks] for name in both}
    return [
        Differing(name=name[:200], kind="buffer", ranks=odd(column)[:MOST], count=len(odd(column)))
        for name, column in columns.items()
        if len({*column}) > 1
    ][:MOST]


def _prints(thing: Any) -> dict[str, str]:
    """A hash of each entry, but of BatchNorm's statistics, which belong to their rank."""
    if not callable(getattr(thing, "state_dict", None)):
        return {}
    norms = (
        [name for name, one in thing.named_modules() if isinstance(one, _BatchNorm)] if _is_module(thing) else []
    )
    held = thing.state_dict()
    return {
        where: said for where, said in _flat(held, "") if not any(where.startswith(f".{one}.") for one in norms)
    }


def _is_module(thing: Any) -> bool:
    return isinstance(thing, nn.Module)


def _flat(held: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(held, Mapping):
        for name, value in held.items():
            yield from _flat(value, f"{where}.{name}")
    elif isinstance(held, list | tuple):
        for number, value in enumerate(held):
            yield from _flat(value, f"{where}[{number}]")
    elif isinstance(held, torch.Tensor):
        yield where, str(fingerprint(held))
    elif isinstance(held, bool | int | float | str):
        yield where, blake2b(repr(held).encode(), digest_size=8).hexdigest()
