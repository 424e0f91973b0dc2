"""`ncclcheck bench`: facts first, then one torchrun job over all nodes, then the verdict."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

import msgspec

from ncclcheck import endpoint, env, finish, plan, saved, wire
from ncclcheck.clock import Deadline
from ncclcheck.errors import Interrupted, UsageError
from ncclcheck.finish import Story
from ncclcheck.launch import choose
from ncclcheck.launch.agents import Events
from ncclcheck.options import Options
from ncclcheck.plan import BenchOptions, Shape
from ncclcheck.probes.facts import Cluster, Job, Node, at, replace, variables
from ncclcheck.progress import Progress
from ncclcheck.reports.findings import State
from ncclcheck.reports.jsondoc import Stage
from ncclcheck.reports.judge import judge
from ncclcheck.session import Session, signals_as_events

_FACTS_S = 25.0
_LEAST_JOB_S = 5.0
# What must hold before a job is started; a rule of these that fails stops it (`--force` overrides).
GROUND = ("GPU001", "NET012", "VER001")


@dataclass
class _Bench:
    """One run of `bench`, stage by stage."""

    options: Options
    bench: BenchOptions
    session: Session
    choice: choose.Choice
    deadline: Deadline
    progress: Progress
    stages: list[Stage] = field(default_factory=list)
    shape: Shape | None = None
    ranks: int = 0

    def read_facts(self) -> None:
        """Stage one."""
        begun = time.monotonic()
        self.progress.stage("reading the facts of every node")
        self.session.facts(self.deadline.sooner(_FACTS_S))
        missing = self.session.gathered.waiting_for_facts
        state = State.UNKNOWN if missing else State.OK
        self.stages.append(Stage(name="env", state=state, seconds=round(time.monotonic() - begun, 3)))

    def measure(self) -> None:
        """Stage two, if its ground holds. Raises UsageError for a shape that cannot fit, Interrupted."""
        if (reason := self._refusal()) is not None:
            self.session.stopped_by = "refused"
            self.stages.append(Stage(name="bench", state=State.SKIPPED, seconds=0.0, reason=reason))
            return
        if self._job_seconds() < _LEAST_JOB_S:
            self.session.stopped_by = "deadline"
            reason = f"{self.deadline.left:.0f} s before the deadline are too few for a job"
            self.stages.append(Stage(name="bench", state=State.UNKNOWN, seconds=0.0, reason=reason))
            return
        begun = time.monotonic()
        facts = self.session.gathered.answered
        self.shape = plan.shape(self.bench, facts, simulated=self.choice.simulated)
        self.ranks = self.shape.ranks_per_node * len(self.choice.names)
        self.progress.say(self._announcement())
        self.progress.stage(f"torchrun: {self.ranks} ranks, {self.shape.backend}")
        try:
            self._run_job(facts)
        finally:
            done = not self.session.stopped_by and self._complete()
            seconds = round(time.monotonic() - begun, 3)
            self.stages.append(Stage(name="bench", state=State.OK if done else State.FAIL, seconds=seconds))

    def _refusal(self) -> str | None:
        silent = self.session.gathered.run(started_job=False, stopped_by="").silent
        if silent:
            return f"{', '.join(s.node for s in silent)} did not answer"
        failed = [v.code for v in judge(self.cluster()) if v.code in GROUND and v.state is State.FAIL]
        return None if not failed or self.options.force else f"{', '.join(failed)} failed"

    def _run_job(self, facts: list[Node]) -> None:
        """One job on all nodes. They meet on a port of this machine that is free at this moment."""
        where = self.options.rdzv_endpoint or f"127.0.0.1:{endpoint.free_port('127.0.0.1')}"
        seconds = self._job_seconds()
        self.session.job({i: self._order(i, node, where, seconds) for i, node in enumerate(facts)}, seconds)

    def _job_seconds(self) -> float:
        """What is left for the job, when closing and the report have their share."""
        return self.deadline.left - env.report_time(self.deadline) - 2.0

    def _order(self, index: int, node: Node, where: str, seconds: float) -> wire.Job:
        assert self.shape is not None
        rows = plan.collectives(
            self.bench, self.shape, self.session.gathered.answered, simulated=self.choice.simulated
        )
        return wire.Job(
            run_id=self._run_id,
            endpoint=where,
            is_host=index == 0,
            local_addr=where.rpartition(":")[0],
            nodes=len(self.choice.names),
            ranks_per_node=self.shape.ranks_per_node,
            backend=self.shape.backend,
            plan=msgspec.Raw(msgspec.json.encode(rows)),
            env=self._job_environment(index, node),
            seconds=seconds,
        )

    @property
    def _run_id(self) -> str:
        return f"ncclcheck-{os.getpid()}"

    def _job_environment(self, index: int, node: Node) -> dict[str, str]:
        """What we add to the user's environment, and only where the user said nothing."""
        assert self.shape is not None
        env_of_node = variables(node)
        added = {} if "OMP_NUM_THREADS" in env_of_node else {"OMP_NUM_THREADS": "1"}
        if self.shape.backend == "gloo":
            added |= {} if "GLOO_SOCKET_IFNAME" in env_of_node else {"GLOO_SOCKET_IFNAME": "lo"}
        elif self.choice.simulated:
            first = index * self.shape.ranks_per_node
            mine = _visible(env_of_node, at(node, "gpus.usable"))[first : first + self.shape.ranks_per_node]
            added |= {"NCCL_HOSTID": f"{self._run_id}-{index}", "CUDA_VISIBLE_DEVICES": ",".join(mine)}
        return added

    def _announcement(self) -> str:
        assert self.shape is not None
        note = f"; {self.shape.note}" if self.shape.note else ""
        about = plan.stated_seconds(self.bench)
        across = f"{self.ranks} ranks, {self.shape.ranks_per_node} on each node"
        return f"{across}, {self.shape.backend}{note}; takes about {about:.0f} s"

    def _complete(self) -> bool:
        ranks = self.session.gathered.ranks
        return len(ranks) == self.ranks and all(rank.phase == "done" for rank in ranks.values())

    def cluster(self) -> Cluster:
        """Everything that is known by now."""
        gathered = self.session.gathered
        job: Job = env.job_fact(gathered, self.choice)
        return Cluster(
            command="bench",
            nodes=gathered.answered,
            job=replace(
                job,
                backend=self.shape.backend if self.shape else "",
                backend_asked=self.bench.backend,
                ranks=self.ranks,
            ),
            run=gathered.run(started_job=self.session.started_job, stopped_by=self.session.stopped_by),
            measurements=gathered.measurements(),
            policy=self.options.policy,
        )


def _visible(env_of_node: dict[str, str], usable: int) -> list[str]:
    given = env_of_node.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(index) for index in range(usable)]


def run(options: Options, bench: BenchOptions) -> int:
    """The whole of `bench`; the exit code. Raises UsageError."""
    finish.check_outputs(options)
    if options.from_file is not None:
        return saved.judge_again(options)
    begun, started = time.monotonic(), finish.now()
    choice = choose.choose(options, os.environ)
    deadline = Deadline(options.deadline or plan.default_deadline("bench", bench))
    progress = Progress(quiet=options.quiet)
    events = Events()
    caught: int | None = None
    with signals_as_events(events):
        session = env.start(options, choice, events, deadline, progress)
        this = _Bench(options, bench, session, choice, deadline, progress)
        try:
            this.read_facts()
            this.measure()
        except Interrupted as interrupted:
            caught = interrupted.number
            session.stop_job()
        except (UsageError, OSError) as error:
            session.close()
            raise UsageError(str(error)) from None
        cluster = this.cluster()
        session.close()
        progress.clear()
    return finish.finish(cluster, options, Story(started, time.monotonic() - begun, this.stages, caught))
