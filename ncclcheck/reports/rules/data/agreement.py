"""DAT019: ranks and nodes mean the same sample by the same index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.data import Made, Sharding
from ncclcheck.probes.facts.data.made import RewriteKind
from ncclcheck.probes.facts.data.sharding import Cause, IndexMap
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
from ncclcheck.reports.subjects.data import own_names
from ncclcheck.reports.subjects.data.sharded import nothing_of, shardings

_DATA = ("data",)
_WHY = "Each rank takes its indices from an order of its own: some samples are read twice an epoch, others never."
_CAUSES: dict[Cause, str] = {
    "": "",
    "listing": "the order in which the file system lists a directory",
    "entropy": "a random order without a seed",
    "interpreter": "an order that changes with PYTHONHASHSEED, as that of a set",
}
_SAID: dict[Cause, str] = {
    "listing": "Sort what the file system lists.",
    "entropy": "Give the order a seed that all ranks share.",
    "interpreter": "Sort what comes out of a set, and use no hash() of texts.",
}


@rule("DAT019", "index i is the same sample on all ranks and nodes", worst=State.FAIL, commands=_DATA)
def agree(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Which sample an index gives on every emulated rank, and on every node with `--nodes`.

    ## Why it matters
    A DistributedSampler shares out numbers. If rank 0 lists its files in another order than rank 1 (`os.listdir`,
    `glob`, a `set`, `random.shuffle` or `random_split` without a seed), the parts overlap and samples are lost,
    and with a split of its own on each rank training samples end up in validation.

    ## Seen as
    slow, wrong results

    ## How we know
    Rank 1 is a fresh interpreter with another PYTHONHASHSEED, seeds of its own and directories listed
    backwards; each rank reads some samples twice, and the parts of a sample that stay the same are compared. A
    part that differs from sample to sample and agrees on all ranks settles it. Where samples of one rank are
    found at other indices of another, that is a failure; if only a reversed listing does it, a warning: on one
    shared file system all may list alike. A factory that asks for its rank and gives it a part is not judged.
    Classes that have other numbers on another rank, one for one, while the rest of a sample is the same, are a
    failure; so are samples that change with PYTHONHASHSEED. Nodes are compared part by part.

    ## Fix
    - **you** `sorted(os.listdir(folder))`, `sorted(set(names))`.
    - **you** `random.Random(0).shuffle(files)`, `random_split(..., generator=torch.Generator().manual_seed(0))`.

    ## Source
    PyTorch, DistributedSampler; pytorch/pytorch#70103; Python, object.__hash__ (PYTHONHASHSEED); readdir(3).
    """
    looked = shardings(cluster, several=False)
    made = {report.node: report.made or Made() for report in cluster.measurements.data}
    findings = [
        finding for node, sharding in looked for finding in _within(node, sharding, made.get(node, Made()))
    ]
    findings += _between(looked)
    yield from findings
    if not findings:
        raise nothing_of(looked, "no indices were compared")


def _within(node: str, sharding: Sharding, made: Made) -> Iterator[Finding]:
    seen_map = sharding.index_map
    if seen_map is None or sharding.ranks < 2 or seen_map.by_design or seen_map.unseen:
        return
    if len(set(seen_map.lengths)) > 1:
        yield _lengths(node, seen_map, made)
    elif seen_map.relabelled:
        yield _relabelled(node, seen_map, made)
    elif seen_map.differing:
        yield _differing(node, seen_map, made)
    elif seen_map.compared:
        yield fine(Where(node=node), f"{seen_map.compared} indices are the same samples on {sharding.ranks} ranks")


def _lengths(node: str, seen_map: IndexMap, made: Made) -> Finding:
    least = seen_map.lengths.index(min(seen_map.lengths))
    lengths = ", ".join(f"rank {rank}: {length}" for rank, length in enumerate(seen_map.lengths))
    return fail(
        Where(node=node, rank=least),
        f"the dataset has {min(seen_map.lengths)} samples on one rank and {max(seen_map.lengths)} on another",
        why=_WHY,
        owner="job",
        evidence=[seen("len(dataset)", lengths)],
        fix=_fix(seen_map.cause, made),
    )


def _relabelled(node: str, seen_map: IndexMap, made: Made) -> Finding:
    first = seen_map.examples[0]
    cause = _CAUSES[seen_map.cause]
    return fail(
        Where(node=node, rank=first.rank),
        f"part {first.leaf} of the samples has other values on rank {first.rank}, one for one, and "
        f"the rest of a sample is the same" + (f": {cause}" if cause else ""),
        why="A class has another number on each rank: the ranks train against each other.",
        owner="job",
        evidence=_evidence(seen_map),
        fix=_fix(seen_map.cause, made),
    )


def _differing(node: str, seen_map: IndexMap, made: Made) -> Finding:
    first = seen_map.examples[0] if seen_map.examples else None
    rank = first.rank if first else 1
    text = f"{seen_map.differing} of {seen_map.compared} indices are other samples on rank {rank}"
    where = Where(node=node, rank=rank)
    if seen_map.own and seen_map.cause == "interpreter":
        return _by_interpreter(where, text, seen_map, made)
    if seen_map.own:
        return note(
            where,
            f"{text}, and rank 0 has them at no index: each rank makes samples of its own",
            why="Right for samples that are drawn at random; wrong where they come from files.",
            evidence=_evidence(seen_map),
        )
    make = fail if seen_map.moved and seen_map.cause != "listing" else warn
    cause = _CAUSES[seen_map.cause]
    return make(
        where,
        f"{text} than on rank 0" + (f": {cause}" if cause else ""),
        why=_WHY,
        owner="job",
        evidence=_evidence(seen_map),
        fix=_fix(seen_map.cause, made),
    )


