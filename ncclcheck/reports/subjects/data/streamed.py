"""What a real loader showed of the user's dataset, for rules: node by node, and in words."""

from __future__ import annotations

from ncclcheck.probes.facts import Cluster, Unread
from ncclcheck.probes.facts.data import Streams, Structure
from ncclcheck.probes.facts.data.streams import Dependence
from ncclcheck.reports.judgement.findings import Evidence, seen
from ncclcheck.reports.judgement.rule import NothingToJudge
from ncclcheck.reports.subjects.data.examined import why_not


def streams(cluster: Cluster) -> list[tuple[str, Streams]]:
    """Node by node. Raises NothingToJudge."""
    looked = [(report.node, report.streams) for report in cluster.measurements.data if report.streams is not None]
    if not looked:
        raise NothingToJudge(why_not(cluster.measurements.data, "streams"))
    return looked


def epochs(cluster: Cluster, least: int) -> list[tuple[str, Streams]]:
    """Where the loader came through so many epochs, and the samples could be read at all."""
    judged = [
        (node, looked) for node, looked in streams(cluster) if looked.epochs >= least and not _unread(looked)
    ]
    if not judged:
        stream = streams(cluster)[0][1]
        why = stream.depends.why if isinstance(stream.depends, Unread) else "the loader did not come to an end"
        raise NothingToJudge(why)
    return judged


def _unread(stream: Streams) -> bool:
    return any(isinstance(fact, Unread) for fact in (stream.depends, stream.shared, stream.repeated))


def structures(cluster: Cluster) -> list[tuple[str, Structure]]:
    """Node by node, where samples could be read. Raises NothingToJudge."""
    looked = [
        (report.node, report.structure) for report in cluster.measurements.data if report.structure is not None
    ]
    judged = [(node, structure) for node, structure in looked if structure.read]
    if not judged:
        raise NothingToJudge(
            "no sample could be read" if looked else why_not(cluster.measurements.data, "structure")
        )
    return judged


def dependence(fact: Streams, generator: str) -> Dependence:
    """What depends on this generator."""
    known = [] if isinstance(fact.depends, Unread) else fact.depends
    return next(
        (entry for entry in known if entry.generator == generator),
        Dependence(generator=generator),
    )


_PRIVATE = {
    "random.Random": "random.Random({})",
    "numpy.Generator": "numpy.random.default_rng({})",
    "numpy.RandomState": "numpy.random.RandomState(({}) % 2**32)",
    "torch.Generator": "torch.Generator().manual_seed({})",
}


def private_made(fact: Dependence, seed: str) -> str:
    """The call that makes a generator of its kind, seeded by this."""
    return _PRIVATE.get(fact.kind, _PRIVATE["numpy.Generator"]).format(seed)


def leaf_of(fact: Dependence) -> str:
    """`part image` of the sample, or the sample itself."""
    return f"part {fact.leaves[0]} of the sample" if fact.leaves and fact.leaves[0] else "the sample"


def moved(fact: Dependence) -> list[Evidence]:
    """The two values of one sample that show that it depends on the generator."""
    if len(fact.values) != 2:
        return []
    values = f"{fact.values[0]} or {fact.values[1]}, by the state of {fact.generator}"
    return [seen(f"sample {fact.index}, {leaf_of(fact)}", values)]


def numbers(items: list[int]) -> str:
    """`0, 1, 2`."""
    return ", ".join(map(str, items[:12])) + (", ..." if len(items) > 12 else "")
