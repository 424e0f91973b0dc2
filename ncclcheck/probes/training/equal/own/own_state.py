"""What the user's own step keeps in its `state`: optimizers, schedulers, scalers, averages, counters; hashed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ncclcheck.probes.facts.training import DifferingTensor
from ncclcheck.probes.training.course.optimizers import alive
from ncclcheck.probes.training.equal.alike import MOST, odd, of_all_ranks
from ncclcheck.probes.training.equal.own.held import How, contents, has_state, how, shapes
from ncclcheck.probes.training.equal.state import bare, fingerprint
from ncclcheck.probes.training.loop import TrainingSetting

Kind = Literal["state", "counter", "number", "attribute", "weight", "global"]
_OF_ITS_BATCH = ".prev_loss"  # that LBFGS keeps of the rank's own batch


def apart(setting: TrainingSetting, model: nn.Module, state: Mapping[str, Any]) -> list[DifferingTensor]:
    """What has a state_dict and is there on all ranks, and copies of the weights: the entries that differ.
    Parameters are those of a module beside the model that an optimizer trains.
    """
    mine = {
        entry.name: entry.digest
        for entry in entries(model, state)
        if entry.kind == "state" and not entry.name.endswith(_OF_ITS_BATCH)
    }
    ranks = of_all_ranks(setting.peers, mine)
    both = [name for name in mine if all(name in rank for rank in ranks)]
    columns = {name: [rank[name] for rank in ranks] for name in both}
    trained = _trained(model, state)
    return [
        DifferingTensor(
            name=name[:200],
            kind="parameter" if name in trained else "buffer",
            ranks=odd(column)[:MOST],
            count=len(odd(column)),
        )
        for name, column in columns.items()
        if len({*column}) > 1
    ][:MOST]


def _trained(model: nn.Module, state: Mapping[str, Any]) -> set[str]:
    trained = {
        id(parameter) for optimizer in alive() for group in optimizer.param_groups for parameter in group["params"]
    }
    return {
        f"{each.name}.{where}"
        for each in contents(state, model)
        if _is_module(each.thing)
        for where, parameter in each.thing.named_parameters()
        if id(parameter) in trained
    }


_AVERAGES = re.compile(r"ema|teacher|target|average|avg|swa|shadow", re.IGNORECASE)


def aliased(model: nn.Module, state: Mapping[str, Any]) -> list[str]:
    """What is named as an average of the weights and holds the very weights, so that it is none: `ema`, or
    `ema.shadow` where an object of the user's holds them in that attribute.
    """
    mine = {tensor.untyped_storage().data_ptr() for tensor in _strided([*model.parameters(), *model.buffers()])}
    return [
        where
        for name, member in state.items()
        for where, tensors in _held(name, member)
        if tensors and all(each.untyped_storage().data_ptr() in mine for each in tensors)
    ][:MOST]


def averages(state: Mapping[str, Any]) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """What is named as an average of the weights, and its tensors."""
    return (each for name, member in state.items() for each in _held(name, member) if each[1])


def _held(name: str, thing: Any) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """The tensors of what is named so; of another object those of its attributes that are named so."""
    inner = getattr(thing, "__dict__", {}) if not isinstance(thing, nn.Module | torch.optim.Optimizer) else {}
    if _AVERAGES.search(name) and isinstance(thing, nn.Module | Mapping | list):
        yield name, _tensors(thing)
    for attribute, value in inner.items():
        if _AVERAGES.search(attribute) and isinstance(value, nn.Module | Mapping | list):
            yield f"{name}.{attribute}", _tensors(value)


def _tensors(thing: nn.Module | Mapping[str, Any] | list[Any]) -> list[torch.Tensor]:
    if isinstance(thing, nn.Module):
        return _strided([*thing.parameters()])
    return _strided([*thing.values()] if isinstance(thing, Mapping) else thing)


def _strided(things: list[Any]) -> list[torch.Tensor]:
    """Those of these that have memory of their own, as pieces of sharded tensors have not."""
    plain = [thing for thing in things if type(thing) in (torch.Tensor, nn.Parameter) and not thing.is_meta]
    return [tensor for tensor in plain if tensor.numel() and tensor.layout is torch.strided]


class Entry(NamedTuple):
    """One entry: a hash, what kind of thing it is, and where it is held, as an expression, and how."""

    name: str
    kind: Kind
    digest: str
    holder: str = ""
    how: How = "state_dict"


def entries(model: nn.Module, state: Mapping[str, Any]) -> list[Entry]:
    """Of all that has a state_dict and of copies of the model's weights (state); whole numbers in state itself
    (counter); and other numbers, texts and tensors.
    """
    wanted, listed = shapes([*bare(model).parameters()]), list[Entry]()
    for name, expression, thing, depth in contents(state, model):
        form = how(thing, wanted)
        counts = isinstance(thing, int) and not isinstance(thing, bool) and not depth
        kind: Kind = "counter" if counts else "number" if form == "value" else "state"
        inner = prints(thing).items() if form == "state_dict" else flat(thing, "")
        listed += [Entry(f"{name}{where}", kind, digest, expression, form) for where, digest in inner]
    return listed


def prints(thing: Any) -> dict[str, str]:
    """A hash of each entry, but of BatchNorm's statistics, which belong to their rank."""
    if not has_state(thing):
        return {}
    norms = (
        [name for name, module in thing.named_modules() if isinstance(module, _BatchNorm)]
        if _is_module(thing)
        else []
    )
    try:
        state = thing.state_dict()
    except Exception:  # ZeroRedundancyOptimizer has none before it is consolidated: ranks hold pieces
        return {}
    return {
        where: digest
        for where, digest in flat(state, "")
        if not any(where.startswith(f".{norm}.") for norm in norms)
    }


def _is_module(thing: Any) -> bool:
    return isinstance(thing, nn.Module)


def flat(content: Any, where: str) -> Iterator[tuple[str, str]]:
    """A hash of each tensor, number and text within, by its place."""
    if isinstance(content, Mapping):
        for name, value in content.items():
            yield from flat(value, f"{where}.{name}")
    elif isinstance(content, list | tuple):
        for number, value in enumerate(content):
            yield from flat(value, f"{where}[{number}]")
    elif isinstance(content, torch.Tensor):
        yield where, str(fingerprint(content))
    elif isinstance(content, bool | int | float | str):
        yield where, blake2b(repr(content).encode(), digest_size=8).hexdigest()
