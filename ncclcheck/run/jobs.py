"""One torchrun job over all nodes: whether it may start, what each node is told, and how it went."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Collection, Mapping

import msgspec

from ncclcheck.base import wire
from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Cluster, Node, at, replace, variables
from ncclcheck.probes.job.context import JobPlan
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Stage
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.failures import lost
from ncclcheck.reports.subjects.links import since
from ncclcheck.run.place import MeetingPlace
from ncclcheck.run.plan import bench_plan
from ncclcheck.run.plan.bench_plan import JobOptions, JobShape
from ncclcheck.run.stages import Stages, report_time

_PORTS = 3  # times that a job begins anew on another port: one may be taken by chance; chosen
_LEAST_JOB_S = 5.0  # s left of the deadline below which no job is started, since it would not get through; chosen


class TorchJob:
    """The jobs of one run of a command; `wishes` is what the user said of them.

    without: nodes that take no part, by the launcher's number. settings: variables that are set for all ranks, or
    taken away (None). place: that of the jobs before it, in the same run.
    """

    def __init__(
        self,
        stages: Stages,
        wishes: JobOptions,
        *,
        without: Collection[int] = (),
        settings: Mapping[str, str | None] | None = None,
        place: MeetingPlace | None = None,
    ) -> None:
        self.stages, self.session = stages, stages.session
        ranks = wishes.nproc_per_node or stages.choice.ranks_per_node
        self.wishes = dataclasses.replace(wishes, nproc_per_node=ranks)
        self.without, self.settings = frozenset(without), dict(settings or {})
        self.shape: JobShape | None = None
        self.run_id = f"ncclcheck-{os.getpid()}-{time.time_ns()}"
        self.place = place or MeetingPlace(stages, wishes.begin)

    def prepare(self, name: str) -> JobShape | None:
        """The job's shape; None where it may not start, which the stage of that name explains.

        Raises UsageError for a shape that cannot fit.
        """
        self.place.try_it(self.members)
        if (refusal := self._refusal(name)) is not None:
            why, stage = refusal
            self.session.stopped_by = self.session.stopped_by or why
            self.stages.done.append(stage)
            return None
        self.shape = bench_plan.shape(
            self.wishes, [*self.members.values()], simulated=self.stages.choice.simulated
        )
        return self.shape

    def run(
        self,
        name: str,
        parts: JobPlan,
        most: float = math.inf,
        only: Collection[str] | None = None,
        begins_s: float = math.inf,
    ) -> bool:
        """Run one job to its end, once it is prepared, within so many seconds; whether every rank finished.

        only: kinds of measurements that are kept of it; None: all. begins_s: see Session.job.
        Raises Interrupted.
        """
        assert self.shape is not None
        with self.stages.stage(name, f"{self.wishes.begin.start} with {self.shape.backend}") as outcome:
            if why := self.once(parts, most, only, begins_s):
                outcome.state, outcome.reason = State.FAIL, why
        if outcome.state is State.FAIL:
            self.stages.knock()
        if self._is_worth_a_look(failed=outcome.state is State.FAIL, all_kinds=only is None):
            self.stages.reach_again()
        return outcome.state is State.OK

    def _is_worth_a_look(self, *, failed: bool, all_kinds: bool) -> bool:
        """Whether the ways are tried once more: after a failure, and where a job shows that they became worse."""
        return not self._cause_was_seen() if failed else all_kinds and since.doubtful(self.cluster())

    def _cause_was_seen(self) -> bool:
        """Whether a rank was stopped, or a signal ended it, which no network does."""
        run = self.session.gathered.run(started_job=True, stopped_by="")
        return bool(lost.killed(run) or lost.ended(lost.late(run)))

    def once(
        self, parts: JobPlan, most: float, only: Collection[str] | None = None, begins_s: float = math.inf
    ) -> str:
        """The same without a stage of its own; why not every rank finished, or nothing. Raises Interrupted."""
        seconds = min(most, self.seconds)
        # A training run may kill a rank when all is told, and has workers of its own: that job ends by itself.
        world = self.ranks if parts.training is None else 0
        before = self.session.stopped_by
        stopped_by = self.session.job(self._orders(parts, seconds), seconds, only, world, begins_s)
        for _ in range(_PORTS):
            if not (self.session.gathered.port_taken and self.place.move()):
                break
            self.session.gathered.forget_job()
            self.session.stopped_by, seconds = before, min(most, self.seconds)
            stopped_by = self.session.job(self._orders(parts, seconds), seconds, only, world, begins_s)
        return stopped_by or ("" if self._complete() else "not every rank finished")

    @property
    def members(self) -> dict[int, Node]:
        """The nodes that take part, by the launcher's number."""
        return {index: node for index, node in self.stages.indexed() if index not in self.without}

    def _refusal(self, name: str) -> tuple[str, Stage] | None:
        """Why no job is started, and the stage that says so."""
        left_out = {name for index, name in enumerate(self.stages.choice.names) if index in self.without}
        if silent := [silence for silence in self.stages.cluster().run.silent if silence.node not in left_out]:
            if self.session.stopped_by == "deadline":
                reason = "the deadline came before the facts of all nodes"
                return "deadline", Stage(name=name, state=State.UNKNOWN, seconds=0.0, reason=reason)
            state, reason = State.SKIPPED, f"{', '.join(s.node for s in silent)} did not answer"
        elif not self.members:
            state, reason = State.SKIPPED, "no node is left"
        elif not self.stages.options.force and (failed := self._failed_ground()):
            state, reason = State.SKIPPED, f"{', '.join(failed)} failed"
        elif self.seconds < _LEAST_JOB_S:
            reason = f"{self.stages.deadline.left:.0f} s before the deadline are too few for a job"
            return "deadline", Stage(name=name, state=State.UNKNOWN, seconds=0.0, reason=reason)
        else:
            return None
        return "refused", Stage(name=name, state=state, seconds=0.0, reason=reason)

    def _failed_ground(self) -> list[str]:
        """Only the rules that matter here are judged, with the ground that they themselves stand on."""
        cluster = self.cluster()
        job = replace(cluster.job, ranks=self._planned_ranks())
        members = [*self.members.values()]
        init = [seen for seen in cluster.measurements.init if seen.node in {node.name for node in members}]
        cluster = replace(cluster, job=job, nodes=members, measurements=replace(cluster.measurements, init=init))
        gates = {rule.code: rule for rule in all_rules() if rule.gates_job}
        needed = {code for rule in gates.values() if rule.gates_job == "by any failure" for code in rule.ground}
        verdicts = judge(cluster, [rule for rule in all_rules() if rule.code in gates or rule.code in needed])
        failed = [v for v in verdicts if v.state is State.FAIL and v.code in gates]
        return [
            v.code
            for v in failed
            if gates[v.code].gates_job == "by any failure" or any(finding.blocks_job for finding in v.findings)
        ]

    def _planned_ranks(self) -> int:
        """The world size that the job would have; 0 where its shape cannot fit."""
        try:
            shape = bench_plan.shape(self.wishes, [*self.members.values()], simulated=self.stages.choice.simulated)
        except UsageError:
            return 0
        return shape.ranks_per_node * len(self.members)

    @property
    def seconds(self) -> float:
        """What is left for the job, when closing, a second look at the ways, and the report have their share."""
        kept = report_time(self.stages.deadline) + self.stages.again_time
        return self.stages.deadline.left - kept - 2.0

    @property
    def ranks(self) -> int:
        """The planned world size; 0 before there is a plan."""
        return self.shape.ranks_per_node * len(self.members) if self.shape else 0

    def _orders(self, parts: JobPlan, seconds: float) -> dict[int, wire.StartJob]:
        """One order a node. All meet where the first of them opens the store."""
        assert self.shape is not None
        addresses, where, url = (
            self.place.addresses(),
            self.place.store(min(self.members)),
            self.place.of_next_job(),
        )
        payload = msgspec.Raw(msgspec.json.encode(parts))
        return {
            index: wire.StartJob(
                run_id=self.run_id,
                endpoint=where,
                is_host=place == 0,
                place=place,
                local_addr=addresses[index],
                nodes=len(self.members),
                ranks_per_node=self.shape.ranks_per_node,
                backend=self.shape.backend,
                plan=payload,
                env=self._environment(index, node),
                unset=[name for name, value in self.settings.items() if value is None],
                seconds=seconds,
                start=self.wishes.begin.start,
                init_method=url,
            )
            for place, (index, node) in enumerate(self.members.items())
        }

    def _environment(self, index: int, node: Node) -> dict[str, str]:
        """What we add to the user's environment, and only where the user said nothing."""
        assert self.shape is not None
        env = variables(node)
        added = {} if "OMP_NUM_THREADS" in env else {"OMP_NUM_THREADS": "1"}
        if self.shape.backend == "gloo" and self.stages.choice.launcher == "local":
            added |= {} if "GLOO_SOCKET_IFNAME" in env else {"GLOO_SOCKET_IFNAME": "lo"}
        added |= {name: value for name, value in self.settings.items() if value is not None}
        if self.shape.backend == "nccl" and self.stages.choice.simulated:
            mine = bench_plan.gpus_of(index, self.shape, _visible(env, at(node, "gpus.usable")))
            added |= {"NCCL_HOSTID": f"{self.run_id}-{index}", "CUDA_VISIBLE_DEVICES": ",".join(mine)}
        return added

    def announce(self, about: float) -> None:
        """Say beforehand what is going to run, and that it takes about so many seconds."""
        assert self.shape is not None
        note = f"; {self.shape.note}" if self.shape.note else ""
        within = self.stages.deadline.left
        across = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}, {self.shape.ranks_per_node} on each node"
        self.stages.progress.say(
            f"{across}, {self.shape.backend}{note}; takes about {about:.0f} s, ends within {within:.0f} s"
        )

    def _complete(self) -> bool:
        ranks = self.session.gathered.ranks
        return len(ranks) == self.ranks and all(rank.phase == "done" for rank in ranks.values())

    def cluster(self) -> Cluster:
        """The cluster of the facts, stages and measurements that have come so far."""
        backend = self.shape.backend if self.shape else ""
        job = replace(self.stages.job(), backend=backend, backend_asked=self.wishes.backend, ranks=self.ranks)
        job = replace(job, start=self.wishes.begin.start, init_method=self.place.url)
        if self.shape:
            job = replace(job, injected=[*self.wishes.inject])
        return self.stages.cluster(job)


def _visible(env: dict[str, str], usable: int) -> list[str]:
    given = env.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(index) for index in range(usable)]