def _by_interpreter(where: Where, text: str, seen_map: IndexMap, made: Made) -> Finding:
    """No seed reaches it, so that it is no augmentation: hash() of a text, the order of a set in a sample."""
    return fail(
        where,
        f"{text}, which rank 0 has at no index: they change with PYTHONHASHSEED, as hash() of a text does",
        why="Python draws that seed anew in each process: the same text is another number on each rank, in each "
        "worker that is spawned, and in each later run from a checkpoint.",
        owner="job",
        evidence=_evidence(seen_map),
        fix=[
            you(
                "Make numbers of texts by a function that is the same in all processes, and sort sets.",
                *(own_names.rewritten(made, "interpreter") or ["import zlib", "zlib.crc32(text.encode())"]),
            )
        ],
    )


def _evidence(seen_map: IndexMap) -> list[Evidence]:
    return [
        seen(
            f"index {example.index}, {example.leaf or 'the sample'}",
            f"rank 0: {example.one}; rank {example.rank}: {example.other}"
            + (f", which rank 0 has at index {example.there}" if example.there is not None else ""),
        )
        for example in seen_map.examples[:3]
    ] or [seen("samples compared", str(seen_map.compared))]


def _fix(cause: Cause, made: Made | None = None) -> list[Remedy]:
    """The user's own lines where some are seen that give this cause, or any where it is not known. The order of a
    set changes with that of a listing as well.
    """
    kinds: dict[Cause, RewriteKind] = {"interpreter": "interpreter", "entropy": "order", "listing": "listing"}
    lines = {each: own_names.rewritten(made, kind) if made else [] for each, kind in kinds.items()}
    named: list[Cause] = [cause, "interpreter"] if cause == "listing" else [cause] if cause else [*kinds]
    if own := [you(_SAID[each], *lines[each]) for each in named if lines[each]]:
        return own
    by_cause = {
        "listing": you(_SAID["listing"], "files = sorted(os.listdir(folder))"),
        "interpreter": you(_SAID["interpreter"], "names = sorted(set(names))"),
        "entropy": you(
            _SAID["entropy"],
            "random.Random(seed).shuffle(files)",
            "random_split(dataset, lengths, generator=torch.Generator().manual_seed(seed))",
        ),
    }
    return [by_cause[cause]] if cause in by_cause else [*by_cause.values()]


def _between(looked: list[tuple[str, Sharding]]) -> Iterator[Finding]:
    """Every node beside the first: the same indices were read on all."""
    if len(looked) < 2 or any(emulated.index_map and emulated.index_map.own for _, emulated in looked):
        return
    usual = Counter(_length(emulated) for _, emulated in looked).most_common(1)[0][0]
    alike = [(node, emulated) for node, emulated in looked if _length(emulated) == usual]
    for node, sharding in looked:
        if _length(sharding) != usual:
            yield _other_length(node, _length(sharding), alike[0][0], usual)
    first_node, first = alike[0]
    for node, sharding in alike[1:]:
        differing = _unlike(first, sharding)
        if differing:
            yield _other_samples(node, first_node, differing, len(sharding.prints))
        elif first.prints and sharding.prints:
            yield fine(Where(node=node), f"{len(sharding.prints)} indices are the same samples as on {first_node}")


def _length(sharding: Sharding) -> int | None:
    return next((share.length for share in sharding.shares), None)


def _unlike(first: Sharding, other: Sharding) -> list[int]:
    """Indices at which nodes differ; none where one leaf that tells samples apart agrees at all of them."""
    ours, theirs = ({p.index: p.leaves for p in sharding.prints} for sharding in (first, other))
    indices = [index for index in ours if index in theirs]
    leaves = {leaf for index in indices for leaf in ours[index] if leaf in theirs[index]}
    telling = [
        leaf for leaf in leaves if len({ours[i].get(leaf) for i in indices}) >= max(2, min(3, len(indices)))
    ]
    if any(all(ours[i].get(leaf) == theirs[i].get(leaf) for i in indices) for leaf in telling):
        return []
    return [i for i in indices if any(ours[i].get(leaf) != theirs[i].get(leaf) for leaf in telling)]


def _other_length(node: str, length: int | None, other: str, usual: int | None) -> Finding:
    return fail(
        Where(node=node),
        f"the dataset has {length} samples on {node} and {usual} on {other}",
        why="The nodes share out different numbers: ranks hang at the end of the epoch, or read past its end.",
        owner="job",
        evidence=[seen("len(dataset)", f"{node}: {length}, {other}: {usual}")],
        fix=[_compare("hostname; find DATA | wc -l", node, other)],
    )


def _other_samples(node: str, other: str, differing: list[int], of: int) -> Finding:
    examples = ", ".join(map(str, differing[:5]))
    return fail(
        Where(node=node, peer=other),
        f"{len(differing)} of {of} indices are other samples on {node} than on {other}: {examples}",
        why=_WHY,
        owner="job",
        evidence=[seen("digests of the samples", f"indices {examples} differ between {node} and {other}")],
        fix=[*_fix(""), _compare("hostname; ls DATA | sha256sum", node, other)],
    )


def _compare(command: str, *nodes: str) -> Remedy:
    return you("Compare the files on both nodes.", f"srun -w {quote(','.join(nodes))} sh -c '{command}'")
