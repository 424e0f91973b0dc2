"""The training itself, small and deterministic: what is trained, how it is wrapped, and one step of it.

setting = make(context)
model = wrap(setting, setting.fresh_model())
optimizer, batches = setting.optimizer(model), stream(setting)
loss = train_step(setting, model, optimizer, batches)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import Any, Literal

import torch
from msgspec import convert, to_builtins
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ncclcheck.probes.facts.training import Agreement, Entered, Unregistered
from ncclcheck.probes.job.context import Context, TrainingPlan
from ncclcheck.probes.job.timing import RankPeers
from ncclcheck.probes.machine.host.cores import Cores
from ncclcheck.probes.training import given
from ncclcheck.probes.training.course.bounds import Bounds, OutOfRange
from ncclcheck.probes.training.course.operations import compiled
from ncclcheck.probes.training.equal.alike import of_all_ranks, structures
from ncclcheck.probes.training.equal.own import variables
from ncclcheck.probes.training.equal.own.entered import Parted, agreed
from ncclcheck.probes.training.equal.own.unregistered import unregistered
from ncclcheck.probes.training.equal.seeds import SEED, own_generators, seed_all, states
from ncclcheck.probes.training.equal.state import bare, digest, without_gradient
from ncclcheck.probes.training.feed import Batch, Feed, moved, samples_of
from ncclcheck.probes.training.inject import Faults
from ncclcheck.probes.training.wraps import sharding

__all__ = ["Timer", "TrainingSetting", "accumulate", "bare", "digest", "make", "stream", "train_step", "wrap"]

# Told as each part of a step begins: data, to device, forward, backward (for each micro-batch), optimizer, end.
Timer = Callable[[str], None]

_TYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
_MOST_NAMES = 50  # of parameters without a gradient: chosen, as they are kept for findings
_FIRST = 2  # batches: a parameter that only another batch reaches is seen
_OTHER_PASSES, _OTHER_S = 6, 2.0  # at most, of each kind, where parameters get no gradient in the first ones
_MOST_OF_JOB = 0.5  # of the time until the deadline, for a box that is longer since cores are short
_LEAST_BOX_S = 0.001  # a time box is never 0, by which others divide
_SCALE = 1024.0  # of the loss in fp16; constant, so that a run can be repeated bit for bit


@dataclass
class TrainingSetting:
    """What is trained. model: bare, as the factory gave it, never trained itself; fresh_model: a copy of it.

    batches: the micro-batches of an epoch, not yet on the device; all ranks have equally many. loss: of the model
    on a batch. unreached: of each rank, parameters without a gradient after a pass of the bare model. first: some
    micro-batches, the first of this rank, for checks that need a few. sparse: some gradient is. varying: of
    `unreached`, what another pass reaches, by "dice" on the same batch or with another "batch". unregistered: what
    the first batches reach, and the model does not know as parameters.
    apart: ranks have different parameters, so that nothing can be trained; parted: they enter other collectives.
    called: the collectives that model and loss call themselves, which no rank can go through alone.
    globals_begun: globals of the user's modules as the process began: so they are as each check begins.
    begun: monotonic time. cores: how short of them this rank is since then.
    """

    context: Context
    plan: TrainingPlan
    device: torch.device
    model: nn.Module
    batches: Callable[[int], Iterator[Batch]]
    loss: Callable[[nn.Module, Batch], Tensor]
    fresh_model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], Optimizer]
    builtin: bool
    feed: Feed
    faults: Faults
    peers: RankPeers
    generators: dict[str, str]
    begun: float
    cores: Cores = field(default_factory=Cores)
    lengths: list[int] = field(default_factory=list)
    unreached: list[list[str]] = field(default_factory=list)
    varying: dict[str, Literal["dice", "batch"]] = field(default_factory=dict)
    first: list[Batch] = field(default_factory=list)
    unregistered: list[Unregistered] = field(default_factory=list)
    sparse: bool = False
    apart: Agreement | None = None
    parted: Entered | None = None
    called: list[str] = field(default_factory=list)
    globals_begun: variables.Variables = field(default_factory=dict)

    @property
    def unused(self) -> list[str]:
        """Parameters that batches do not reach, on one rank or on all."""
        return [*dict.fromkeys(name for names in self.unreached for name in names)]

    @property
    def stopped(self) -> bool:
        """Whether ranks differ so that training would hang."""
        return self.apart is not None or self.parted is not None

    def left(self) -> float:
        """Seconds of the time box that are left. All ranks must ask, and get the same answer."""
        return self._box()[0]

    def share_left(self) -> float:
        """The same as a share of the box."""
        left, whole = self._box()
        return left / whole

    def _box(self) -> tuple[float, float]:
        """What is left and the whole, which grows as the rank that lacks cores most is slower for it."""
        now, deadline = time.monotonic(), self.context.deadline
        slowdown, spent, late = self.peers.worst([self.cores.slowdown(), now - self.begun, self.begun - deadline])
        whole = box(self.plan.budget_s, slowdown, -late)
        return whole - spent, whole


def box(budget_s: float, slowdown: float, most_s: float) -> float:
    """Seconds of a time box that is meant for the work, not for waiting for cores. most_s: until the deadline."""
    longest = max(budget_s, _MOST_OF_JOB * most_s)
    return max(_LEAST_BOX_S, min(budget_s * slowdown, longest, most_s))


def make(context: Context) -> TrainingSetting:
    """Model, data and loss, as the plan says. Raises what the user's factories raise."""
    plan = context.plan.training
    assert plan is not None
    _be_deterministic()
    given.enter(plan)
    peers, faults = RankPeers(context.rank, context.world_size, context.device), Faults.of(context)
    context.step("training: torch loads what the wrap needs")
    _wrapped(plan, nn.Linear(1, 1).to(context.device), context.device, find_unused=False)
    seed_all(faults.seed(SEED))
    context.step("training: make the model")
    model = faults.model(given.model(plan)).to(context.device)
    seed_all(SEED + 1 + context.rank)
    context.step("training: make the data")
    feed = Feed(given.loader(plan, context.world_size), faults)
    setting = TrainingSetting(
        context=context,
        plan=plan,
        device=context.device,
        model=model,
        batches=feed.batches,
        loss=given.loss(plan),
        fresh_model=given.copies(plan, model),
        optimizer=lambda made: given.optimizer(made, sparse=setting.sparse),
        builtin=given.is_builtin(plan),
        feed=feed,
        faults=faults,
        peers=peers,
        generators=states(context.device),
        begun=time.monotonic(),
    )
    if not setting.builtin:
        given.step(plan), given.checkpoint(plan)  # imports them
        setting.globals_begun = variables.copied(variables.variables())
    setting.apart = structures(peers, model)
    if setting.apart is None:
        _make_even(setting)
        _find_unreached(setting)
    return setting


