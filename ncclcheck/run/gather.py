"""What the nodes said -> Cluster. Only keeps; waits for nothing and judges nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ncclcheck.base import wire
from ncclcheck.launch.agents import AgentRecord, Closed, Link, Looked
from ncclcheck.probes.facts import (
    Dialled,
    Door,
    InitSeen,
    JobEnd,
    Knock,
    Leftover,
    Look,
    Measurements,
    Node,
    NodeReach,
    RankState,
    Run,
    Silence,
    SlowLogin,
    Unread,
    at,
    replace,
    together,
)
from ncclcheck.probes.facts.guard.alike import Kinds
from ncclcheck.probes.facts.run.course import STOPPED

_DEAD = ("gone", *STOPPED)
_AT_START = ("init_process_group", "first all_reduce")  # steps of the worker in which all ranks connect


@dataclass
class _OfNode:
    """The records of one node; times are those of time.monotonic, None is not yet told."""

    index: int
    name: str
    hello: wire.Hello | None = None
    facts: Node | None = None
    listening: wire.Listening | None = None
    reach: NodeReach | None = None
    reach_before: NodeReach | None = None
    end: JobEnd | None = None
    closed: Closed | None = None
    look: Look | None = None
    door: Door | None = None
    knocked: bool = False
    init: InitSeen | None = None
    last_step: str = ""
    stepped: float = 0.0
    begun: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    longest_silence: float = 0.0
    over: float | None = None

    def step(self, text: str) -> None:
        """Keep what the node is about to do, and when it said so."""
        self.last_step, self.stepped = text, time.monotonic()


class Gathered:
    """The records of all agents by node index, and the states of all ranks by rank."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = {node: link for link in links for node in link.nodes}
        self.nodes = {node: _OfNode(node, link.nodes[node]) for node, link in sorted(self._links.items())}
        self.ranks: dict[int, RankState] = {}
        self.parts: list[Measurements] = []
        self.leftovers: list[Leftover] = []
        self.dead_examiners: list[JobEnd] = []
        self.stopping = False
        self._job: set[int] = set()
        self._begun = 0.0
        self._world = 0
        self.port_taken = False
        self.knocks: list[Knock] = []
        self.dialled: list[Dialled] = []
        self.slow_logins: list[SlowLogin] = []
        self._examined: set[int] = set()
        self._init_answers: set[int] = set()
        self._only: Collection[str] | None = None
        self._went_wrong: tuple[dict[int, RankState], list[JobEnd]] | None = None
        self._kinds = Kinds()

    def take(self, event: AgentRecord | Closed | Looked) -> None:
        """Put a record, the end of a channel or a second look into its node."""
        node = self.nodes[event.node]
        if isinstance(event, Looked):
            node.look = event.look
            return
        if isinstance(event, Closed):
            node.closed, node.over = event, time.monotonic()
            return
        now = time.monotonic()
        if event.node in self._job and node.end is None:
            node.longest_silence = max(node.longest_silence, now - max(node.heard, self._begun))
        node.heard = now
        match event.record:
            case wire.Hello() as hello:
                node.hello = hello
                node.step("its agent has started")
            case wire.Facts(node=facts):
                node.facts = self._kinds.shared(replace(facts, name=node.name))
            case wire.Listening() | wire.Reach() | wire.Knocked() as seen:
                self._take_reach(node, seen)
            case wire.InitTried(seen=tried):
                node.init = replace(tried, node=node.name)
                self._init_answers.add(event.node)
            case wire.StepNotice(text=text, rank=None):
                node.step(text)
            case wire.StepNotice(text=text, rank=rank) if rank in self.ranks:
                self.ranks[rank] = replace(self.ranks[rank], last_step=text)
            case wire.RankReport(state=state):
                self._take_rank(state)
            case wire.RankResult(part=part):
                self.parts.append(part if self._only is None else _only(part, self._only))
            case wire.JobEnded() as ended:
                self._take_end(node, ended)

    def _take_end(self, node: _OfNode, ended: wire.JobEnded) -> None:
        """How a node's torchrun or examiner ended. An examiner without status and word had used its time up."""
        node.end = ended.end
        self.port_taken = self.port_taken or ended.port_taken
        self.leftovers += ended.leftovers
        if node.index in self._examined and (ended.end.exit or ended.end.detail):
            self.dead_examiners.append(ended.end)

    def _take_reach(self, node: _OfNode, seen: wire.Listening | wire.Reach | wire.Knocked) -> None:
        if isinstance(seen, wire.Listening):
            node.listening = seen
            node.door = seen.door or node.door
        elif isinstance(seen, wire.Reach):
            node.reach = seen.reach
        else:
            node.knocked = True
            self.knocks += [replace(knock, by=node.name) for knock in seen.found]

    def _take_rank(self, state: RankState) -> None:
        """The first rank that was seen dead or stopped is marked: what others say later is a consequence."""
        before = self.ranks.get(state.rank)
        if self.stopping:  # we end them ourselves now: what they say of it is no news
            known = before or state
            nothing = RankState(rank=state.rank, node=state.node)
            kept = known if before else nothing
            state = replace(
                state,
                error=kept.error,
                defect=kept.defect,
                users=kept.users,
                at=kept.at,
                trace=kept.trace,
                stack=kept.stack,
                stuck=kept.stuck,
                proc_state=known.proc_state,
            )
        state = replace(
            state,
            last_step=state.last_step or (before.last_step if before else ""),
            error=state.error or (before.error if before else ""),
            defect=state.defect or (before.defect if before else ""),
            users=state.users or bool(before and before.users),
            at=state.at or (before.at if before else ""),
            trace=state.trace or (before.trace if before else ""),
            stack=state.stack or (before.stack if before else []),
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
        """Names of the nodes that have not told their facts and whose channel is open."""
        return [node.name for node in self.nodes.values() if node.facts is None and node.closed is None]

    @property
    def unheard(self) -> list[int]:
        """Nodes of which nothing was heard, not even that they cannot be reached."""
        return [n.index for n in self.nodes.values() if n.hello is None and n.facts is None and n.closed is None]

    @property
    def doubtful(self) -> list[int]:
        """Nodes without facts, and those that are one machine; then one that is neither, to compare with."""
        machines = Counter(_machine(node.facts) for node in self.nodes.values() if node.facts)
        asked = [n.index for n in self.nodes.values() if n.facts is None or machines[_machine(n.facts)] > 1]
        sound = sorted(self.nodes.keys() - asked)
        return [*sound[:1], *asked] if asked else []

    @property
    def doors(self) -> list[Door]:
        """The listeners that nodes have opened, for the other nodes to try."""
        return [n.listening.door for n in self.nodes.values() if n.listening and n.listening.door]

    def begin_reach(self) -> None:
        """Nodes are asked what they see of each other; if they were asked before a job, that is kept apart."""
        for node in self.nodes.values():
            node.reach_before = node.reach_before or node.reach
            node.listening = node.reach = None

    def have_answered(self, asked: Iterable[int]) -> bool:
        """Every node that was asked to open a door has done so, or has said why not, or is gone."""
        return all(self.nodes[node].listening or self.nodes[node].closed is not None for node in asked)

    def have_reached(self, count: int) -> bool:
        """So many nodes have said what they saw of the others; those that are gone never will."""
        gone = sum(
            n.listening is not None and n.reach is None and n.closed is not None for n in self.nodes.values()
        )
        return sum(node.reach is not None for node in self.nodes.values()) + gone >= count

    def forget_init(self) -> None:
        """The init method's place is tried anew: what was seen of another one is no more."""
        for node in self.nodes.values():
            node.init = None

    def await_init(self) -> None:
        """Nodes are asked what they see of the init method's place; that they answered before counts no more."""
        self._init_answers = set()

    def have_tried_init(self, asked: Iterable[int]) -> bool:
        """Whether every node that was asked has said what it sees there, or is gone."""
        return all(node in self._init_answers or self.nodes[node].closed is not None for node in asked)

    def begin_job(self, nodes: Iterable[int], only: Collection[str] | None = None, world: int = 0) -> None:
        """What is told of ranks from now on is of another job, on these nodes; what was measured stays.

        world: its ranks, where it may be ended as soon as they are done. only: kinds of measurements that are
        kept of it; None: all.
        Of several jobs the first one that went wrong is told, else the last.
        """
        self._keep_what_went_wrong()
        self._begun, self.port_taken = time.monotonic(), False
        self.ranks, self.stopping, self._job, self._only = {}, False, set(nodes), only
        self._examined = set()
        self._world = world
        for node in self._taking_part:
            node.end = None

    def forget_job(self) -> None:
        """The job never began, for a port that we chose was taken: it begins on another one."""
        for node in self._taking_part:
            node.end = None
        self.ranks, self._job = {}, set()

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
        """Names of the nodes whose examiner has not ended and whose channel is open."""
        asked = [self.nodes[index] for index in sorted(self._examined)]
        return [node.name for node in asked if node.end is None and node.closed is None]

    @property
    def job_over(self) -> bool:
        """Whether every node of the job has said how its torchrun ended."""
        return all(node.end is not None for node in self._taking_part)

    @property
    def job_done(self) -> bool:
        """Whether every rank of the job has told all and left the world."""
        return len(self.ranks) == self._world > 0 and all(rank.phase == "done" for rank in self.ranks.values())

    def job_over_but(self, silent: list[str]) -> bool:
        """Whether every node of the job but these has said how its torchrun ended."""
        return all(node.end is not None or node.name in silent for node in self._taking_part)

    @property
    def ended_early(self) -> bool:
        """Whether the torchrun of some node has ended with a failure."""
        return any(node.end is not None and node.end.exit != 0 for node in self._taking_part)

    def silent_in_job(self, seconds: float) -> list[str]:
        """Nodes whose agent ended before its job did, or has not even beaten for so long."""
        late = time.monotonic() - seconds
        return [n.name for n in self._taking_part if n.end is None and (n.closed is not None or n.heard < late)]

    def to_look_at(self, waited_for: Collection[str], seconds: float) -> list[int]:
        """Nodes that are waited for and say nothing for so long, or whose agent ended without a word."""
        late, waited_for = time.monotonic() - seconds, set(waited_for)
        return [
            n.index
            for n in self.nodes.values()
            if n.name in waited_for
            and (n.heard < late if n.closed is None else n.hello is not None and not n.closed.detail)
        ]

    def pid_of(self, node: int) -> int | None:
        """The pid of a node's agent on that node; None before it said hello."""
        hello = self.nodes[node].hello
        return hello.pid if hello else None

    @property
    def lost_ranks(self) -> list[RankState]:
        """The states of the ranks that are dead or stopped and not done."""
        return [rank for rank in self.ranks.values() if lost(rank) or rank.error]

    def stands_at_start(self, seconds: float) -> bool:
        """All ranks are there, and none has moved for so long while the world forms or in its first collective."""
        ranks = self.ranks.values()
        return len(ranks) == self._world > 0 and all(
            rank.since_s >= seconds and rank.last_step.startswith(_AT_START) for rank in ranks
        )

    @property
    def deadlocked(self) -> bool:
        """Whether each rank that is not done waits for another one, so that none will ever move."""
        left = [rank for rank in self.ranks.values() if rank.phase != "done"]
        return bool(left) and all(rank.stuck for rank in left)

    def run(self, *, started_job: bool, stopped_by: str) -> Run:
        """The fact `Run`: stages, ranks, silent nodes and how torchrun ended on each."""
        now = self.ranks, [node.end for node in self.nodes.values() if node.end is not None]
        ranks, ends = self._went_wrong or now
        return Run(
            ranks=[ranks[rank] for rank in sorted(ranks)],
            silent=[self._silence(n) for n in self.nodes.values() if self._is_silent(n, stopped_by)],
            ends=ends,
            examiners=self.dead_examiners,
            leftovers=self.leftovers,
            dialled=self.dialled,
            slow_logins=self.slow_logins,
            started_job=started_job,
            stopped_by=stopped_by,  # type: ignore[arg-type]
        )

    def _is_silent(self, node: _OfNode, stopped_by: str) -> bool:
        """It never told its facts, or it fell silent since.

        No agent leaves before it is told to, and that is after the last look at what was gathered: a channel that
        closed broke. After a signal agents may have been ended with us.
        """
        if node.facts is None or stopped_by == "signal":
            return node.facts is None
        return node.closed is not None or (node.end is None and node in self._taking_part)

    def _silence(self, node: _OfNode) -> Silence:
        now = time.monotonic()
        seen = node.closed or self._links[node.index].describe(node.index)
        return Silence(
            node=node.name,
            last_step=node.last_step,
            since_s=round(now - node.heard, 1),
            step_s=round(now - node.stepped, 1) if node.last_step else None,
            waited_s=round((node.over or now) - node.begun, 1),
            detail=seen.detail,
            printed=seen.printed,
            via=seen.via,
            exit=seen.exit,
            mute=node.closed is not None and seen.via == "ssh" and seen.exit is None,
            start=[*seen.start] if node.hello is None else [],
            look=node.look,
            knocks=[knock for knock in self.knocks if node.door and knock.address == node.door.address],
        )

    def measurements(self) -> Measurements:
        """All parts that ranks and agents have handed over, merged into one."""
        nodes = self.nodes.values()
        before = [reach for node in nodes if (reach := node.reach_before or node.reach) is not None]
        after = [node.reach for node in nodes if node.reach is not None and node.reach_before is not None]
        refused = [replace(n.listening.problem, node=n.name) for n in nodes if n.listening and n.listening.problem]
        tried = [node.init for node in nodes if node.init is not None]
        first = Measurements(reach=before, reach_after=after, no_doors=refused, init=tried)
        whole = together([*self.parts, first])
        silent = {node.name: round(node.longest_silence, 3) for node in nodes}
        heard = [
            replace(interruption, silent_s=silent.get(interruption.node, 0.0))
            for interruption in whole.interruptions
        ]
        return replace(whole, interruptions=heard)


def _machine(node: Node) -> object:
    """By what a machine is known; each node for itself where that was not read."""
    identity = at(node, "host.hostname"), at(node, "host.boot_id")
    return node.name if any(isinstance(part, Unread) for part in identity) else identity


def _only(part: Measurements, names: Collection[str]) -> Measurements:
    return Measurements(**{name: getattr(part, name) for name in names})


def lost(rank: RankState) -> bool:
    """Whether a rank was seen dead or stopped before it was done."""
    return rank.phase != "done" and rank.proc_state in _DEAD
