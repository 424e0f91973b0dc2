"""DAT016 and DAT018: every sample read once an epoch over all ranks, in equally many batches."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.data import Made, Sharding
from ncclcheck.probes.facts.data.sharding import Account, Share
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    fail,
    fine,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.data.drawn_alike import drawn_alike
from ncclcheck.reports.subjects.data.sharded import (
    OTHERS_DO,
    by_local_rank,
    by_sampler,
    by_stream,
    joined,
    nothing_of,
    shardings,
)
from ncclcheck.reports.subjects.data.sharded_streams import of_stream

_DATA = ("data",)
_PLAIN = ("SequentialSampler", "RandomSampler")  # what DataLoader takes where it is given none
_CHANCE = 4.0  # standard deviations of how many samples independent permutations leave out
_OWN_ORDERS = (
    "Each rank takes its part of an order of its own: the parts overlap, and leave out, as much as by chance. "
    "Some samples come twice in an epoch, others never."
)
_OWN_SPLITS = (
    "The split, or what the dataset is made of, is drawn by each rank: these samples count more, others are in no "
    "rank's part, and what one rank trains on another may validate on."
)
_UNEVEN = 0.1  # of the samples of a rank; batches are seldom as large a part of an epoch
_REST = 16  # samples; a few more on one rank are the rest of a division
_TWICE = "An epoch is longer than it seems, the loss counts these samples more, and validation counts them twice."


@rule(
    "DAT016",
    "every sample is read once per epoch across all ranks",
    worst=State.FAIL,
    over="",
    ground=("DAT019",),
    commands=_DATA,
)
def once(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The samples that all ranks read in one epoch, counted together: which come twice, which not at all.

    ## Why it matters
    Without a DistributedSampler every rank reads everything: N GPUs do the work of one, and the epoch is N times
    too long. A sampler with the wrong rank or world size reads one part N times and the rest never. A stream
    (IterableDataset) is read by every worker of every rank unless it takes its part itself.

    ## Seen as
    wrong results

    ## How we know
    Ranks are emulated, each a process with its own RANK and WORLD_SIZE in a gloo group; each calls your
    factory. Samplers are asked for their indices, no sample is read; the indices of a Subset are those of the
    dataset that it is a part of. Streams, and datasets that give each rank a part, are compared by the parts
    of a sample that do not change from reading to reading; where parts of ranks overlap, they are read once more
    with the same seeds on all. Fewer repeats than ranks are DistributedSampler's
    padding: a note, and so is a first epoch that goes on in the middle, as of a loader that resumes, where the
    second one is whole. With `drop_last` a batch and a sample a rank may be missing. All ranks reading all is a
    note in a job of one rank (no GPUs, no `--nproc-per-node`), where two are emulated, and of a factory that gives
    a dataset and options without a sampler, of which the user's trainer makes the loader; where the factory's
    module imports Lightning, Accelerate or transformers, which share samples out themselves, a warning; else a
    failure. Two readers that read the same samples of a stream without an end in orders of their own is a
    note. Of random sampling, which repeats or leaves out samples for one rank alone, too (WeightedRandomSampler,
    repeated augmentation), it is judged only whether ranks draw the very same samples in one order: from a seed
    that all of them share. Where a framework is imported that shares out batches itself, this is a note.

    ## Fix
    - **you** `DataLoader(dataset, sampler=DistributedSampler(dataset))`; in a stream `islice(samples,
      rank * workers + worker, None, world * workers)`.
    - **you** with Lightning, Accelerate or the transformers Trainer leave it to them: `--ignore DAT016`.

    ## Source
    PyTorch, torch.utils.data, DistributedSampler and IterableDataset; pytorch/pytorch#25162,
    huggingface/datasets#3423, huggingface/datasets#5360.
    """
    looked, judged = shardings(cluster, several=False), False
    made = {report.node: report.made for report in cluster.measurements.data if report.made}
    for node, sharding in looked:
        frameworks = made[node].frameworks if node in made else []
        for finding in (
            *_failed(node, sharding),
            *_counted(node, sharding, frameworks, made.get(node, Made())),
            *of_stream(node, sharding, frameworks, made.get(node)),
        ):
            judged = True
            yield finding
    if not judged:
        empty = any(emulated.account and not emulated.account.read for _, emulated in looked)
        why = "the loader gives not one batch" if empty else "the samples of the ranks were not counted"
        raise nothing_of(looked, why)