def _be_deterministic() -> None:
    """Bit-equal repetitions are compared, and gradients within 1e-4."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def _make_even(setting: TrainingSetting) -> None:
    """Asks all ranks how many batches they have; none goes beyond the least, where the others would wait."""
    setting.context.step("training: how many batches each rank has")
    plan, peers = setting.plan, setting.peers
    mine = setting.feed.length(plan.steps * plan.accumulate)
    setting.lengths = [int(text) for text in peers.texts(str(mine))]
    setting.feed.least = min(setting.lengths)
    if not setting.feed.least:
        empty = [rank for rank, length in enumerate(setting.lengths) if not length]
        raise RuntimeError(f"ranks {empty[:20]} have no batch at all: give more data or a smaller --batch")


def _find_unreached(setting: TrainingSetting) -> None:
    """DDP would only say that it waited for a gradient, with the next step."""
    setting.context.step("training: which parameters get a gradient")
    model, setting.first = setting.fresh_model(), [*islice(stream(setting), _FIRST)]
    unreached: dict[str, int] = {}
    try:
        with own_generators(setting.device, SEED), agreed(setting.peers, every=True) as setting.called:
            for number, batch in enumerate(setting.first):
                model.zero_grad(set_to_none=True)
                with _bounded(setting, model, number, batch):
                    accumulate(setting, model, iter([batch]), 1)
                unreached = dict.fromkeys(without_gradient(model), number) | unreached
    except Parted as parted:
        setting.parted = parted.fact()
        return
    setting.unreached = of_all_ranks(setting.peers, [*unreached][:_MOST_NAMES])
    if setting.unused and not setting.called:
        setting.varying = _varying(setting, unreached)
    everywhere = of_all_ranks(setting.peers, to_builtins(unregistered(model)))
    setting.unregistered = convert(next(filter(None, everywhere), []), list[Unregistered])
    sparse = any(parameter.grad is not None and parameter.grad.is_sparse for parameter in model.parameters())
    setting.sparse = bool(setting.peers.worst([float(sparse)])[0])


@contextmanager
def _bounded(setting: TrainingSetting, model: nn.Module, number: int, batch: Batch) -> Iterator[None]:
    """A label without a class is told with the sample, where the number of the batch leads to it."""
    try:
        with nullcontext() if compiled(model) else Bounds(samples_of(batch)):
            yield
    except OutOfRange as error:
        if error.row is not None and (index := setting.feed.index(number, error.row, batch)) is not None:
            error.args = (error.words(index),)
        raise


def _varying(setting: TrainingSetting, unreached: dict[str, int]) -> dict[str, Literal["dice", "batch"]]:
    """Which of these parameters another pass reaches, by other random numbers or with another batch. unreached: by
    which of the first batches first.
    """

    def reached(names: set[str], batches: Iterator[Batch], *seeds: int) -> set[str]:
        passed, end = set[str](), time.monotonic() + _OTHER_S
        for seed in seeds:
            if time.monotonic() > end:
                break
            model, batch = setting.fresh_model(), next(batches)
            with own_generators(setting.device, seed):
                accumulate(setting, model, iter([batch]), 1)
            passed |= names - {*without_gradient(model)}
        return passed

    dice, other = set[str](), reached({*unreached}, stream(setting), *[SEED] * _OTHER_PASSES)
    for number, batch in enumerate(setting.first):
        if names := {name for name, at in unreached.items() if at == number}:
            dice |= reached(names, repeat(batch), *range(SEED + 1, SEED + 1 + _OTHER_PASSES))
    by_dice = {name for of_rank in of_all_ranks(setting.peers, sorted(dice)) for name in of_rank}
    by_batch = {name for of_rank in of_all_ranks(setting.peers, sorted(other)) for name in of_rank}
    varying: dict[str, Literal["dice", "batch"]] = dict.fromkeys(by_batch, "batch")
    return varying | dict.fromkeys(by_dice, "dice")


def stream(setting: TrainingSetting, skip: int = 0) -> Iterator[Batch]:
    """Micro-batches of epoch after epoch, from number `skip` on."""
    epoch, within = divmod(skip, setting.feed.least)
    while True:
        for number, batch in enumerate(setting.batches(epoch)):
            if number >= within:
                yield batch
        epoch, within = epoch + 1, 0


def wrap(setting: TrainingSetting, model: nn.Module) -> nn.Module:
    """The model as the strategy wants it. Raises sharding.Unsupported where this torch cannot."""
    unused = setting.plan.find_unused or bool(setting.unused)
    return _wrapped(setting.plan, model, setting.device, find_unused=unused)


def _wrapped(plan: TrainingPlan, model: nn.Module, device: torch.device, *, find_unused: bool) -> nn.Module:
    if plan.strategy == "fsdp":
        return sharding.fully_sharded(model, device)
    devices = [device] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, find_unused_parameters=find_unused)


def train_step(
    setting: TrainingSetting,
    model: nn.Module,
    optimizer: Optimizer,
    batches: Iterator[Batch],
    *,
    timer: Timer | None = None,
) -> Tensor:
    """One step of the optimizer, on a wrapped model or a bare one. Returns the mean loss of its micro-batches."""
    tell = timer or _nothing
    setting.context.tick()
    setting.faults.tick()
    loss = accumulate(setting, model, batches, setting.plan.accumulate, tell)
    tell("optimizer")
    setting.faults.in_step(setting.device)
    if not (is_wrapped(model) and setting.faults.skips(optimizer)):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    tell("end")
    return loss


def accumulate(
    setting: TrainingSetting, model: nn.Module, batches: Iterator[Batch], count: int, tell: Timer | None = None
) -> Tensor:
    """Forward and backward over so many micro-batches; synchronised with the last. Gradients are left in .grad."""
    tell = tell or _nothing
    total = torch.zeros((), device=setting.device)
    seen = []
    for number in range(count):
        tell("data")
        batch = next(batches)
        tell("to device")
        seen.append(batch := moved(batch, setting.device))
        with nullcontext() if number == count - 1 else unsynchronised(model):
            total += _pass(setting, model, batch, 1 / count, tell)
    if is_wrapped(model) and setting.faults.has("no-sync"):
        _forget_the_others(setting, bare(model), seen)
    if setting.plan.precision == "fp16":
        _unscale(model)
    return total


def _pass(setting: TrainingSetting, model: nn.Module, batch: Batch, share: float, tell: Timer) -> Tensor:
    tell("forward")
    with autocast(setting):
        loss = setting.loss(model, batch)
        loss = given.as_loss(loss) * share
    tell("backward")
    setting.faults.in_backward(loss)
    (loss * _SCALE if setting.plan.precision == "fp16" else loss).backward()  # type: ignore[no-untyped-call]
    return loss.detach().float()


def autocast(setting: TrainingSetting) -> AbstractContextManager[Any]:
    """The precision that was asked for."""
    kind = _TYPES[setting.plan.precision]
    return nullcontext() if kind is None else torch.autocast(setting.device.type, dtype=kind)


def unsynchronised(model: nn.Module) -> AbstractContextManager[None]:
    """As long as gradients only add up on this rank."""
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return sharding.unsynchronised(model)


def is_wrapped(model: nn.Module) -> bool:
    """Whether its gradients cross ranks."""
    return isinstance(model, DistributedDataParallel) or sharding.is_sharded(model)


def _unscale(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(_SCALE)


def _forget_the_others(setting: TrainingSetting, model: nn.Module, seen: list[Batch]) -> None:
    """no-sync: the gradients of this rank alone."""
    model.zero_grad(set_to_none=True)
    for batch in seen:
        _pass(setting, model, batch, 1 / len(seen), _nothing)


def _nothing(_part: str) -> None:
    """Nobody takes the time."""
