"""Ranks that keep all others waiting: stopped, dead, or behind in a step that all go through together."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ncclcheck.probes.facts import Cluster, JobEnd, RankState, Run, at, value_or
from ncclcheck.probes.facts.run.course import STOPPED, signal_name
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.subjects.failures import last_words

STUCK_S = 5.0  # s without progress before all ranks in one step count as stuck; chosen
MOST_TOLD = 16  # ranks that are named: a page of text; chosen
# Steps in which all ranks begin the same iterations together: a row of the table, and the soak.
_TOGETHER = re.compile(r"barrier|\w+ [0-9.]+ ([KMG]i)?B|soak, .*")
# Of torch's stores and rendezvous, and of the kernel: the other side did not come, or is gone.
_IN_VAIN = re.compile(
    r"time[d-]? ?out|Rendezvous(Timeout|Connection|Closed)Error|Broken pipe|No route to host"
    r"|[Cc]onnection (reset|closed|refused|was closed|timed out)|[Ff]ailed to (recv|send)",
)
# Whom gloo and the kernel name beside such words: `Connection closed by peer [10.0.0.2]:4711`.
_PEER = re.compile(r"\[([0-9a-fA-F:.]+)\]:\d+")
_SENTENCE = re.compile(r"(?<=[a-z)\]'\"`]{2}\.)\s+(?=[A-Z])")
# Of torch.multiprocessing: what ended the process that a rank had started stands in the log alone.
_OF_A_CHILD = re.compile(r"ProcessExitedException: ")
_SIGTERM = -15  # torchrun's own way to end ranks


def late(run: Run) -> list[RankState]:
    """Ranks that did not finish, in the phase that comes first."""
    return [r for r in run.ranks if r.phase == "start"] or [r for r in run.ranks if r.phase == "world"]


def killed(run: Run) -> list[JobEnd]:
    """A torchrun that a signal ended takes its ranks along: it is to blame, not they."""
    return [end for end in run.ends if end.exit is not None and end.exit < 0]


def stopped_launchers(run: Run) -> list[JobEnd]:
    """A torchrun that was stopped or frozen: it starts no rank, and sees none end."""
    return [end for end in run.ends if end.held]


def wordless(run: Run) -> list[JobEnd]:
    """A torchrun that ended with an error and said nothing, while no other one did: it did not wait for others."""
    failed = [end for end in run.ends if end.exit]
    return [end for end in failed if not end.detail] if len(failed) == 1 else []


def ending(cluster: Cluster, end: JobEnd) -> str:
    """How a torchrun or spawn went that brought no world about."""
    start = cluster.job.start
    if end.exit is not None and end.exit < 0:
        return f"{start} itself was killed by {signal_name(-end.exit)}, and its ranks with it"
    if end.held:
        how = "frozen by its control group" if end.held == "F" else f"stopped (state {end.held})"
        return f"{start} itself, pid {end.pid}, is {how}: it starts no rank there, and sees none end"
    began = "the job could not start" if end.exit is None else f"{start} ended before its ranks had joined"
    return f"{began}: {last_line(end.detail)}" if end.detail else f"{began}, with status {end.exit} and no word"


def meaning(end: JobEnd) -> last_words.WordsMeaning | None:
    """What the end of a torchrun usually means, by its last words, its signal or the shell's word for it."""
    means = last_words.meaning(end.detail) or last_words.by_signal(end.exit)
    return means or last_words.by_shell(last_line(end.detail))


def meaning_of(rank: RankState, run: Run) -> last_words.WordsMeaning | None:
    """The same of a rank: what it raised, its signal, else what its node's log ended with."""
    raised = last_words.meaning(rank.error)
    if rank.error and (raised or not _OF_A_CHILD.search(rank.error)):
        return raised
    ends = [end.detail for end in run.ends if end.node == rank.node and not gave_up(end)]
    return next(filter(None, map(last_words.meaning, ends)), None) or last_words.by_signal(rank.exit)


def ended(ranks: Sequence[RankState]) -> list[RankState]:
    """Stopped ranks; else those that a signal ended (SIGTERM is torchrun's own)."""
    stopped = [rank for rank in ranks if rank.proc_state in STOPPED]
    signalled = [r for r in ranks if not r.error and r.exit is not None and r.exit < 0 and r.exit != -15]
    return (stopped or signalled)[:MOST_TOLD]


def by_themselves(ranks: Sequence[RankState]) -> list[RankState]:
    """Those that nobody stopped and no other made fail: ended by a signal, else the first that died or raised."""
    if any(rank.proc_state in STOPPED for rank in ranks) or by_defect(ranks):
        return []
    if states := ended(ranks):
        return states
    states = [rank for rank in ranks if rank.first] or [rank for rank in ranks if rank.error][:1]
    return [rank for rank in states if not in_vain(rank)]


def by_defect(ranks: Sequence[RankState]) -> bool:
    """Whether a defect of ncclcheck ended the job: no rank that died without a word came before it."""
    return any(rank.defect for rank in ranks) and not any(rank.first and not rank.error for rank in ranks)


def none_to_blame(cluster: Cluster) -> bool:
    """Whether the job did not come to its end though all ranks were there and lived."""
    run = cluster.run
    if run.silent or killed(run):
        return False
    left = [rank for rank in run.ranks if rank.phase != "done"]
    if not left or len(run.ranks) != cluster.job.ranks or by_defect(left) or ended(left):
        return False
    return all(rank.error == "" or in_vain(rank) for rank in left) and not any(rank.users for rank in left)