def _failed(node: str, sharding: Sharding) -> Iterator[Finding]:
    """A factory that fails on every rank is judged elsewhere; one that fails on some does so for its rank."""
    bad = [share for share in sharding.shares if share.error]
    for share in bad if len(bad) < len(sharding.shares) else ():
        yield fail(
            Where(node=node, rank=share.rank),
            f"the factory works on rank 0 and fails on rank {share.rank}: {share.error}"
            if share.rank
            else f"the factory works on rank {sharding.shares[-1].rank} and fails on rank 0: {share.error}",
            why="The job ends at its start, on the ranks that fail, while the others wait for them.",
            owner="job",
            evidence=[seen(share.place or f"emulated rank {share.rank} of {sharding.ranks}", share.error)],
            fix=[
                you(
                    "Call it as that rank.",
                    f"RANK={share.rank} WORLD_SIZE={sharding.ranks} LOCAL_RANK={share.rank} python -c 'import "
                    "...'",
                )
            ],
        )


def _counted(node: str, sharding: Sharding, frameworks: Collection[str], made: Made) -> Iterator[Finding]:
    account = sharding.account
    if sharding.drawn_alike and sharding.ranks > 1:
        yield drawn_alike(node, sharding, frameworks, made)
        return
    if account is None or sharding.ranks < 2 or not account.read:
        return
    if account.everywhere and account.by == "index":
        yield _all_read_all(node, sharding, account, frameworks)
        return
    missing = max(0, account.there - account.distinct)
    lost, twice = (
        missing > max(account.slack, sharding.ranks - 1),
        account.shared >= sharding.ranks * _padded(sharding),
    )
    if lost:
        yield _left_out(node, sharding, account, missing)
    if twice:
        yield _overlap(node, sharding, account)
    if lost or twice:
        return
    if sharding.resumed:
        yield _resumed(node, sharding, account)
    elif account.shared or missing:
        yield _padding(node, sharding, account, missing)
    else:
        yield fine(Where(node=node), f"{sharding.ranks} ranks read {account.there} samples, each once")


def _resumed(node: str, sharding: Sharding, account: Account) -> Finding:
    text = f"the first epoch leaves out {sharding.resumed} of {account.there} samples, the second none"
    why = "As it should be for a run that goes on within an epoch; else these samples are read once less."
    return note(Where(node=node), text, why=why, evidence=_evidence(sharding, account))


