"""Who is to blame for what is not slow but broken: wrong results, and ranks that all others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ncclcheck.probes.facts import Cluster, RankState, WrongResult
from ncclcheck.probes.facts.run.course import STOPPED
from ncclcheck.reports.judgement.findings import Culprit, Where
from ncclcheck.reports.subjects.failures import cut, deadlock, lost
from ncclcheck.reports.subjects.job import corruption

# An order, no probability: a contribution that explains all, one sender of what several ranks saw, one rank that
# alone saw it, and the same where it came from another one.
_CONTRIBUTED, _SENT, _SEEN_ALONE, _CAME_TO_IT = 0.97, 0.8, 0.6, 0.5
# Seen stopped or ended by a signal; seen dead first; on another branch; its connections ended; behind all others.
_ENDED, _FIRST, _PARTED, _CUT, _BEHIND = 0.97, 0.9, 0.8, 0.6, 0.5


def broken(cluster: Cluster) -> list[Culprit]:
    """Ranks that changed data, and ranks that never came; nobody where nobody is proven."""
    return [*_computes_wrong(cluster), *_changed_data(cluster), *_kept_waiting(cluster)]


def _computes_wrong(cluster: Cluster) -> list[Culprit]:
    """GPUs, or hosts without one, that multiplied two known matrices wrong."""
    culprits: list[Culprit] = []
    for rank_speed in cluster.measurements.rank_speeds:
        if rank_speed.wrong_products:
            on_gpu = rank_speed.device.startswith("cuda")
            device = rank_speed.device if on_gpu else None
            culprits.append(
                Culprit(
                    kind="gpu" if on_gpu else "node",
                    names=[f"{rank_speed.node}/{device}" if on_gpu else rank_speed.node],
                    where=[Where(node=rank_speed.node, device=device, rank=rank_speed.rank)],
                    confidence=_CONTRIBUTED,
                    explains=["BEN042"],
                    why=f"{rank_speed.wrong_products} of {rank_speed.products} matrix products were wrong",
                )
            )
    return culprits


def _changed_data(cluster: Cluster) -> list[Culprit]:
    """One culprit a rank, over all operations.

    Who only saw a wrong result is not to blame where others saw some in which it has no part: then data changes in
    transit, and it is not known where.
    """
    by_rank: dict[int, list[WrongResult]] = {}
    sure: dict[int, float] = {}
    rows = _rows(cluster.measurements.wrong)
    for row in rows:
        rank, confidence = _blamed(row)
        if rank is not None and (confidence == _CONTRIBUTED or all(_has_part(rank, other) for other in rows)):
            by_rank.setdefault(rank, []).extend(row)
            sure[rank] = max(confidence, sure.get(rank, 0.0))
    nodes = {rank.rank: rank.node for rank in cluster.run.ranks}
    return [
        _culprit(rank, nodes[rank], sure[rank], ["BEN001"], _said(rows))
        for rank, rows in by_rank.items()
        if rank in nodes
    ]


def _rows(wrong: Sequence[WrongResult]) -> list[list[WrongResult]]:
    """Wrong results in groups, one for each run of an operation, of all ranks that saw it."""
    rows: dict[tuple[object, ...], list[WrongResult]] = {}
    for result in wrong:
        rows.setdefault((result.op, result.bytes, result.dtype, result.iteration, result.soak), []).append(result)
    return list(rows.values())


def _blamed(row: Sequence[WrongResult]) -> tuple[int | None, float]:
    """A fault before or in an operation reaches several ranks, one behind it only its own."""
    sources = {result.source_rank for result in row}
    source = next(iter(sources)) if len(sources) == 1 else None
    if source is not None and all(result.contribution for result in row):
        return source, _CONTRIBUTED
    seen_by = {result.rank for result in row}
    if len(seen_by) > 1:
        return source, _SENT
    return row[0].rank, _SEEN_ALONE if source in (None, row[0].rank) else _CAME_TO_IT


def _has_part(rank: int, row: Sequence[WrongResult]) -> bool:
    """Whether a rank saw, or sent, one of the wrong results of a run."""
    return any(rank in (result.rank, result.source_rank) for result in row)


def _said(rows: Sequence[WrongResult]) -> str:
    counted = Counter(row.op for row in rows)
    ops = ", ".join(f"{op} ({count} times)" if count > 1 else op for op, count in counted.items())
    return f"wrong results of {ops}; first {corruption.what([rows[0]])}"


def _kept_waiting(cluster: Cluster) -> list[Culprit]:
    """A torchrun that was ended, else the ranks that were, else the one that did not come."""
    run = cluster.run
    late = lost.late(run)
    code = "RUN002" if late and late[0].phase == "start" else "RUN003"
    states = lost.ended(late)
    stopped = lost.stopped_launchers(run) if code == "RUN002" and not states else []
    if ends := lost.killed(run) or stopped:
        return [_node(end.node, [code], lost.ending(cluster, end)) for end in ends]
    if states:
        return _of_ranks(states, run.ranks, _ENDED, code)
    if run.silent or lost.by_defect(late):
        return []
    if severed := cut.cut_node(cluster, late):
        return [_node(severed.node, [code], severed.words, _CUT)]
    if states := [rank for rank in lost.first_dead(cluster, late) if not rank.error]:
        return _of_ranks(states, run.ranks, _FIRST, code)
    if (raised := lost.raised(run)) and len(raised) < len(run.ranks):
        return [_culprit(rank.rank, rank.node, _FIRST, ["TRN026"], _raised(rank)) for rank in raised]
    if deadlock.is_one(run):
        why = "all ranks stand still, and this one took another branch than the rest"
        return [_culprit(rank.rank, rank.node, _PARTED, [code], why) for rank in deadlock.parted(late)]
    return _of_ranks(lost.behind(late), run.ranks, _BEHIND, code)


def _of_ranks(states: Sequence[RankState], ranks: Sequence[RankState], sure: float, code: str) -> list[Culprit]:
    """A node where all of its ranks are lost, for one cause is likelier than many."""
    named = []
    for node in dict.fromkeys(rank.node for rank in states):
        lost_here = [rank for rank in states if rank.node == node]
        if 1 < len(lost_here) == sum(rank.node == node for rank in ranks):
            named.append(_node(node, [code], f"all {len(lost_here)} ranks of it: {_lost(lost_here[0])}", sure))
        else:
            named += [_culprit(rank.rank, node, sure, [code], _lost(rank)) for rank in lost_here]
    return named


def _raised(rank: RankState) -> str:
    return f"the user's code raised {lost.headline(rank.error)}" + (f", at {rank.at}" if rank.at else "")


def _lost(rank: RankState) -> str:
    gone = rank.proc_state in ("gone", *STOPPED) or rank.exit is not None
    return f"{lost.how(rank)}, {lost.where(rank)}" if gone else lost.lag(rank)


def _culprit(rank: int, node: str, confidence: float, explains: list[str], why: str) -> Culprit:
    return Culprit(
        kind="rank",
        names=[f"{node}/rank {rank}"],
        where=[Where(node=node, rank=rank)],
        confidence=confidence,
        explains=explains,
        why=why,
    )


def _node(node: str, explains: list[str], why: str, confidence: float = _ENDED) -> Culprit:
    return Culprit(
        kind="node", names=[node], where=[Where(node=node)], confidence=confidence, explains=explains, why=why
    )
