"""HNG009: whether any process of a job could be seen."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Live
from ncclcheck.reports.judgement.findings import Finding, State, Where, seen, unknown, you
from ncclcheck.reports.judgement.rule import rule


@rule(
    "HNG009", "processes of a job can be seen", worst=State.UNKNOWN, over="", commands=("hang",), unfinished=True
)
def a_job_is_seen(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    No process of a distributed job was seen, or a host could not be looked at, or its processes could not.

    ## Why it matters
    Nothing can be said of what is not seen: the job may be another user's, in another container, on another host,
    or without a rank in its environment and without a store of torch that a process of it has (a file).

    ## How we know
    /proc/PID/environ of every process: RANK and WORLD_SIZE, those of Open MPI, MPICH or Slurm. It can be read by
    the process's own user and by root. Else the connections of processes that use torch (Ray,
    torch.multiprocessing.spawn): the one that has the job's store is connected to itself, the others to it.

    ## Fix
    - **you** run it as the job's user or as root, on a host of the job, inside its container.

    ## Source
    proc(5), on /proc/PID/environ; ptrace(2), on PTRACE_MODE_READ.
    """
    hosts = cluster.measurements.live
    nobody = not any(host.processes for host in hosts)
    for host in hosts:
        if not host.processes and (nobody or host.problem or host.unseen):
            yield _unseen(host)


def _unseen(host: Live) -> Finding:
    users = sorted({unseen.user for unseen in host.unseen})
    pids = ", ".join(str(unseen.pid) for unseen in host.unseen[:4])
    why = host.problem or (
        f"Python of user {users[0]} ({len(host.unseen)} running) may not be looked into"
        if host.unseen
        else "there is none"
    )
    line = f"sudo -u '#{users[0]}' ncclcheck hang" if host.unseen else "ncclcheck hang --via 'docker exec -i NAME'"
    all_evidence = [seen("/proc", f"pids {pids}: environ is not readable")] if host.unseen else []
    return unknown(
        Where(node=host.host),
        f"no process with a rank was seen: {why}",
        why="What was not seen is neither well nor stuck.",
        owner="job",
        evidence=all_evidence,
        fix=[you("Look as the user of the job, on its host, inside its container.", line)],
    )
