"""DAT017 and DAT011: what must differ from epoch to epoch, and from rank to rank."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.data import Made, Sharding
from ncclcheck.probes.facts.data.sharding import EpochOrder, SharedStream
from ncclcheck.probes.facts.data.streams import Dependence
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, fine, note, seen, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.data import own_names
from ncclcheck.reports.subjects.data.sharded import nothing_of, shardings
from ncclcheck.reports.subjects.data.streamed import dependence, private_made

_DATA = ("data",)
_APART = 1_000_003  # between seeds of ranks: those of workers follow one another
_FEW = 6  # samples: fewer may come in the same order by chance
_WHY = "Batches are made of the same samples each time, and are learned in the same order."


@rule("DAT017", "each epoch is shuffled differently", worst=State.WARN, commands=_DATA)
def another_order(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The order of the samples in two epochs of the sampler, as it is, and with `set_epoch`.

    ## Why it matters
    DistributedSampler shuffles by seed and epoch number, and learns the number from `set_epoch` alone. Without
    that call every epoch has the order of the first; the run seems healthy and learns less.

    ## Seen as
    wrong results

    ## How we know
    The sampler is asked for its indices twice. Where they repeat and it has a `set_epoch`, again after
    `set_epoch(0)` and `set_epoch(1)`; where the factory takes an `epoch`, for 0 and 1. The loop that should call
    it is not ours to run: your files are searched for `.set_epoch(`. A loop with `.backward(` over what the
    factory gives, as far as assignments and arguments lead there, in a file without that call is a warning; where
    no such loop is seen, a note. An order
    that is the same in processes with other seeds is a note: a loop may make its loader anew in each epoch. The
    order of the indices themselves, as for validation, is not judged.

    ## Fix
    - **you** `loader.sampler.set_epoch(epoch)` at the start of each epoch; Lightning and Accelerate do it.
    - **you** in a sampler of your own shuffle with `torch.Generator().manual_seed(seed + epoch)`.

    ## Source
    PyTorch, torch.utils.data.distributed.DistributedSampler; pytorch/pytorch#31232, pytorch/pytorch#31771,
    huggingface/transformers#4398.
    """
    looked, judged = shardings(cluster, several=False), False
    for node, sharding in looked:
        if sharding.order is not None:
            judged = True
            yield _ordered(node, sharding, sharding.order)
    if not judged:
        raise nothing_of(looked, "no sampler chooses the order")


def _ordered(node: str, sharding: Sharding, order: EpochOrder) -> Finding:
    where = Where(node=node)
    if order.sequential or order.samples < _FEW:
        return fine(where, "samples come in the order of their indices")
    if order.with_keyword:
        return _repeats(where, sharding, "although the factory gets the epoch")
    if not order.repeats or order.with_keyword is False:
        return _begins_alike(where, sharding, order) or fine(where, "the second epoch has another order")
    if order.with_set_epoch is None:
        return _fixed(where, sharding)
    if order.with_set_epoch:
        return _repeats(where, sharding, "with set_epoch(0) and with set_epoch(1)")
    if order.callers:
        return fine(where, f"set_epoch gives another order; {order.callers[0]} calls it")
    if order.loops and sharding.given != "module":
        return _repeats(where, sharding, f"unless set_epoch is called, and {order.loops[0]} does not call it")
    return note(
        where,
        f"{sharding.sampler} gives every epoch the same order unless the training loop calls set_epoch",
        why="Lightning, Accelerate and the transformers Trainer call it; a loop of your own must.",
        fix=[you("At the start of each epoch.", f"{_setter(order)}.set_epoch(epoch)")],
    )


def _fixed(where: Where, sharding: Sharding) -> Finding:
    """Batches that were made before, which a loop may make anew for each epoch; or a sampler."""
    if sharding.sampler not in ("list", "tuple"):
        return _repeats(where, sharding, "and it has no set_epoch")
    return note(
        where,
        f"a {sharding.sampler} chooses the batches: every epoch over this loader has the order of the first",
        why="Right where each epoch makes its own batches and loader, as fairseq does.",
        fix=[
            you(
                "Make the batches of each epoch, and their loader, at its start.",
                "random.Random(seed + epoch).shuffle(batches)",
                "loader = DataLoader(dataset, batch_sampler=batches)",
            )
        ],
    )


def _begins_alike(where: Where, sharding: Sharding, order: EpochOrder) -> Finding | None:
    if not order.made_alike or order.with_keyword is not None:
        return None
    return note(
        where,
        f"{sharding.sampler} begins with the same order whenever the loader is made: it has a fixed seed",
        why="Right where the loader is made once; a loop that makes it anew in each epoch repeats one order.",
        fix=[
            you(
                "Where each epoch makes its own loader, seed it by the epoch.",
                "DataLoader(..., generator=torch.Generator().manual_seed(seed + epoch))",
            )
        ],
    )


def _setter(order: EpochOrder | None) -> str:
    return (order.setter if order else "") or "loader.sampler"


def _repeats(where: Where, sharding: Sharding, when: str) -> Finding:
    setter = _setter(sharding.order)
    return warn(
        where,
        f"{sharding.sampler} gives the second epoch the order of the first, {when}",
        why=_WHY,
        owner="job",
        evidence=[seen(f"indices of {sharding.sampler}", "two epochs, the same order")],
        fix=[
            you("Set the epoch of the sampler.", f"{setter}.set_epoch(epoch)  # at the start of each epoch"),
            you(
                "In a sampler of your own, shuffle by it.",
                "order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + self.epoch))",
            ),
        ],
    )


