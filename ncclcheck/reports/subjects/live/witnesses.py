"""A running job with all that was seen of it beside /proc: RAS, what its ranks wrote, GPUs, the network."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ncclcheck.probes.facts import Cluster, JobRecord, Live, LiveGpu, LiveProcess, Ras
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.rule import Body, rule
from ncclcheck.reports.subjects.live.nccl_ras import advances, standing
from ncclcheck.reports.subjects.live.running import Judged, judged_jobs
from ncclcheck.reports.subjects.logs.flight.state import state
from ncclcheck.reports.subjects.logs.flight.waits import Waits, waits

# What /proc shows of a job that goes on, begins or has ended: nobody is accused by what else was seen of it.
_GOES_ON = ("advances", "works", "alone", "ended", "starting")
# Nothing of it can be seen to stand still: between GPUs of a node there is no connection, and waiting burns CPU.
_UNSEEN = ("dark", "busy", "asleep", "unclear")
# Seconds for which a call has stood, from which it is no long step of the others: HNG005 looks as long.
STANDS_S = 6.0


class SeenJob(NamedTuple):
    """One job. hosts: those on which it runs; record, ras: None where there is none."""

    judged: Judged
    hosts: list[Live]
    ras: Ras | None
    record: JobRecord | None

    @property
    def key(self) -> tuple[str, str]:
        """What its ranks have in common: address and scope."""
        process = self.judged.job.ranks[0]
        return process.job, process.scope

    @property
    def stands(self) -> bool:
        """Whether it is seen not to advance: from outside, or by its own record of a call that lasts."""
        differs = self.ras is not None and self.ras.apart_s >= STANDS_S and bool(standing(self.ras))
        return self.judged.kind not in _UNSEEN or self.waited_s >= STANDS_S or differs

    @property
    def waited_s(self) -> float:
        """For how long the oldest unfinished call had stood when its rank's record was written; 0 without one."""
        job = self.waits
        if job is None or self.record is None:
            return 0.0
        ages = [
            (self.record.written_ns.get(str(rank), 0) - own.at_ns) / 1e9 for rank, (_, own) in job.standing.items()
        ]
        return max(0.0, max(ages, default=0.0))

    @property
    def waits(self) -> Waits | None:
        """Who waits for whom, by Flight Recorder; None without dumps."""
        if self.record is None or self.record.flight is None or not self.record.flight.dumps:
            return None
        return waits(state(self.record.flight))

    def gpus(self) -> list[tuple[LiveProcess, LiveGpu]]:
        """Each rank with the GPU that it alone computes on."""
        pairs = []
        ranks: dict[str, list[LiveProcess]] = {}
        for rank in self.judged.job.ranks:
            ranks.setdefault(rank.host, []).append(rank)
        for host in self.hosts:
            for gpu in host.gpus:
                own = [process for process in ranks.get(host.host, []) if process.pid in gpu.pids]
                if len(own) == 1:
                    pairs.append((own[0], gpu))
        return sorted(pairs, key=lambda pair: (pair[0].rank, pair[1].index))


@derived
def seen_jobs(cluster: Cluster) -> list[SeenJob]:
    """All jobs. Raises NothingToJudge where no process of one was seen."""
    measurements = cluster.measurements
    made = []
    for judged_job in judged_jobs(cluster):
        names = {rank.host for rank in judged_job.job.ranks}
        key = judged_job.job.ranks[0].job, judged_job.job.ranks[0].scope
        made.append(
            SeenJob(
                judged_job,
                [host for host in measurements.live if host.host in names],
                next((ras for ras in measurements.ras if (ras.job, ras.scope) == key), None),
                next((record for record in measurements.records if (record.job, record.scope) == key), None),
            )
        )
    return made


def witness_rule(
    code: str, title: str, *, worst: State = State.FAIL
) -> Callable[[Callable[[SeenJob], Iterator[Finding]]], Body]:
    """Make a body that wants a job which does not visibly go on a rule; skipped where no job was found."""

    def register(body: Callable[[SeenJob], Iterator[Finding]]) -> Body:
        @functools.wraps(body)
        def wrapper(cluster: Cluster) -> Iterator[Finding]:
            for seen_job in seen_jobs(cluster):
                if seen_job.judged.kind not in _GOES_ON and not (seen_job.ras and advances(seen_job.ras)):
                    yield from body(seen_job)

        return rule(code, title, worst=worst, over="", commands=("hang", "watch"))(wrapper)

    return register
