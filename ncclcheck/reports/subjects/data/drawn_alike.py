"""A sampler that draws at random, and draws the same on several ranks: for DAT016."""

from __future__ import annotations

from collections.abc import Collection

from ncclcheck.probes.facts.data import Made, Sharding
from ncclcheck.reports.judgement.findings import Finding, Remedy, Where, fail, note, seen, you
from ncclcheck.reports.subjects.data import own_names
from ncclcheck.reports.subjects.data.sharded import OTHERS_DO, joined

_OF_TORCH = ("RandomSampler", "WeightedRandomSampler", "SubsetRandomSampler")
_BY_RANK = 'torch.Generator().manual_seed(seed + int(os.environ["RANK"]))'


def drawn_alike(node: str, sharding: Sharding, frameworks: Collection[str], made: Made) -> Finding:
    """Where a framework shares the batches of one order out itself, all ranks must draw alike."""
    ranks = " and ".join(joined(group) for group in sharding.drawn_alike)
    drawn = {share.rank: share.samples for share in sharding.shares}.get(sharding.drawn_alike[0][0]) or 0
    text = f"{sharding.sampler} draws the same {drawn} samples on ranks {ranks}"
    evidence = [seen(f"indices of {sharding.sampler} in one epoch", f"the same, in one order, on ranks {ranks}")]
    if frameworks or sharding.given == "module" or sharding.wanted < 2:
        why = f"All of them do the work of one. {OTHERS_DO}"
        return note(Where(node=node), text, why=why, evidence=evidence, fix=_draw_apart(sharding, made))
    return fail(
        Where(node=node),
        f"{text}: nothing shares them out",
        why="All of them do the work of one: they begin from one seed, and no part of it is taken by rank.",
        owner="job",
        evidence=evidence,
        fix=_draw_apart(sharding, made),
    )


def _of_a_name(call: str) -> bool:
    """`own.manual_seed`, and not what a dataset makes its own numbers by in one expression, or the global seed."""
    owner, _, last = call.rpartition(".")
    return last == "manual_seed" and owner.isidentifier() and owner != "torch"


def _draw_apart(sharding: Sharding, made: Made) -> list[Remedy]:
    own = sharding.sampler not in _OF_TORCH
    if own:
        return [
            you(
                f"In __iter__ of {sharding.sampler} draw from one seed for all ranks together, and let each rank "
                "take its part: world times as many, of which it gives every world-th.",
                "rank, world = dist.get_rank(), dist.get_world_size()",
                "return iter(indices[rank::world])  # indices: drawn for all ranks, with the same seed + epoch",
            )
        ]
    lines = own_names.rewritten(made, "seed", _of_a_name)
    return [
        you(
            f"Seed what {sharding.sampler} draws from by rank.",
            *(lines or [f"generator = {_BY_RANK}", f"{sharding.sampler}(..., generator=generator)"]),
        )
    ]
