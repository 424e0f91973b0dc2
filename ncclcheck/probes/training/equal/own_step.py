"""The user's own step, with its optimizer, scheduler, clipping and averages: over ranks, and in one process."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ncclcheck.probes.facts import replace
from ncclcheck.probes.facts.training import Checks, OwnStep, Unchecked
from ncclcheck.probes.training import given
from ncclcheck.probes.training.equal import joined
from ncclcheck.probes.training.equal.alike import agreement, told
from ncclcheck.probes.training.equal.entered import Parted, agreed
from ncclcheck.probes.training.equal.own_state import apart
from ncclcheck.probes.training.equal.seeds import SEED, own_generators
from ncclcheck.probes.training.equal.state import fingerprint, fingerprints, plain
from ncclcheck.probes.training.feed import Batch, moved
from ncclcheck.probes.training.loop import Setting, bare, stream, wrap

_STEPS = 6
_ALONE = {
    "get_world_size": 1,
    "get_rank": 0,
    "is_initialized": False,
    "all_reduce": None,
    "barrier": None,
    "broadcast": None,
}

_TOLERANCE, _IN_AUTOCAST = 1e-3, 5e-2  # of the norm; clipping and unscaling round once more than TRN004 does
_WATCHED = {"clip_grad_norm_": "clip", "clip_grad_value_": "clip", "unscale_": "unscale", "scale": "scale"}

Step = Callable[[nn.Module, Batch, dict[str, Any]], Any]
Grads = dict[str, Tensor]


def seen(setting: Setting) -> Checks:
    """Steps on all ranks, then the first one again in one process that has the batches of all."""
    step = given.step(setting.plan)
    if step is None:
        return Checks(unchecked=[Unchecked(check="own_step", why="no step was given: --step MODULE:FUNCTION")])
    model, state, batches = wrap(setting, setting.fresh_model()), dict[str, Any](), stream(setting)
    begun = fingerprints(bare(model))
    order = _Order()
    try:
        with agreed(setting.peers) as called, order.watched():
            ours = _first_gradients(setting, step, model, state, setting.first[0])
    except Parted as parted:
        why = "ranks enter different collectives in it (TRN028)"
        return Checks(entered=parted.fact(), unchecked=[Unchecked(check="own_step", why=why)])
    unaveraged = _unaveraged(setting, ours)
    stale = _Stale(model, stepped=bool(ours))
    steps = min(setting.plan.steps, _STEPS)
    for _ in range(steps - 1):
        setting.context.tick()
        step(model, moved(next(batches), setting.device), state)
    stale.end()
    found = OwnStep(
        steps=steps,
        parameters=agreement(setting.peers, bare(model), fingerprints(bare(model))),
        clipped_scaled=order.clipped_scaled(),
        tolerance=_IN_AUTOCAST if "autocast" in order.called else _TOLERANCE,
        idle=told(setting.peers, begun == fingerprints(bare(model))) == [True] * setting.peers.world,
        stale=any(told(setting.peers, stale.found)),
        unaveraged=unaveraged,
        taken=taken if len({*(taken := told(setting.peers, stale.steps + bool(ours)))}) > 1 else [],
        state=apart(setting, state),
    )
    if others := [name for name in called if name not in _ALONE]:
        return Checks(own_step=replace(found, not_joined=f"the step calls {others[0]}"))
    return Checks(own_step=_against_one(setting, step, ours, found))


def _first_gradients(
    setting: Setting, step: Step, model: nn.Module, state: dict[str, Any], batch: Batch, seed: int = SEED
) -> Grads:
    """What the optimizer was given in one step: after clipping and unscaling."""
    found: Grads = {}

    def keep(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for name, one in model.named_parameters():
            if one.grad is not None and plain(name) not in found:
                found[plain(name)] = one.grad.detach().to_dense().float().clone()

    handle = register_optimizer_step_pre_hook(keep)
    try:
        with own_generators(setting.device, seed):
            step(model, moved(batch, setting.device), state)
    finally:
        handle.remove()
    return found


def _unaveraged(setting: Setting, ours: Grads) -> bool:
    """Whether ranks gave their optimizers different gradients; FSDP's pieces differ by design."""
    if setting.plan.strategy != "ddp":
        return False
    prints = told(setting.peers, {name: fingerprint(one) for name, one in ours.items()})
    return all(prints) and any(one != prints[0] for one in prints)


