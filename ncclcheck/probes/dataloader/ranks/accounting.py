"""Who read which indices: one epoch of all ranks together, counted."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ncclcheck.probes.dataloader.ranks.orders import read_indices
from ncclcheck.probes.dataloader.views import RankView
from ncclcheck.probes.facts.data.sharding import Account, ReadBy

_MOST_EXAMPLES = 5  # in a finding, the rest is counted: chosen
_LEAST_DRAWN = 8  # samples, four of them different: fewer may be drawn alike by chance; chosen
_MOST_THERE = 50_000_000  # indices of an epoch: a tensor of 8 bytes each, 400 MB; beyond it they are not counted


def by_index(views: Sequence[RankView], epoch: str = "first") -> Account | None:
    """None where the ranks' indices do not mean the same, an epoch has no end, or samples are drawn at random."""
    lists = [_indices(view, epoch) for view in views]
    there, tables = views[0].length, _tables(views)
    if tables and not all(torch.equal(tables[0], table) for table in tables):
        lists = [_looked_up(tensor, table) for tensor, table in zip(lists, tables, strict=True)]
        there = views[0].below
    elif {view.length for view in views} != {there}:
        return None
    kept = [tensor for tensor in lists if tensor is not None]
    if len(kept) < len(views) or there is None or there > _MOST_THERE or views[0].replacement:
        return None
    return _count(kept, there, _slack(views))


def disjoint(views: Sequence[RankView]) -> bool:
    """Whether the samplers share the indices out among the ranks: then an index must mean the same on all."""
    tensors = [_indices(view, "first") for view in views]
    lists = [torch.unique(tensor) for tensor in tensors if tensor is not None and len(tensor)]
    if len(lists) < len(views):
        return False
    together = torch.unique(torch.cat(lists))
    return len(together) > 1.5 * max(len(indices) for indices in lists)


def draws(alone: RankView) -> bool:
    """Whether the sampler of a world of one rank repeats samples, or leaves out others in each epoch.

    A sampler that was made for another number of ranks leaves out as well, and is a mistake.
    """
    first, second = (
        _indices(alone, name) for name in (("set0", "set1") if alone.set_epoch else ("first", "second"))
    )
    if first is None or second is None or alone.replicas not in (None, 1):
        return False
    drawn, other = set(first.tolist()), set(second.tolist())
    return len(drawn) < len(first) or (drawn != other and len(drawn) + (alone.batch or 1) < (alone.length or 0))


def all_alike(views: Sequence[RankView]) -> bool:
    """Whether every rank reads the same samples, as where the rank is a constant."""
    tensors = [_indices(view, "first") for view in views]
    return len({tuple(sorted(tensor.tolist())) for tensor in tensors if tensor is not None}) == 1


def drawn_alike(views: Sequence[RankView]) -> list[list[int]]:
    """Groups of ranks that draw the same samples in one order, of samplers that leave out some and repeat some.

    Whoever reads all, or all of a part in the order of its indices, draws nothing.
    """
    tensors = [_indices(view, "first") for view in views]
    groups: list[list[int]] = []
    for rank, tensor in enumerate(tensors):
        if tensor is None or not _is_drawn(tensor, views[rank].length):
            return []
        like = next((group for group in groups if _same(tensors[group[0]], tensor)), None)
        if like is None:
            groups.append([rank])
        else:
            like.append(rank)
    return [group for group in groups if len(group) > 1]


def _is_drawn(tensor: torch.Tensor, length: int | None) -> bool:
    distinct = len(torch.unique(tensor))
    ordered = bool((tensor[1:] >= tensor[:-1]).all())
    return len(tensor) >= _LEAST_DRAWN and 4 <= distinct < (length or 0) and not ordered


def _same(tensor: torch.Tensor | None, other: torch.Tensor) -> bool:
    return tensor is not None and torch.equal(tensor, other)


def _indices(view: RankView, name: str) -> torch.Tensor | None:
    epoch = view.epoch(name)
    if epoch is None or not epoch.ended:
        return None
    return torch.tensor(read_indices(epoch.file), dtype=torch.int64)


def _tables(views: Sequence[RankView]) -> list[torch.Tensor]:
    files = [view.table for view in views if view.table]
    return (
        [torch.tensor(read_indices(file), dtype=torch.int64) for file in files] if len(files) == len(views) else []
    )


def _looked_up(tensor: torch.Tensor | None, table: torch.Tensor) -> torch.Tensor | None:
    if tensor is None or (len(tensor) and (int(tensor.max()) >= len(table) or int(tensor.min()) < 0)):
        return None
    return table[tensor]


def _slack(views: Sequence[RankView]) -> int:
    """The sampler may drop up to one sample a rank, and the loader up to a batch less one."""
    return sum(view.batch or 1 for view in views) if any(view.drop_last for view in views) else 0


def _count(lists: list[torch.Tensor], there: int, slack: int) -> Account:
    each = [torch.unique(tensor) for tensor in lists]
    indices, readers = torch.unique(torch.cat(each), return_counts=True)
    shared = indices[readers > 1]
    left_out = torch.ones(there, dtype=torch.bool)
    left_out[indices[(indices >= 0) & (indices < there)]] = False
    share = slack // len(lists)
    return Account(
        by="index", there=there, read=sum(len(tensor) for tensor in lists), distinct=len(indices),
        shared=len(shared), slack=slack,
        everywhere=there > 1 and all(len(taken) >= max(1, there - share) for taken in each),
        examples=[_reader(int(index), each) for index in shared[:_MOST_EXAMPLES]],
        missing=left_out.nonzero().flatten()[:_MOST_EXAMPLES].tolist(),
    )  # fmt: skip


def _reader(index: int, each: list[torch.Tensor]) -> ReadBy:
    return ReadBy(
        sample=str(index), by=[rank for rank, tensor in enumerate(each) if bool((tensor == index).any())]
    )