def _padded(sharding: Sharding) -> int:
    """What a sampler repeats for one rank: a sample, or a batch where it chooses batches of any number."""
    first = sharding.shares[0] if sharding.shares else None
    if sharding.batch is not None or first is None or not first.batches or not first.samples:
        return 1
    return -(-first.samples // first.batches)


def _all_read_all(node: str, sharding: Sharding, account: Account, frameworks: Collection[str]) -> Finding:
    text = f"each of {sharding.ranks} ranks reads all {account.there} samples"
    if sharding.given == "module":
        return note(Where(node=node), f"{text}; Lightning's Trainer puts a DistributedSampler in")
    if sharding.given == "tuple" and sharding.sampler in _PLAIN:
        return note(
            Where(node=node),
            f"{text} in a plain loader of what the factory gave, a dataset and options without a sampler",
            why="Your trainer makes the loader: it has to put a DistributedSampler in.",
            evidence=_evidence(sharding, account),
            fix=by_sampler(sharding),
        )
    if sharding.wanted < 2:
        return note(
            Where(node=node),
            f"{text}: right for this job of one rank, not for more",
            why=OTHERS_DO,
            evidence=_evidence(sharding, account),
            fix=by_sampler(sharding),
        )
    return (warn if frameworks else fail)(
        Where(node=node),
        f"{text}: nothing shares them out",
        why=f"All GPUs do the work of one. {OTHERS_DO}",
        owner="job",
        evidence=_evidence(sharding, account),
        fix=by_sampler(sharding),
    )


def _left_out(node: str, sharding: Sharding, account: Account, missing: int) -> Finding:
    few = missing < sharding.ranks * (sharding.batch or 1)
    text = f"{missing} of {account.there} samples are read by no rank"
    if account.missing:
        text += f", such as {', '.join(map(str, account.missing))}"
    if few and not account.shared:
        return note(Where(node=node), f"{text}: less than a batch a rank", evidence=_evidence(sharding, account))
    return fail(
        Where(node=node),
        text,
        why=_of_other_ranks(sharding)
        or (
            _OWN_ORDERS
            if _by_chance(sharding, account) or _by_arguments(sharding)
            else "They are never learned from, and never validated on; nothing else shows it."
        ),
        owner="job",
        evidence=_evidence(sharding, account),
        fix=[
            *_other_world(sharding),
            *(
                _by_arguments(sharding)
                or _alike_first(sharding)
                or _one_order(sharding, account)
                or by_local_rank(sharding)
                or by_sampler(sharding)
            ),
        ],
    )


def _other_world(sharding: Sharding) -> list[Remedy]:
    """The sampler was made for another number of ranks than were emulated."""
    if sharding.replicas in (None, sharding.ranks):
        return []
    text = (
        f"The sampler is made for {sharding.replicas} ranks, {sharding.ranks} were emulated. If the job has "
        "as many:"
    )
    return [you(text, f"ncclcheck data --nproc-per-node {sharding.replicas} MODULE:FACTORY")]


def _taken_for_another(sharding: Sharding) -> Share | None:
    """The first rank whose sampler takes itself for another one."""
    if sharding.replicas != sharding.ranks:
        return None
    return next(
        (share for share in sharding.shares if share.as_rank is not None and share.as_rank != share.rank), None
    )


def _of_other_ranks(sharding: Sharding) -> str:
    """Why parts coincide, where the sampler was given the wrong rank; a local rank, on nodes after the first."""
    wrong = _taken_for_another(sharding)
    if wrong is None:
        return ""
    local = all("LOCAL_RANK" in share.asked and "RANK" not in share.asked for share in sharding.shares)
    return (
        f"Rank {wrong.rank} reads the part of rank {wrong.as_rank}, and nobody its own"
        + (": LOCAL_RANK counts within a node." if local else ".")
        + " Some samples come twice in an epoch, others never."
    )


def _by_arguments(sharding: Sharding) -> list[Remedy]:
    """What the sampler of each rank was given, where that explains it: another seed, or the wrong rank."""
    seeds = {share.rank: share.seed for share in sharding.shares if share.seed is not None}
    if len(seeds) == len(sharding.shares) and len({*seeds.values()}) > 1:
        by_rank = ", ".join(f"{seed} on rank {rank}" for rank, seed in [*seeds.items()][:3])
        return [
            you(
                f"Give {sharding.sampler} the same seed on all ranks: it is {by_rank}. Each takes its part of "
                "another order.",
                f"{sharding.sampler}(dataset, seed=0)",
            )
        ]
    if wrong := _taken_for_another(sharding):
        return [
            you(
                f"Give {sharding.sampler} the rank in the job: on rank {wrong.rank} it takes itself for rank "
                f"{wrong.as_rank}.",
                f"{sharding.sampler}(dataset, num_replicas=dist.get_world_size(), rank=dist.get_rank())",
            )
        ]
    return []


def _alike_first(sharding: Sharding) -> list[Remedy]:
    """Where each rank has a dataset in an order, or a split, of its own, no sampler can share it out."""
    differ = sharding.index_map is not None and sharding.index_map.moved and not sharding.index_map.own
    if not differ or sharding.replicas != sharding.ranks:
        return []
    return [
        you(
            "The sampler is right; the ranks share out different splits or orders (DAT019). Give them one seed.",
            "random_split(dataset, lengths, generator=torch.Generator().manual_seed(42))",
        )
    ]


def _by_chance(sharding: Sharding, account: Account) -> bool:
    """Whether parts of ranks overlap as those of independent permutations do: each draws an order of its own."""
    size, ranks = account.there, sharding.ranks
    asked = all(share.asked for share in sharding.shares)
    random = sharding.order is not None and not sharding.order.sequential and not sharding.order.repeats
    if account.by != "index" or not (asked and random) or abs(account.read - size) > ranks * (sharding.batch or 1):
        return False
    left_out: float = (1 - 1 / ranks) ** ranks  # the share that none of them has in its part
    return abs(size - account.distinct - size * left_out) <= _CHANCE * math.sqrt(size * left_out * (1 - left_out))


def _one_order(sharding: Sharding, account: Account) -> list[Remedy]:
    if not _by_chance(sharding, account):
        return []
    return [
        you(
            f"Let all ranks draw one order: seed it in {sharding.sampler} by a number that they share and the "
            "epoch.",
            "order = np.random.default_rng((seed, epoch)).permutation(n)",
        )
    ]


def _overlap(node: str, sharding: Sharding, account: Account) -> Finding:
    first = account.examples[0] if account.examples else None
    example = f"; {first.sample} by ranks {joined(first.by)}" if first else ""
    own = account.by == "content" and not by_local_rank(sharding) and not _of_other_ranks(sharding)
    return fail(
        Where(node=node),
        f"{account.shared} of {account.there} samples are read by several ranks{example}"
        if not own
        else f"each rank holds a selection of its own, and {account.shared} samples are in several{example}",
        why=_of_other_ranks(sharding)
        or (_OWN_SPLITS if own else _OWN_ORDERS if _by_chance(sharding, account) else _TWICE),
        owner="job",
        evidence=_evidence(sharding, account),
        fix=_by_arguments(sharding)
        or _alike_first(sharding)
        or _one_order(sharding, account)
        or by_local_rank(sharding)
        or (_one_split(sharding) if own else by_sampler(sharding)),
    )


def _one_split(sharding: Sharding) -> list[Remedy]:
    """Where each rank draws its own samples: the draw is to be the same on all, and a sampler shares it out."""
    return [
        you(
            "Let all ranks draw one selection, whatever their rank (no seed + rank, no set of texts); a sampler "
            "shares it out.",
            "train, val = random_split(dataset, lengths, generator=torch.Generator().manual_seed(42))",
            "sampler = torch.utils.data.distributed.DistributedSampler(train)",
            f"loader = DataLoader(train, batch_size={sharding.batch or 'BATCH'}, sampler=sampler)",
        )
    ]


def _padding(node: str, sharding: Sharding, account: Account, missing: int) -> Finding:
    parts = [f"{account.shared} of {account.there} samples are read twice"] if account.shared else []
    parts += [f"{missing} of {account.there} are left out"] if missing else []
    return note(
        Where(node=node),
        f"{' and '.join(parts)}, so that ranks have equally many",
        why="Of no weight in training. In validation metrics are off by these samples.",
        evidence=_evidence(sharding, account),
    )


def _evidence(sharding: Sharding, account: Account) -> list[Evidence]:
    counts = ", ".join(f"rank {share.rank}: {_or_length(share)}" for share in sharding.shares)
    how = sharding.sampler if account.by == "index" else "contents of the samples"
    return [
        seen(
            how,
            f"{account.read} reads by all ranks, of {account.distinct} samples"
            + (f"; there are {account.there}" if account.there >= account.distinct else ""),
        ),
        seen("samples an epoch", counts),
    ]


def _or_length(share: Share) -> str:
    count = share.length if share.samples is None else share.samples
    return "not known" if count is None else str(count)


@rule("DAT018", "all ranks have the same number of batches", worst=State.FAIL, commands=_DATA)
def equally_many(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The batches that each rank gets in one epoch.

    ## Why it matters
    DDP reduces gradients in every step. A rank with one batch less is done and gone, and the others wait for it at
    their last batch until the timeout: a hang at the end of the epoch that no message explains.

    ## Seen as
    hangs, wrong results

    ## How we know
    The sampler of each emulated rank is asked for its batches, and the samples of a stream are counted. A dataset
    that comes without a loader has no batches: then only its samples are compared, which is a note, and a warning
    where they are more than a tenth apart. A note is a len() of a stream that is the number of samples of no rank,
    nor of all ranks together.

    ## Fix
    - **you** DistributedSampler pads all ranks to the same count; `drop_last=True` in the loader cuts a rest.
    - **you** for streams stop all ranks at the same number of steps, or wrap the loop in
      `torch.distributed.algorithms.join.Join`.

    ## Source
    PyTorch, Distributed Training with Uneven Inputs Using the Join Context Manager; pytorch/pytorch#38174,
    Lightning-AI/pytorch-lightning#20404.
    """
    looked, judged = shardings(cluster), False
    for node, sharding in looked:
        batches = [share.batches for share in sharding.shares]
        samples = [share.samples for share in sharding.shares]
        if batches and None not in batches:
            judged = True
            yield _batches(node, sharding, [count or 0 for count in batches])
        elif sharding.iterable and samples and None not in samples:
            judged = True
            yield _samples(node, sharding, [count or 0 for count in samples])
        yield from _another_length(node, sharding)
    if not judged:
        raise nothing_of(looked, "no batches were counted")


def _another_length(node: str, sharding: Sharding) -> Iterator[Finding]:
    """A stream whose len() is that of no rank, nor of all of them."""
    counts = [share.samples or 0 for share in sharding.shares if share.samples is not None]
    length = sharding.shares[0].length if sharding.shares else None
    if not sharding.iterable or length is None or len(counts) < len(sharding.shares):
        return
    whole = sharding.stream.whole if sharding.stream and sharding.stream.whole is not None else sum(counts)
    if min(abs(length - count) for count in (*counts, sum(counts), whole)) > max(
        sharding.batch or 1, sharding.ranks
    ):
        short = length < min(counts)
        yield (warn if short else note)(
            Where(node=node),
            f"len() of the stream is {length}, and rank 0 reads {counts[0]} samples ({sum(counts)} on all ranks)",
            why="len(loader) is made of it: Lightning ends the epoch there, schedules end too early, and torch "
            "warns of each batch beyond it."
            if short
            else "len(loader) is made of it: a schedule and a progress bar count steps that never come.",
            owner="job",
            evidence=[seen("samples by rank, read to the end", ", ".join(map(str, counts[:8])))],
            fix=[you("Let __len__ count what __iter__ gives one rank.")],
        )


def _batches(node: str, sharding: Sharding, batches: list[int]) -> Finding:
    least, most = min(batches), max(batches)
    if least == most:
        return fine(Where(node=node), f"{most} batches an epoch on each of {sharding.ranks} ranks")
    counts = ", ".join(f"rank {share.rank}: {share.batches}" for share in sharding.shares)
    rank = sharding.shares[batches.index(least)].rank
    return fail(
        Where(node=node, rank=rank),
        f"rank {rank} has {least} batches an epoch, another has {most}",
        why="The others wait at their last batches for a rank that is done: the job hangs until the timeout.",
        owner="job",
        evidence=[seen(sharding.sampler or "the stream, read to its end", counts)],
        fix=[
            *(
                _as_many(sharding, least)
                if sharding.iterable
                else _of_all(sharding)
                if sharding.own_batches
                else _of_own_parts()
                if sharding.index_map and sharding.index_map.by_design
                else by_sampler(sharding)
            ),
            you(
                "Or let the ranks that are done take part.",
                "with torch.distributed.algorithms.join.Join([model]):",
            ),
        ],
    )


def _of_all(sharding: Sharding) -> list[Remedy]:
    """Of a sampler that makes batches, each rank from its own share of the samples."""
    return [
        you(
            f"In {sharding.sampler}.__iter__ make the batches from all samples, the same on every rank; then give "
            "each rank as many of them.",
            "batches = batches[: len(batches) // world * world]",
            "yield from batches[rank::world]",
        )
    ]


def _of_own_parts() -> list[Remedy]:
    """Of a dataset that gives each rank a part of its own, of another length."""
    return [
        you(
            "The dataset gives each rank a part already, and the parts differ in length. Leave out samples first, "
            "the same on all ranks, and then give each rank as many.",
            "rows = [row for row in rows if keep(row)]  # before the part of the rank is taken",
            "rows = rows[: len(rows) // world * world]",
            "rows = rows[rank::world]",
        )
    ]


def _as_many(sharding: Sharding, least: int) -> list[Remedy]:
    """A stream whose ranks read samples of their own is shared out already, only not evenly."""
    if sharding.stream is None or sharding.stream.between_ranks:
        return by_stream()
    counted = all(share.batches for share in sharding.shares)
    return [
        you(
            "Let all ranks end after the same number of batches, or share out single samples instead of files.",
            f"for batch in itertools.islice(loader, {least if counted else 'LEAST'}):  # that every rank has",
        )
    ]


def _samples(node: str, sharding: Sharding, samples: list[int]) -> Finding:
    """A few samples more may be the same number of batches, of whatever size; a tenth more is not."""
    least, most = min(samples), max(samples)
    if least == most:
        return fine(Where(node=node), f"{most} samples an epoch on each rank")
    text = f"ranks read between {least} and {most} samples an epoch"
    if most - least > max(_UNEVEN * most, _REST):
        return warn(
            Where(node=node, rank=samples.index(least)),
            text,
            why="With most sizes of a batch these are different numbers of batches: the ranks with more of them "
            "wait at the end of the epoch for one that is done, until the timeout.",
            owner="job",
            evidence=[seen("samples by rank, read to the end", ", ".join(map(str, samples[:8])))],
            fix=_as_many(sharding, least),
        )
    return note(
        Where(node=node, rank=samples.index(least)),
        text,
        why="Where that makes different numbers of batches, DDP hangs at the end of the epoch.",
        fix=[you("Cut the rest.", "DataLoader(dataset, drop_last=True)")],
    )