class _Stale:
    """Looks whether an optimizer is given gradients that were added up on some that it had taken already."""

    def __init__(self, model: nn.Module, *, stepped: bool) -> None:
        self.found, self.steps = False, 0
        self._stepped, self._stale = stepped, False
        self._one = next((one for one in model.parameters() if one.requires_grad), None)
        if self._one is not None:
            self._one.register_hook(self._arrives)  # type: ignore[no-untyped-call]
        self._handle = register_optimizer_step_pre_hook(self._steps)

    def _arrives(self, _gradient: Tensor) -> None:
        held = self._one.grad if self._one is not None else None
        full = held is not None and bool(held.detach().to_dense().any())
        self._stale = full and (self._stepped or self._stale)
        self._stepped = False

    def _steps(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self.steps += 1
        if any(one is self._one for group in optimizer.param_groups for one in group["params"]):
            self.found |= self._stale
            self._stepped = True

    def end(self) -> None:
        """Look no more."""
        self._handle.remove()


class _Order:
    """In which order torch's clipping and GradScaler were called, by whatever name the user imported them."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __call__(self, frame: FrameType, event: str, _given: Any) -> None:
        code = frame.f_code
        if event != "call" or f"{os.sep}torch{os.sep}" not in code.co_filename:
            return
        if code.co_name in _WATCHED:
            self.called.append(_WATCHED[code.co_name])
        elif code.co_name == "__enter__" and code.co_filename.endswith("autocast_mode.py"):
            self.called.append("autocast")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """As long as it lasts."""
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(before)

    def clipped_scaled(self) -> bool:
        """Whether a scaled loss came first, and clipping before unscale_."""
        if "scale" not in self.called or "clip" not in self.called:
            return False
        before = self.called[: self.called.index("clip")]
        return "scale" in before and "unscale" not in before


def _against_one(setting: Setting, step: Step, ours: Grads, found: OwnStep) -> OwnStep:
    whole, why = joined.over_ranks(setting, setting.first[0])
    if whole is None or not all(told(setting.peers, bool(ours))):
        why = why or "its optimizer was not seen to step"
        return replace(found, not_joined=why)
    off, ratio, random = 0.0, 0.0, 0.0
    if setting.peers.rank == 0:
        with _alone():
            wanted = _first_gradients(setting, step, setting.fresh_model(), {}, whole)
            off, ratio = _compared(ours, wanted)
            if off > found.tolerance:
                other = _first_gradients(setting, step, setting.fresh_model(), {}, whole, SEED + 1)
                random = _compared(other, wanted)[0]
    off, ratio, random = told(setting.peers, [off, ratio, random])[0]
    if random > found.tolerance:
        return replace(found, not_joined="the step draws random numbers: another seed gives other gradients")
    return replace(found, off=off, ratio=ratio)


def _compared(ours: Grads, wanted: Grads) -> tuple[float, float]:
    """The difference as a share of the norm wanted, and by which factor ours are those wanted."""
    names = ours.keys() & wanted.keys()
    dot = sum(float((ours[name] * wanted[name]).sum()) for name in names)
    square = sum(float(wanted[name].square().sum()) for name in names)
    off = sum(float((ours[name] - wanted[name]).square().sum()) for name in names)
    if not square or not math.isfinite(dot + square + off):
        return 0.0, 1.0
    return math.sqrt(off / square), dot / square


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