def first_dead(cluster: Cluster, late: Sequence[RankState]) -> list[RankState]:
    """Of ranks that no signal ended, who is to blame: the first that was seen dead.

    Else one that died without a word, else the first error that is no consequence; words about a peer that left
    accuse the ranks of that peer, and only where nobody knows these, who said them.
    """
    if first := [rank for rank in late if rank.first and not taken_along(cluster.run, rank)]:
        return first
    mute = [rank for rank in late if not rank.error and rank.exit not in (None, 0, _SIGTERM)]
    states = [rank for rank in late if rank.error]
    own = [rank for rank in states if not in_vain(rank)]
    dead = [rank for rank in left(cluster, late) if not lives(rank)]
    return (mute or own or dead or states)[:1]


def lives(rank: RankState) -> bool:
    """Whether its process runs and has raised nothing: what ended its connections was not its own end."""
    return not rank.error and rank.exit is None and rank.proc_state not in ("", "gone", *STOPPED)


def taken_along(run: Run, rank: RankState) -> bool:
    """Its torchrun had lost the others, and ends its ranks before it ends itself: nothing of its own killed it."""
    ends = [end for end in run.ends if end.node == rank.node]
    return not rank.error and rank.exit is None and any(end.exit is None and _in_vain_of(end) for end in ends)


def _in_vain_of(end: JobEnd) -> bool:
    return bool(_IN_VAIN.search(last_line(end.detail)))


def left(cluster: Cluster, late: Sequence[RankState]) -> list[RankState]:
    """Ranks of the nodes by whose addresses the others name who left them; most of the others must agree."""
    nodes = _addresses(cluster)
    votes: dict[str, int] = {}
    for rank in late:
        for address in set(_PEER.findall(last_line(rank.error))):
            if (node := nodes.get(address, rank.node)) != rank.node:
                votes[node] = votes.get(node, 0) + 1
    most = max(votes.values(), default=0)
    accused = [node for node, count in votes.items() if count == most]
    return [rank for rank in late if accused == [rank.node] and not rank.error]


@derived
def _addresses(cluster: Cluster) -> dict[str, str]:
    """Address -> the one node that has it; one that several have names nobody."""
    holders: dict[str, set[str]] = {}
    for node in cluster.nodes:
        for interface in value_or(at(node, "network.interfaces"), []):
            for own in value_or(interface.addresses, []):
                holders.setdefault(own.address, set()).add(node.name)
    return {address: names.pop() for address, names in holders.items() if len(names) == 1}


def gave_up(end: JobEnd) -> bool:
    """Its words say that it waited for others in vain, or that they left: whoever speaks so is not to blame."""
    return (end.exit is None or end.exit > 0) and _in_vain_of(end)


def behind(ranks: Sequence[RankState]) -> list[RankState]:
    """Ranks that live and have begun fewer iterations of the same step than most others, while nothing moves."""
    step = ranks[0].last_step if ranks else ""
    if any(rank.last_step != step or rank.since_s < STUCK_S for rank in ranks) or not _TOGETHER.fullmatch(step):
        return []
    most = max(rank.ticks for rank in ranks)
    states = [rank for rank in ranks if rank.ticks < most]
    return states if 2 * len(states) <= len(ranks) else []


def how(rank: RankState) -> str:
    """How a rank was lost."""
    who = f"pid {rank.pid}"
    if rank.proc_state == "F":
        return f"{who} is frozen by its control group (docker pause, a suspended step)"
    if rank.proc_state in STOPPED:
        return f"{who} is stopped (state {rank.proc_state})"
    if rank.error:
        return f"{who} raised {headline(rank.error)}"
    if rank.exit is not None and rank.exit < 0:
        return f"{who} was killed by {signal_name(-rank.exit)}"
    if rank.exit is not None:
        return f"{who} is dead, exit status {rank.exit}"
    return f"{who} is dead: it ended by itself without an error, as by sys.exit(0) or os._exit()"


def lag(rank: RankState) -> str:
    """How a rank that lives keeps the others waiting."""
    return (
        f"pid {rank.pid} lives and has begun fewer iterations than the others, {where(rank)}: it did not come, or "
        "it still waits for data that the network lost"
    )


def where(rank: RankState) -> str:
    """What it was doing."""
    return f"before it had joined, in {rank.last_step!r}" if rank.phase == "start" else f"in {rank.last_step!r}"


def in_vain(rank: RankState) -> bool:
    """Its error only says that another rank left it, or did not come."""
    return bool(_IN_VAIN.search(headline(rank.error)) or _IN_VAIN.search(last_line(rank.error)))


def raised(run: Run) -> list[RankState]:
    """Ranks that the user's own code ended, where nothing else ended any; those that only lost a peer are none."""
    ranks = late(run)
    if ended(ranks) or by_defect(ranks):
        return []
    return [rank for rank in ranks if rank.users and not in_vain(rank)]


def headline(text: str) -> str:
    """What an exception says first; of one that a loader's worker handed over, what it ends with."""
    if "Original Traceback" in text:
        return last_line(text)
    kind, colon, rest = text.strip().partition(":")
    first = next((line.strip() for line in rest.splitlines() if line.strip()), "")
    sentence = _SENTENCE.split(first, maxsplit=1)[0].removesuffix(".")
    return f"{kind}{colon} {sentence}".strip()[:300] if text.strip() else "nothing"


def last_line(text: str) -> str:
    """What an exception ends with."""
    return text.strip().splitlines()[-1][:300] if text.strip() else "nothing"
