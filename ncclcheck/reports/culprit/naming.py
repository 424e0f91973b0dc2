"""Culprits of a cluster: causes first, and what follows from them under their name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced

from msgspec import UNSET

from ncclcheck.probes.facts import Cluster, replace
from ncclcheck.reports.culprit import words
from ncclcheck.reports.culprit.alone import Late, Outlier, by_node, late_ranks, ranks_of, slow_nodes, slow_ranks
from ncclcheck.reports.culprit.broken import broken
from ncclcheck.reports.culprit.machines import (
    exchanges_lacked_cores,
    lack_cores,
    machines_differ,
    share_cores,
    usual_noise,
)
from ncclcheck.reports.culprit.own import by_own_environment
from ncclcheck.reports.culprit.pairs import two
from ncclcheck.reports.culprit.pairs.blame import FEW, BlamedSuspect, blame, unexplained
from ncclcheck.reports.culprit.pairs.groups import known_groups
from ncclcheck.reports.culprit.pairs.islands import Islands, islands
from ncclcheck.reports.culprit.pairs.samples import PERCENT, OneWay, PairSamples, ends_of, read
from ncclcheck.reports.culprit.slowed import Slowed, slowed_by_cause, slowed_by_loss
from ncclcheck.reports.culprit.training import in_training
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.judgement.findings import Culprit, Where
from ncclcheck.reports.scale.naming import culprits as scale_culprits
from ncclcheck.reports.subjects.failures.held_up import HeldUp
from ncclcheck.reports.subjects.job.pairing import pairing
from ncclcheck.reports.subjects.links.losses import LostPackets
from ncclcheck.reports.subjects.logs.flight import culprits as flight_culprits
from ncclcheck.reports.text.words.fold import fold_names

_LINKS = 4  # slow links, or a quarter of the nodes, from which on they are named together; chosen
# Slowness, a logarithm: 30 times, as for packets lost without cores (subjects/links/since.py). Healthy hosts at a
# load of 28 on 2 cores were seen to carry 7, 10 and 16 % of what others did, in all their exchanges.
_BEYOND_CORES = math.log(30)
_KNOWN = 0.95  # two measurements of different kinds agree: packets counted before the job, and the job itself


def culprits(cluster: Cluster) -> list[Culprit]:
    """Who is to blame for what is slow or broken, the surest first; nobody where nobody is proven.

    A host, GPU or rank that is slow by itself comes before the network, and takes along the pairs that are slow
    for its sake. Simulated nodes are one machine: none of them is to blame, but for what a fault that was injected
    brings about.
    """
    alone = [
        *(_slow(cluster) if machines_differ(cluster) and not share_cores(cluster) else ()),
        *(_late(cluster) if machines_differ(cluster, but_for="slow-rank") else ()),
    ]
    merged = _merged(alone)
    shown = through_network(cluster) if machines_differ(cluster, but_for="slow-link") else []
    for culprit in (each.culprit for each in shown):
        cause = next((i for i, c in enumerate(merged) if _causes(cluster, c, culprit)), None)
        if cause is None:
            merged.append(culprit)
        else:
            merged[cause] = _joined(merged[cause], culprit)
    own = by_own_environment(cluster)
    accused = {who.names[0] for who in own}
    named = [who for who in (*broken(cluster), *merged) if not {place.node for place in who.where} & accused]
    named = [*own, *named, *scale_culprits(cluster), *in_training(cluster), *_recorded(cluster)]
    return sorted(_named_once(named), key=lambda who: -who.confidence)


def _recorded(cluster: Cluster) -> list[Culprit]:
    """Culprits by the dumps of the Flight Recorder."""
    logs = cluster.measurements.logs
    if logs is None or logs.flight is None:
        return []
    return flight_culprits.culprits(logs.flight, pairing(logs))


@dataclass(frozen=True)
class PairCulprit:
    """A culprit that pairs of nodes show. slowness: the logarithm of it; None for two nodes.

    follows: the rule that found its cause before the job.
    """

    culprit: Culprit
    slowness: float | None
    follows: str = ""


def through_network(cluster: Cluster) -> list[PairCulprit]:
    """Culprits that pairs of nodes show; of two nodes, what differs between them. Known causes come first."""
    samples, guilty = _blamed(cluster)
    place = words.places(cluster)
    slowed = slowed_by_loss(cluster)
    known = [
        PairCulprit(_lossy(slowed, slowed.cause, place), slowed.slowness, "NET009")
        for slowed in slowed
        if isinstance(slowed.cause, LostPackets)
    ]
    delayed = slowed_by_cause(cluster)
    known += [
        PairCulprit(_held_up(slowed, cause, place), slowed.slowness, cause.code)
        for slowed, cause in _causes_of(delayed)
    ]
    slowed = [*slowed, *delayed]
    if len(samples.names) < FEW:
        return known or [PairCulprit(culprit, None) for culprit in _of_two(cluster)]
    guilty = _not_explained(cluster, samples, slowed) if slowed else guilty
    links = [guilt for guilt in guilty if guilt.suspect.part == "link"]
    many = len(links) >= max(_LINKS, len(samples.names) // 4)
    rest = [guilt for guilt in guilty if not many or guilt.suspect.part != "link"]
    rest = [guilt for guilt in rest if not _by_want_of_cores(cluster, guilt)]
    founds = [PairCulprit(_culprit(guilt, samples, place), guilt.slowness) for guilt in rest]
    if not (known or founds or many) and (apart := islands(cluster.measurements.pairs)):
        return [_apart(apart)]
    return [*known, *founds, *([_many_links(links, samples)] if many else [])]


def _by_want_of_cores(cluster: Cluster, guilt: BlamedSuspect) -> bool:
    """Whether the want of cores alone may explain it."""
    return guilt.slowness < _BEYOND_CORES and exchanges_lacked_cores(cluster)


def without_cores(cluster: Cluster) -> list[Culprit]:
    """Who would be named if the exchanges had had their cores, by these alone."""
    samples, guilty = _blamed(cluster)
    place = words.places(cluster)
    return [_culprit(guilt, samples, place) for guilt in guilty if _by_want_of_cores(cluster, guilt)]


def _not_explained(cluster: Cluster, samples: PairSamples, slowed: list[Slowed]) -> list[BlamedSuspect]:
    """Who is to blame for what is slow beside the pairs that lose packets.

    A link at one end of such a pair, and no slower, may have waited for it: it is judged once the loss is gone.
    """
    explained = {ends for slowed in slowed for ends in slowed.ends}
    beside = {name: slowed.slowness for slowed in slowed for ends in slowed.ends for name in ends}
    left = replaced(samples, ways=tuple(way for way in samples.ways if ends_of(way) not in explained))
    if len(left.names) < FEW and any(isinstance(slowed.cause, HeldUp) for slowed in slowed):
        return []
    return [
        guilt
        for guilt in blame(left, known_groups(cluster))
        if guilt.suspect.part != "link"
        or guilt.slowness > max(beside.get(name, 0.0) for name in guilt.suspect.names)
    ]


@derived
def _blamed(cluster: Cluster) -> tuple[PairSamples, list[BlamedSuspect]]:
    percent = cluster.policy.thresholds.get("BEN004.percent", PERCENT)
    samples = read(cluster.measurements.pairs, percent, usual_noise(cluster))
    return samples, blame(samples, known_groups(cluster))


def seen_once(cluster: Cluster) -> list[OneWay]:
    """Ways that were slow in their only measurement and that nobody explains; the slowest of each pair."""
    samples, guilty = _blamed(cluster)
    if len(samples.names) < FEW:
        return []
    left = unexplained(samples, samples.ways, guilty)
    once = sorted((w for w in left if w.times == 1 and w.slowness >= samples.least(1)), key=lambda w: w.slowness)
    return sorted({ends_of(way): way for way in once}.values(), key=lambda way: -way.slowness)


def _culprit(guilt: BlamedSuspect, samples: PairSamples, place: words.Place) -> Culprit:
    return Culprit(
        kind=words.kind(guilt.suspect),
        names=words.names(guilt.suspect, place),
        where=words.where(guilt.suspect, place),
        confidence=words.confidence(guilt, samples),
        explains=["BEN004"],
        why=words.what(guilt, samples),
    )


def _causes_of(delayed: list[Slowed]) -> list[tuple[Slowed, HeldUp]]:
    return [(slowed, slowed.cause) for slowed in delayed if isinstance(slowed.cause, HeldUp)]


def _held_up(slowed: Slowed, cause: HeldUp, place: words.Place) -> Culprit:
    """A node of which the cause is known from before the job."""
    nic = place(cause.node, None)
    return Culprit(
        kind="nic",
        names=[f"{nic.node}/{nic.device}"],
        where=[nic],
        confidence=_KNOWN,
        explains=[cause.code, "BEN004"],
        why=f"{slowed.what}, because of {cause.code} on {cause.node}",
    )


def _lossy(slowed: Slowed, lost: LostPackets, place: words.Place) -> Culprit:
    """A way, or a node, of which the loss is known from before the job."""
    nic = place(lost.node, None)
    return Culprit(
        kind="link" if lost.peer else "nic",
        names=[lost.node, lost.peer] if lost.peer else [f"{nic.node}/{nic.device}"],
        where=[Where(node=lost.node, peer=lost.peer) if lost.peer else nic],
        confidence=_KNOWN,
        explains=["NET009", "BEN004"],
        why=f"{slowed.what}, because of NET009: {lost.loss} packets are lost on the path",
    )


def _apart(apart: Islands) -> PairCulprit:
    """Groups that are fast within and slow to each other."""
    names = [fold_names(group) for group in apart.groups]
    culprit = Culprit(
        kind="fabric",
        names=names,
        where=[Where(node=apart.groups[0][0], peer=apart.groups[1][0])],
        confidence=0.9,
        explains=["BEN004"],
        why=f"between {' and '.join(names)} at most {apart.across:.3g} GB/s get through, and within each at least "
        f"{apart.within:.3g} GB/s",
    )
    return PairCulprit(culprit, apart.slowness)


def _many_links(links: Sequence[BlamedSuspect], samples: PairSamples) -> PairCulprit:
    """So many single links are no accident of cables: something between them is at fault."""
    names = sorted({name for link in links for name in link.suspect.names})
    slowest = max(links, key=lambda link: link.slowness)
    culprit = Culprit(
        kind="fabric",
        names=names,
        where=[Where(node=link.suspect.names[0], peer=link.suspect.names[1]) for link in links],
        confidence=0.6,
        explains=["BEN004"],
        why=f"{len(links)} links between nodes that are fast with others are slow; the slowest "
        f"{words.numbers(slowest, samples)}",
    )
    return PairCulprit(culprit, slowest.slowness)


def _of_two(cluster: Cluster) -> Iterable[Culprit]:
    """Two nodes: what is wrong can be seen, but not on whose side."""
    pairs = cluster.measurements.pairs
    names = sorted({name for pair in pairs for name in (pair.a, pair.b)})
    if len(names) != 2 or not (wrong := wrong_of_two(cluster)):
        return
    yield Culprit(
        kind="link",
        names=names,
        where=[Where(node=names[0], peer=names[1])],
        confidence=0.5,
        explains=["BEN004"],
        why=f"{wrong}; which of the two it is cannot be told from two nodes: add a third one, best one that is "
        "known to be good (--nodes 3, or --hosts with its name)",
    )


def wrong_of_two(cluster: Cluster) -> str:
    """What is wrong between the only two nodes; empty where nothing is proven."""
    pairs = cluster.measurements.pairs
    if pairs and all(pair.state != "ok" for pair in pairs):
        return f"no exchange succeeded ({pairs[-1].reason or pairs[-1].state})"
    slower = two.slower(pairs)
    if slower is None or not slower.is_proven(short_of_cores=lack_cores(cluster)):
        return ""
    return words.of_two(slower)


def unproven_of_two(cluster: Cluster) -> two.SlowerDirection | None:
    """A direction between two nodes that is slow, but too seldom measured or too little so to accuse anybody."""
    if len({name for pair in cluster.measurements.pairs for name in (pair.a, pair.b)}) != 2:
        return None
    slower = two.slower(cluster.measurements.pairs)
    return None if slower is None or slower.is_proven(short_of_cores=lack_cores(cluster)) else slower


def _slow(cluster: Cluster) -> list[Culprit]:
    """Nodes of which all ranks are outliers, single GPUs, single ranks on CPUs."""
    slow, named = slow_ranks(cluster), []
    of_node: dict[str, list[Outlier]] = {}
    for outlier in slow:
        of_node.setdefault(outlier.node, []).append(outlier)
    measured = ranks_of(cluster.measurements.rank_speeds)
    for node, numbers in of_node.items():
        ranks = {number.rank for number in numbers}
        if len(ranks) > 1 and len(ranks) == len(measured[node]):
            named.append(_alone("node", node, Where(node=node), numbers, "BEN015"))
        else:
            for (_, rank), of_rank in by_node(numbers).items():
                device = of_rank[0].device or ""
                if device.startswith("cuda"):
                    index = device.removeprefix("cuda:")
                    gpu = Where(node=node, device=device, gpu=int(index) if index.isdecimal() else UNSET)
                    named.append(_alone("gpu", f"{node}/{device}", gpu, of_rank, "BEN015"))
                elif len(measured[node]) == 1:
                    named.append(_alone("node", node, Where(node=node), of_rank, "BEN015"))
                else:
                    named.append(
                        _alone("rank", f"{node}/rank {rank}", Where(node=node, rank=rank), of_rank, "BEN015")
                    )
    return named + [
        _alone("node", slow_node.node, Where(node=slow_node.node), [slow_node], "BEN016")
        for slow_node in slow_nodes(cluster)
    ]


def _alone(kind: words.Kind, name: str, where: Where, numbers: Sequence[Outlier], code: str) -> Culprit:
    worst = min(number.percent for number in numbers)
    return Culprit(
        kind=kind,
        names=[name],
        where=[where],
        confidence=round(min(0.97, 0.97 - max(0.0, worst - 60) / 100), 2),
        explains=[code],
        why="; ".join(words.slow(number) for number in numbers),
    )


def _late(cluster: Cluster) -> list[Culprit]:
    """A node where most of its ranks are late, else the rank."""
    late = late_ranks(cluster)
    ranks = ranks_of(cluster.measurements.lateness)
    late_ones: list[Culprit] = []
    for node in dict.fromkeys(late.fact.node for late in late):
        of_node = [late for late in late if late.fact.node == node]
        whole = len(of_node) == len(ranks[node]) or (len(of_node) > 1 and 2 * len(of_node) > len(ranks[node]))
        late_ones += (
            [_late_culprit(of_node[0], whole=True)]
            if whole
            else [_late_culprit(late, whole=False) for late in of_node]
        )
    return late_ones


def _late_culprit(late: Late, *, whole: bool) -> Culprit:
    rank, node = late.fact.rank, late.fact.node
    why = f"rank {rank} {words.late(late)}"
    return Culprit(
        kind="node" if whole else "rank",
        names=[node if whole else f"{node}/rank {rank}"],
        where=[Where(node=node, rank=None if whole else rank)],
        confidence=round(min(0.97, 0.75 + 0.3 * late.share), 2),
        explains=["BEN003"],
        why=why,
    )


def _named_once(culprits: Iterable[Culprit]) -> list[Culprit]:
    by_name: dict[tuple[str, ...], Culprit] = {}
    for culprit in culprits:
        name = (culprit.kind, *culprit.names)
        by_name[name] = _joined(by_name[name], culprit) if name in by_name else culprit
    return list(by_name.values())


def _merged(alone: Iterable[Culprit]) -> list[Culprit]:
    """One name once; what is said of a rank or GPU of a node that is named as a whole goes to the node."""
    by_name: dict[str, Culprit] = {}
    for culprit in sorted(alone, key=lambda who: who.kind != "node"):
        node = culprit.where[0].node or ""
        name = node if node in by_name and by_name[node].kind == "node" else culprit.names[0]
        by_name[name] = _joined(by_name[name], culprit) if name in by_name else culprit
    return list(by_name.values())


def _joined(cause: Culprit, follows: Culprit) -> Culprit:
    return replace(
        cause,
        confidence=max(cause.confidence, follows.confidence),
        explains=list(dict.fromkeys([*cause.explains, *follows.explains])),
        why=cause.why if follows.why in cause.why else f"{cause.why}; {follows.why}",
    )


def _causes(cluster: Cluster, cause: Culprit, culprit: Culprit) -> bool:
    """A slow node makes its pairs slow, a slow GPU or late rank those of its rail."""
    place = cause.where[0]
    if culprit.kind not in ("node", "nic") or culprit.where[0].node != place.node:
        return False
    rail = culprit.where[0].rail
    if cause.kind == "node" or culprit.kind == "node" or not isinstance(rail, int):
        return cause.kind == "node" or culprit.kind == "nic"
    ranks = ranks_of([*cluster.measurements.lateness, *cluster.measurements.rank_speeds]).get(place.node or "", [])
    rank = place.rank
    if rank is None and isinstance(place.gpu, int):
        return place.gpu == rail
    return rank in ranks and ranks.index(rank) == rail
