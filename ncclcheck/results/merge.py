"""Several saved results, each of other nodes or each node's own of one run, as the result of one cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Cluster, Job, Run, Silence
from ncclcheck.reports.judgement.findings import worst
from ncclcheck.reports.judgement.jsondoc import Saved, Stage
from ncclcheck.results import merge_jobs

Named = tuple[str, Saved]


def merged(results: Sequence[Named]) -> Saved:
    """All nodes in the order of the files. Raises UsageError with the files that do not go together."""
    results = _without_copies(results)
    _check(results)
    every = [saved for _, saved in results]
    clusters = [saved.cluster for saved in every]
    if len(every) == 1:
        return every[0]
    cluster = Cluster(
        command=clusters[0].command,
        nodes=[node for cluster in clusters for node in cluster.nodes],
        job=_job([cluster.job for cluster in clusters]),
        run=_run(clusters),
        measurements=merge_jobs.measured(clusters),
        policy=clusters[0].policy,
    )
    return Saved(
        cluster=cluster,
        started=min(saved.started for saved in every),
        seconds=max(saved.seconds for saved in every),
        stages=_stages(every),
    )


def _without_copies(results: Sequence[Named]) -> list[Named]:
    """In a join, `--json %n` gives every node a copy of one document."""
    kept: list[Named] = []
    for path, saved in results:
        if not any(saved == other for _, other in kept):
            kept.append((path, saved))
    return kept


def _check(results: Sequence[Named]) -> None:
    first, command = results[0][0], results[0][1].cluster.command
    paths: dict[str, str] = {}
    for path, saved in results:
        cluster = saved.cluster
        if cluster.command != command:
            raise UsageError(
                f"report: {first} is a result of {command}, {path} of {cluster.command}: merge alike ones"
            )
        missing = [name for name in cluster.job.missing if not name.startswith(_NUMBERED)]
        for name in [*(node.name for node in cluster.nodes), *missing]:
            if name in paths:
                raise UsageError(f"report: node {name} is in {paths[name]} and in {path}; give one of them")
            paths[name] = path
    merge_jobs.check([(path, saved.cluster) for path, saved in results])


_NUMBERED = "node rank "  # what a join calls a node that it never met


def _job(jobs: list[Job]) -> Job:
    """What was asked for altogether; of what differs, nothing is said."""
    launchers, backends = {job.launcher for job in jobs}, {job.backend for job in jobs if job.backend}
    met = {f"{_NUMBERED}{job.meeting.node_rank}" for job in jobs if job.meeting}
    asked = {
        job.meeting.endpoint if job.meeting else str(place): job.nodes_asked for place, job in enumerate(jobs)
    }
    return Job(
        launcher=jobs[0].launcher if len(launchers) == 1 else "local",
        chosen_by=f"{len(jobs)} results merged",
        simulated=any(job.simulated for job in jobs),
        backend=backends.pop() if len(backends) == 1 else "",
        nodes_asked=sum(asked.values()),
        nodes_answered=sum(job.nodes_answered for job in jobs),
        ranks=sum(job.ranks for job in jobs),
        jobs=max(1, sum(job.jobs for job in jobs if job.ranks)),
        missing=[*dict.fromkeys(name for job in jobs for name in job.missing if name not in met)],
        injected=[fault for job in jobs for fault in job.injected],
    )


def _run(clusters: Sequence[Cluster]) -> Run:
    runs = [cluster.run for cluster in clusters]
    met = {f"{_NUMBERED}{cluster.job.meeting.node_rank}" for cluster in clusters if cluster.job.meeting}
    silent = [silence for run in runs for silence in run.silent if silence.node not in met]
    return Run(
        ranks=merge_jobs.ranks(clusters),
        silent=[*silent, *(silence for cluster in clusters for silence in _apart(cluster))],
        ends=[end for run in runs for end in run.ends],
        examiners=[examiner for run in runs for examiner in run.examiners],
        leftovers=[leftover for run in runs for leftover in run.leftovers],
        dialled=[dialled for run in runs for dialled in run.dialled],
        started_job=any(run.started_job for run in runs),
        stopped_by=next((run.stopped_by for run in runs if run.stopped_by), ""),
    )


def _apart(cluster: Cluster) -> Iterator[Silence]:
    """A node that never reached node rank 0 took no part, and its own result says why."""
    meeting = cluster.job.meeting
    if meeting is not None and meeting.node_rank != 0:
        detail = f"node rank 0 was not reached at {meeting.endpoint}: {meeting.detail}"
        for node in cluster.nodes:
            step = f"it came as node rank {meeting.node_rank}"
            yield Silence(node=node.name, last_step=step, since_s=meeting.seconds, detail=detail)


def _stages(results: Sequence[Saved]) -> list[Stage]:
    """By name: the worst state, the longest time, the first reason."""
    stages: dict[str, list[Stage]] = {}
    for stage in (stage for saved in results for stage in saved.stages):
        stages.setdefault(stage.name, []).append(stage)
    return [
        Stage(
            name=name,
            state=worst([stage.state for stage in alike]),
            seconds=max(stage.seconds for stage in alike),
            reason=next((stage.reason for stage in alike if stage.reason), None),
        )
        for name, alike in stages.items()
    ]
