"""The stages that env and bench share: the facts of all nodes, then what the nodes can reach of each other."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ncclcheck.base import wire
from ncclcheck.base.clock import Deadline
from ncclcheck.base.progress import Progress
from ncclcheck.launch.agents import Events
from ncclcheck.launch.choose import LauncherChoice
from ncclcheck.probes.facts import Cluster, Job, Node, Unread, at, value_or
from ncclcheck.probes.machine import process
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Stage
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.run.plan.options import Options
from ncclcheck.run.session import Session

_FACTS_S = 25.0  # s for the facts of all nodes, with the start of their agents; chosen
_FACTS_OF_A_NODE_S = 0.01  # beside that, for node rank 0's own work: 2.6 ms of CPU (benchmarks/gathering.py)
_USUAL_FACTS_S = 15.0  # a node that is silent for so long is to blame; before that the deadline is
_PLAIN_STEP_S = 12.0  # after the facts; it began before them and mostly ended long ago
_REACH_S = 6.0  # s for connectivity between all nodes, or a third of what is left; chosen
_SILENT_S = 9.0  # as long as before a second look: no sound agent says nothing for so long in a job
_KNOCK_S = 3.0  # SYNs are sent at 0 and 1 s; a host that is there answers at once
_REACH_AGAIN_S = 3.0  # connections are tried for 2.4 s of it: two lost SYNs are sent again meanwhile
_DOORS_AGAIN_S = 3.0  # until all doors are open again; measured: 0.3 s, at load 10 up to 2 s


@dataclass
class Stages:
    """One run: its session, and how its stages went."""

    options: Options
    choice: LauncherChoice
    session: Session
    deadline: Deadline
    progress: Progress
    done: list[Stage] = field(default_factory=list)

    @classmethod
    def start(
        cls, options: Options, choice: LauncherChoice, events: Events, seconds: float, progress: Progress
    ) -> Stages:
        """Start the agents of all nodes, and in a join wait for them; the deadline counts from then."""
        process.adopt_orphans()  # what a killed agent leaves behind comes to us, and ends with us
        links = choice.start(events, progress, *agent_options(options, seconds))
        deadline = Deadline(seconds)
        return cls(options, choice, Session(links, events, deadline, progress), deadline, progress)

    @contextmanager
    def stage(self, name: str, says: str) -> Iterator[_StageOutcome]:
        """Announce a stage, time it, and keep how it went also where it is interrupted."""
        self.progress.stage(says)
        begun, outcome = time.monotonic(), _StageOutcome()
        try:
            yield outcome
        except BaseException:
            outcome.state = State.UNKNOWN
            raise
        finally:
            seconds = round(time.monotonic() - begun, 3)
            self.done.append(Stage(name=name, state=outcome.state, seconds=seconds, reason=outcome.reason))

    def facts(self) -> None:
        """Read the facts of every node. Raises Interrupted."""
        with self.stage("facts", "reading the facts of every node") as outcome:
            limit = self.deadline.left - report_time(self.deadline)
            self.session.facts(min(_FACTS_S + _FACTS_OF_A_NODE_S * len(self.choice.names), limit))
            if self.choice.step is not None:
                self.choice.step.settle(min(_PLAIN_STEP_S, self.deadline.left - report_time(self.deadline)))
            if missing := self.session.gathered.waiting_for_facts:
                outcome.state, outcome.reason = State.UNKNOWN, f"no facts of {', '.join(missing)}"
                self.session.stopped_by = "deadline" if limit < _USUAL_FACTS_S else ""

    def reach(self) -> None:
        """Let real nodes try to reach each other on the network that the job would use. Raises Interrupted."""
        nodes = self.session.gathered.answered
        if len(nodes) < 2 or self.choice.simulated or self.options.sysroot:
            return
        with self.stage("reach", "testing connectivity between all nodes") as outcome:
            if len(self.links()) < 2:
                outcome.state, outcome.reason = State.SKIPPED, "fewer than two nodes have a usable interface"
                return
            self._reach(min(_REACH_S, self.deadline.left / 3))

    def _reach(self, seconds: float) -> None:
        links = self.links()
        names = {known_name(node): links[i].address for i, node in self.indexed() if i in links}
        listen = {index: wire.Listen(address=link.address) for index, link in links.items()}
        self.session.reach(listen, names, seconds, self._told_by_gloo(links))

    def _told_by_gloo(self, links: Mapping[int, lan.LanPlace]) -> dict[int, str]:
        """By node index: the address that gloo would tell, where the job uses it and it is another one.

        A link-local address is none that can be tried without its interface there.
        """
        if not lan.uses_gloo(self.cluster()):
            return {}
        taken = {i: lan.choice_of_gloo(node).bootstrap for i, node in self.indexed() if i in links}
        return {
            i: chosen.address
            for i, chosen in taken.items()
            if chosen and chosen.address != links[i].address and lan.is_routable(chosen.address)
        }

    def knock(self) -> None:
        """After a job in which a node fell silent: whether its host answers the others. Raises Interrupted."""
        silent = self.session.gathered.silent_in_job(_SILENT_S)
        if not silent or not self.reached or self.deadline.left - report_time(self.deadline) < 2 * _KNOCK_S:
            return
        with self.stage("knock", f"trying to reach {', '.join(silent[:4])} from the other nodes"):
            self.session.knock(silent, _KNOCK_S)

    def reach_again(self) -> None:
        """After a job that failed: whether a way that passed before it is closed now. Raises Interrupted."""
        seconds = min(_REACH_AGAIN_S, self.deadline.left - report_time(self.deadline))
        if not self.reached or seconds < 1.0:
            return
        with self.stage("reach again", "testing connectivity between all nodes again"):
            self._reach(seconds)

    @property
    def again_time(self) -> float:
        """Seconds kept for trying the ways once more after a job."""
        return min(_REACH_AGAIN_S + _DOORS_AGAIN_S, self.deadline.seconds / 10) if self.reached else 0.0

    @property
    def reached(self) -> bool:
        """Whether nodes have tried the ways to each other."""
        return any(stage.name == "reach" and stage.state is State.OK for stage in self.done)

    def links(self) -> dict[int, lan.LanPlace]:
        """By node index: the interface and address that the job would use there."""
        cluster = self.cluster()
        links: dict[int, lan.LanPlace] = {}
        for index, node in self.indexed():
            if not isinstance(at(node, "network.interfaces"), Unread):
                link = lan.link(node, lan.choice_of_job(cluster, node))
                links |= {index: link} if link else {}
        return links

    def indexed(self) -> list[tuple[int, Node]]:
        """The nodes that told their facts, by the launcher's number."""
        return [(i, n.facts) for i, n in self.session.gathered.nodes.items() if n.facts is not None]

    def cluster(self, job: Job | None = None) -> Cluster:
        """The cluster of the facts, stages and measurements that have come so far."""
        gathered, session = self.session.gathered, self.session
        return Cluster(
            command=self.options.command,
            nodes=gathered.answered,
            job=job or self.job(),
            run=gathered.run(started_job=session.started_job, stopped_by=session.stopped_by),
            measurements=gathered.measurements(),
            policy=self.options.policy,
        )

    def job(self) -> Job:
        """The fact `Job`: nodes, ranks, backend and settings of what is run."""
        gathered = self.session.gathered
        return Job(
            launcher=self.choice.launcher,
            chosen_by=self.choice.chosen_by,
            simulated=self.choice.simulated,
            nodes_asked=len(self.choice.names),
            nodes_answered=len(gathered.answered),
            meeting=self.choice.lead.fact if self.choice.lead else None,
            step=self.choice.step.fact if self.choice.step else None,
            missing=[s.node for s in gathered.run(started_job=self.session.started_job, stopped_by="").silent],
        )


@dataclass
class _StageOutcome:
    """State and reason of a stage that runs; the body of the `with` changes them."""

    state: State = State.OK
    reason: str | None = None


def agent_options(options: Options, seconds: float) -> list[str]:
    """The agents' command line. Their probes end well before our own deadline."""
    limit = max(1.0, min(20.0, 0.6 * seconds))
    more = ["--probe-seconds", f"{limit:g}"]
    for name, folder in (("--sysroot", options.sysroot), ("--host-root", options.host_root)):
        more += [name, os.path.abspath(folder)] if folder else []
    return more


def report_time(deadline: Deadline) -> float:
    """Seconds kept for closing agents and for the report."""
    return min(5.0, deadline.seconds / 5)


def known_name(node: Node) -> str:
    """The host name of a node, or the launcher's name for it."""
    return str(value_or(at(node, "host.hostname"), node.name))
