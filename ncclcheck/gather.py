"""What the nodes said -> Cluster. Only keeps; waits for nothing and judges nothing."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ncclcheck import wire
from ncclcheck.launch.agents import Closed, Link, Said
from ncclcheck.probes.facts import (
    Door,
    JobEnd,
    Leftover,
    Measurements,
    Node,
    NodeReach,
    RankState,
    Run,
    Silence,
    replace,
    together,
)

_DEAD = ("gone", "T", "t")


@dataclass
class _OfNode:
    """What one node has said so far."""

    index: int
    name: str
    hello: wire.Hello | None = None
    facts: Node | None = None
    listening: wire.Listening | None = None
    reach: NodeReach | None = None
    end: JobEnd | None = None
    closed: str | None = None
    last_step: str = ""
    heard: float = field(default_factory=time.monotonic)


class Gathered:
    """Everything that was heard, by node and by rank."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = {node: link for link in links for node in link.nodes}
        self.nodes = {node: _OfNode(node, link.nodes[node]) for node, link in sorted(self._links.items())}
        self.ranks: dict[int, RankState] = {}
        self.parts: list[Measurements] = []
        self.leftovers: list[Leftover] = []
        self.stopping = False
        self._job: set[int] = set()
        self._examined: set[int] = set()
        self._only: Collection[str] | None = None
        self._went_wrong: tuple[dict[int, RankState], list[JobEnd]] | None = None

    def take(self, event: Said | Closed) -> None:
        """Keep one event."""
        node = self.nodes[event.node]
        if isinstance(event, Closed):
            node.closed = event.detail
            return
        node.heard = time.monotonic()
        match event.record:
            case wire.Hello() as hello:
                node.hello = hello
                node.last_step = "its agent has started"
            case wire.Facts(node=facts):
                node.facts = replace(facts, name=node.name)
            case wire.Listening() as listening:
                node.listening = listening
            case wire.Reach(reach=reach):
                node.reach = reach
            case wire.Step(text=text, rank=None):
                node.last_step = text
            case wire.Step(text=text, rank=rank) if rank in self.ranks:
                self.ranks[rank] = replace(self.ranks[rank], last_step=text)
            case wire.Rank(state=state):
                self._take_rank(state)
            case wire.Result(part=part):
                self.parts.append(part if self._only is None else _only(part, self._only))
            case wire.JobEnded(end=end, leftovers=leftovers):
                node.end = end
                self.leftovers += leftovers

    def _take_rank(self, state: RankState) -> None:
        """The first rank that was seen dead or stopped is marked: what others say later is a consequence."""
        before = self.ranks.get(state.rank)
        if self.stopping:  # we end them ourselves now: what they say of it is no news
            known = before or state
            state = replace(state, error=known.error if before else "", proc_state=known.proc_state)
        state = replace(
            state,
            last_step=state.last_step or (before.last_step if before else ""),
            error=state.error or (before.error if before else ""),
            exit=state.exit if state.exit is not None else (before.exit if before else None),
            first=bool(before and before.first),
        )
        if before and before.phase == "done":
            state = replace(state, phase="done")
        if not any(rank.first or rank.error for rank in self.ranks.values()) and lost(state) and not state.error:
            state = replace(state, first=True)
        self.ranks[state.rank] = state

    @property
    def answered(self) -> list[Node]:
        """The facts of every node that told them, in the launcher's order."""
        return [node.facts for node in self.nodes.values() if node.facts is not None]

    @property
    def waiting_for_facts(self) -> list[str]:
        """Nodes that may still tell their facts."""
        return [node.name for node in self.nodes.values() if node.facts is None and node.closed is None]

    @property
    def unheard(self) -> list[int]:
        """Nodes of which nothing was heard, not even that they cannot be reached."""
        return [n.index for n in self.nodes.values() if n.hello is None and n.facts is None and n.closed is None]

    @property
    def doors(self) -> list[Door]:
        """Where nodes can be reached."""
        return [n.listening.door for n in self.nodes.values() if n.listening and n.listening.door]

    def have_answered(self, asked: Iterable[int]) -> bool:
        """Every node that was asked to open a door has done so, or has said why not, or is gone."""
        return all(self.nodes[node].listening or self.nodes[node].closed is not None for node in asked)

    def have_reached(self, count: int) -> bool:
        """So many nodes have said what they saw of the others; those that are gone never will."""
        gone = sum(
            n.listening is not None and n.reach is None and n.closed is not None for n in self.nodes.values()
        )
        return sum(node.reach is not None for node in self.nodes.values()) + gone >= count

    def begin_job(self, nodes: Iterable[int], only: Collection[str] | None = None) -> None:
        """What is told of ranks from now on is of another job, on these nodes; what was measured stays.

        only: kinds of measurements that are kept of it; None: all.
        Of several jobs the first one that went wrong is told, else the last.
        """
        self._keep_what_went_wrong()
        self.ranks, self.stopping, self._job, self._only = {}, False, set(nodes), only
        for node in self._taking_part:
            node.end = None

    def begin_examination(self, nodes: Iterable[int]) -> None:
        """The next end of these nodes is their examiner's; the ranks of a job before it stay."""
        self._keep_what_went_wrong()
        self.stopping, self._job, self._only, self._examined = False, set(), None, set(nodes)
        for index in self._examined:
            self.nodes[index].end = None

    def _keep_what_went_wrong(self) -> None:
        if self._went_wrong is None and self._job and not self._went_well:
            self._went_wrong = self.ranks, [node.end for node in self._taking_part if node.end is not None]

    @property
    def _taking_part(self) -> list[_OfNode]:
        return [node for index, node in self.nodes.items() if index in self._job]

    @property
    def _went_well(self) -> bool:
        ended = all(node.end is not None and node.end.exit == 0 for node in self._taking_part)
        return ended and all(rank.phase == "done" for rank in self.ranks.values())

    @property
    def silent_of_examination(self) -> list[str]:
        """Nodes whose examiner may still tell something."""
        asked = [self.nodes[index] for index in sorted(self._examined)]
        return [node.name for node in asked if node.end is None and node.closed is None]

    @property
    def job_over(self) -> bool:
        """Every node has said how its torchrun ended."""
        return all(node.end is not None for node in self._taking_part)

    def job_over_but(self, silent: list[str]) -> bool:
        """Every node but the silent ones has said how its torchrun ended."""
        return all(node.end is not None or node.name in silent for node in self._taking_part)

    @property
    def ended_early(self) -> bool:
        """Some node's torchrun has ended otherwise than well."""
        return any(node.end is not None and node.end.exit != 0 for node in self._taking_part)

    def silent_in_job(self, seconds: float) -> list[str]:
        """Nodes whose agent ended before its job did, or has not even beaten for so long."""
        late = time.monotonic() - seconds
        return [n.name for n in self._taking_part if n.end is None and (n.closed is not None or n.heard < late)]

    @property
    def lost_ranks(self) -> list[RankState]:
        """Ranks that will never finish."""
        return [rank for rank in self.ranks.values() if lost(rank) or rank.error]

    def run(self, *, started_job: bool, stopped_by: str) -> Run:
        """What happened, as a fact."""
        now = self.ranks, [node.end for node in self.nodes.values() if node.end is not None]
        ranks, ends = self._went_wrong or now
        return Run(
            ranks=[ranks[rank] for rank in sorted(ranks)],
            silent=[
                self._silence(n)
                for n in self.nodes.values()
                if n.facts is None or (n in self._taking_part and n.end is None and stopped_by != "signal")
            ],
            ends=ends,
            leftovers=self.leftovers,
            started_job=started_job,
            stopped_by=stopped_by,  # type: ignore[arg-type]
        )

    def _silence(self, node: _OfNode) -> Silence:
        since = round(time.monotonic() - node.heard, 1)
        detail = node.closed or self._links[node.index].describe(node.index)
        return Silence(node=node.name, last_step=node.last_step, since_s=since, detail=detail)

    def measurements(self) -> Measurements:
        """What was measured."""
        reach = [node.reach for node in self.nodes.values() if node.reach is not None]
        return together([*self.parts, Measurements(reach=reach)])


def _only(part: Measurements, names: Collection[str]) -> Measurements:
    return Measurements(**{name: getattr(part, name) for name in names})


def lost(rank: RankState) -> bool:
    """Seen dead or stopped before it was done."""
    return rank.phase != "done" and rank.proc_state in _DEAD