@rule("DAT011", "ranks use independent random streams", worst=State.WARN, commands=_DATA)
def own_streams(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The random generators that samples are drawn from, as each rank's first worker starts with them.

    ## Why it matters
    `torch.manual_seed(42)` on every rank seeds the workers of all ranks alike: in each step all GPUs draw the
    same crops, flips and noise. Some want that; mostly it makes augmentation poorer by the number of GPUs.

    ## Seen as
    wrong results

    ## How we know
    Emulated ranks start with seeds of their own from the kernel and call the factory. The states of the generators
    are compared in a real DataLoader worker of each rank, before it has read a sample. Only generators count that
    reading a sample draws from, and only if the samples change with it. A sampler after whose epoch a global
    generator is in one state on all ranks, and was not before, has seeded it.

    ## Fix
    - **you** `torch.manual_seed(seed + rank)` before the loader is made, and the same seed on all ranks where the
      model is made; or `DataLoader(generator=torch.Generator().manual_seed(seed + rank))`.

    ## Source
    PyTorch, Reproducibility, DataLoader; huggingface/transformers#37932, facebookresearch/fastMRI#123.
    """
    looked, judged = shardings(cluster), False
    made = {report.node: report.made or Made() for report in cluster.measurements.data}
    for node, sharding in looked:
        if sharding.randomness is None:
            continue
        judged = True
        for stream in sharding.randomness.shared:
            yield _shared(node, stream, _depends(cluster, node, stream), made.get(node, Made()))
        if sharding.randomness.by_sampler:
            yield _by_sampler(node, sharding, sharding.randomness.by_sampler)
        elif not sharding.randomness.shared:
            drawn = ", ".join(sharding.randomness.drawn_from)
            text = (
                f"every rank starts {drawn} in a state of its own"
                if drawn
                else "reading a sample draws from no generator"
            )
            yield fine(Where(node=node), text)
    if not judged:
        raise nothing_of(looked, "the generators of the ranks were not seen")


def _by_sampler(node: str, sharding: Sharding, generators: list[str]) -> Finding:
    names = " and ".join(generators)
    return warn(
        Where(node=node),
        f"{sharding.sampler} sets the seed of {names} to the same number on all ranks when it gives an epoch",
        why="The workers of the next epoch are seeded from that generator: from then on all ranks draw the same "
        "augmentation, and the model the same dropout.",
        owner="job",
        evidence=[
            seen(f"state of {names} on emulated ranks", "another on each before its first epoch, equal after it")
        ],
        fix=[
            you(
                f"Shuffle in {sharding.sampler}.__iter__ with a generator of its own.",
                "own = torch.Generator().manual_seed(self.epoch)  # not torch.manual_seed(self.epoch)",
                "order = torch.randperm(len(self.dataset), generator=own).tolist()",
            )
        ],
    )


def _depends(cluster: Cluster, node: str, stream: SharedStream) -> Dependence:
    """What is known of the generator itself: how it is made."""
    streams = next((report.streams for report in cluster.measurements.data if report.node == node), None)
    return dependence(streams, stream.generator) if streams is not None else Dependence(generator=stream.generator)


def _by_rank(stream: SharedStream, dependency: Dependence, made: Made) -> Remedy:
    """For workers in their worker_init_fn, where whatever seeded the generator alike has been done."""
    if stream.where == "the rank itself":
        lines = own_names.rewritten(made, "seed", lambda call: _seeds(call, stream.generator))
        if lines and not stream.private:
            return you("Seed by rank, where the samples are drawn from the same generator as the model.", *lines)
        making = private_made(dependency, "seed + rank") if stream.private else "torch.manual_seed(seed + rank)"
        path = f"dataset.{stream.generator.removeprefix('self.')} = " if stream.private else ""
        return you(
            "Seed by rank, before the first sample is read.",
            'rank = int(os.environ["RANK"])  # or torch.distributed.get_rank()',
            f"{path}{making}",
        )
    return you(
        "Seed by rank in each worker: torch's own seed is the same on all ranks, if these were seeded alike.",
        "def seed_worker(worker_id):",
        f'    seed = torch.initial_seed() + {_APART} * int(os.environ.get("RANK", 0))',
        *(f"    {line}" for line in _seeding(stream, dependency)),
        "DataLoader(dataset, worker_init_fn=seed_worker)",
    )


def _seeds(call: str, generator: str) -> bool:
    """Whether this call seeds this global generator."""
    of_numpy = ".random." in call
    last = call.rpartition(".")[2]
    own = {"torch": last == "manual_seed", "numpy": of_numpy, "python": call == "random.seed"}
    return last in ("seed_everything", "set_seed") or own.get(generator, False)


def _seeding(stream: SharedStream, dependency: Dependence) -> list[str]:
    if stream.private:
        dataset = "torch.utils.data.get_worker_info().dataset"
        return [f"{stream.generator.replace('self', dataset, 1)} = {private_made(dependency, 'seed')}"]
    return {
        "python": ["random.seed(seed)"],
        "numpy": ["numpy.random.seed(seed % 2**32)"],
    }.get(stream.generator, ["torch.manual_seed(seed)"])


def _shared(node: str, stream: SharedStream, dependency: Dependence, made: Made) -> Finding:
    ranks = " and ".join(map(str, stream.ranks))
    return warn(
        Where(node=node, rank=stream.ranks[-1] if stream.ranks else None),
        f"{stream.generator} draws the same numbers on ranks {ranks}",
        why="All of them augment their samples alike in each step; fine only where that is wanted.",
        owner="job",
        evidence=[seen(f"state of {stream.generator} in {stream.where}", f"equal on ranks {ranks}")],
        fix=[_by_rank(stream, dependency, made)],
    )
