"""Several saved results, each of other nodes, as the result of one cluster."""

from __future__ import annotations

from collections.abc import Sequence

from ncclcheck.errors import UsageError
from ncclcheck.probes.facts import Cluster, Job, Run, together
from ncclcheck.reports.findings import worst
from ncclcheck.reports.jsondoc import Saved, Stage

_ALONE = ("bench", "smoke", "preflight")  # each result is of a job of its own, with its own rank 0


def merged(results: Sequence[tuple[str, Saved]]) -> Saved:
    """All nodes in the order of the files. Raises UsageError with the files that do not go together."""
    _check(results)
    every = [saved for _, saved in results]
    clusters = [saved.cluster for saved in every]
    cluster = Cluster(
        command=clusters[0].command,
        nodes=[node for one in clusters for node in one.nodes],
        job=_job([one.job for one in clusters]),
        run=_run([one.run for one in clusters]),
        measurements=together([one.measurements for one in clusters]),
        policy=clusters[0].policy,
    )
    return Saved(
        cluster=cluster,
        started=min(saved.started for saved in every),
        seconds=max(saved.seconds for saved in every),
        stages=_stages(every),
    )


def _check(results: Sequence[tuple[str, Saved]]) -> None:
    first, command = results[0][0], results[0][1].cluster.command
    held: dict[str, str] = {}
    for path, saved in results:
        cluster = saved.cluster
        if cluster.command != command:
            raise UsageError(
                f"report: {first} is a result of {command}, {path} of {cluster.command}: merge alike ones"
            )
        if command in _ALONE:
            raise UsageError(
                f"report: {path} is a result of {command}: jobs that ran apart cannot be merged; give one file, "
                "--compare two, or merge results of ncclcheck env --save"
            )
        for name in [*(node.name for node in cluster.nodes), *cluster.job.missing]:
            if name in held:
                raise UsageError(f"report: node {name} is in {held[name]} and in {path}; give one of them")
            held[name] = path


def _job(jobs: list[Job]) -> Job:
    """What was asked for altogether; of what differs, nothing is said."""
    launchers, backends = {job.launcher for job in jobs}, {job.backend for job in jobs}
    return Job(
        launcher=jobs[0].launcher if len(launchers) == 1 else "local",
        chosen_by=f"{len(jobs)} results merged",
        simulated=any(job.simulated for job in jobs),
        backend=jobs[0].backend if len(backends) == 1 else "",
        nodes_asked=sum(job.nodes_asked for job in jobs),
        nodes_answered=sum(job.nodes_answered for job in jobs),
        missing=[name for job in jobs for name in job.missing],
        injected=[fault for job in jobs for fault in job.injected],
    )


def _run(runs: list[Run]) -> Run:
    return Run(
        silent=[one for run in runs for one in run.silent],
        ends=[one for run in runs for one in run.ends],
        leftovers=[one for run in runs for one in run.leftovers],
        stopped_by=next((run.stopped_by for run in runs if run.stopped_by), ""),
    )


def _stages(results: Sequence[Saved]) -> list[Stage]:
    """By name: the worst state, the longest time, the first reason."""
    found: dict[str, list[Stage]] = {}
    for stage in (stage for saved in results for stage in saved.stages):
        found.setdefault(stage.name, []).append(stage)
    return [
        Stage(
            name=name,
            state=worst([one.state for one in alike]),
            seconds=max(one.seconds for one in alike),
            reason=next((one.reason for one in alike if one.reason), None),
        )
        for name, alike in found.items()
    ]
