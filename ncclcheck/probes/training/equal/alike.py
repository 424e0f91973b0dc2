"""What ranks compare: numbers by name, bit for bit, without anybody holding all of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ncclcheck.probes.facts.training import Agreement, DifferingTensor
from ncclcheck.probes.job.timing import RankPeers
from ncclcheck.probes.training.equal.state import combined, plain

MOST = 20  # names or ranks that are kept of one comparison, the rest is counted: chosen
_MOST_NAMES = 5000  # of parameters that ranks exchange as text: chosen, bounds the text that ranks exchange


def agreement(peers: RankPeers, model: nn.Module, prints: Mapping[str, int]) -> Agreement:
    """The tensors of which some rank has other bits."""
    names = [*prints]
    if len(set(peers.texts(combined(dict.fromkeys(names, 0))))) > 1:
        return _other_names(peers, names)
    mine = torch.tensor([*prints.values()], dtype=torch.int64, device=peers.device)
    columns = _unequal(mine)
    chosen = mine[columns[:MOST]]
    tensors = [torch.empty_like(chosen) for _ in range(peers.world)]
    if columns:
        dist.all_gather(tensors, chosen)
    rows = [[*column] for column in zip(*(tensor.tolist() for tensor in tensors), strict=True)]
    differings = [_differing(model, names[column], row) for column, row in zip(columns, rows, strict=False)]
    return Agreement(
        tensors=len(names), differ=len(columns), tied=any(_tied(row) for row in rows), differing=differings
    )


def structures(peers: RankPeers, model: nn.Module) -> Agreement | None:
    """The parameters that some rank lacks, freezes or has in another shape; None where all have the same.

    Nothing may be sent by the model before this is known: ranks would wait for each other, or mix up gradients.
    """
    mine = {plain(name): _form(parameter) for name, parameter in model.named_parameters()}
    if len({*peers.texts(combined(dict.fromkeys(map(str, mine.items()), 0)))}) == 1:
        return None
    ranks = of_all_ranks(peers, dict([*mine.items()][:_MOST_NAMES]))
    names = dict.fromkeys(name for rank in ranks for name in rank)
    forms = {name: [rank.get(name, "missing") for rank in ranks] for name in names}
    apart = {name: form for name, form in forms.items() if len({*form}) > 1}
    return Agreement(
        tensors=len(mine),
        differ=len(apart),
        differing=[
            DifferingTensor(name=name[:200], ranks=odd(form)[:MOST], count=len(odd(form)), how=_how(form))
            for name, form in [*apart.items()][:MOST]
        ],
    )


def _form(parameter: nn.Parameter) -> str:
    shape = "x".join(map(str, parameter.shape)) or "one number"
    return f"{'trained' if parameter.requires_grad else 'frozen'}, {shape}"


def _how(forms: Sequence[str]) -> str:
    """`frozen, 8x8 on rank 0; trained, 8x8 on rank 1`."""
    first = {form: forms.index(form) for form in dict.fromkeys(forms)}
    return "; ".join(f"{form} on rank {rank}" for form, rank in [*first.items()][:3])


def _unequal(mine: torch.Tensor) -> list[int]:
    least, most = mine.clone(), mine.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return [int(index) for index in (least != most).nonzero().flatten().tolist()]


def _differing(model: nn.Module, name: str, values: Sequence[int]) -> DifferingTensor:
    others = odd(values)
    return DifferingTensor(
        name=name[:200],
        kind="parameter" if name in {plain(parameter) for parameter, _ in model.named_parameters()} else "buffer",
        ranks=others[:MOST],
        count=len(others),
        local=_is_local(model, name),
    )


def odd(values: Sequence[Any]) -> list[int]:
    """The ranks that do not have what most have; of equally common values rank 0's counts."""
    counts = Counter(values)
    usual = max(counts, key=lambda value: (counts[value], value == values[0]))
    return [rank for rank, value in enumerate(values) if value != usual]


def _tied(values: Sequence[int]) -> bool:
    first, *others = Counter(values).most_common(2)
    return bool(others) and first[1] == others[0][1]


def _is_local(model: nn.Module, name: str) -> bool:
    """DDP lets each rank's BatchNorm see its own batch, and hands out rank 0's statistics with the next step."""
    owner = name.rpartition(".")[0]
    layer = next((module for where, module in model.named_modules() if plain(where) == owner), None)
    return isinstance(layer, nn.modules.batchnorm._BatchNorm) and not isinstance(layer, nn.SyncBatchNorm)


def _other_names(peers: RankPeers, names: Sequence[str]) -> Agreement:
    """Ranks that built another model: told by the number of its tensors and their names together."""
    texts = peers.texts(f"{len(names)} {combined(dict.fromkeys(names, 0))}")
    others = odd(texts)
    whole = DifferingTensor(name="the names of the tensors", ranks=others[:MOST], count=len(others))
    return Agreement(
        tensors=len(names), differ=len(names), tied=_tied([hash(digest) for digest in texts]), differing=[whole]
    )


def of_all_ranks(peers: RankPeers, mine: Any) -> list[Any]:
    """Something short of each rank, by rank; as JSON."""
    return [json.loads(text) for text in peers.texts(json.dumps(mine))]
