"""HNG001: ranks that belong to a running job and have no process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ncclcheck.probes.facts import LiveProcess
from ncclcheck.reports.judgement.findings import Evidence, Finding, Where, fail, seen, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import Judged
from ncclcheck.reports.subjects.live.words import hang_rule
from ncclcheck.reports.text.words.fold import fold_names


@hang_rule("HNG001", "every rank of a running job has a process", "missing")
def every_rank_is_there(judged: Judged) -> Iterator[Finding]:
    """
    ## What
    A rank of the job has no process on the host on which it belongs, and the others move no data.

    ## Why it matters
    A collective needs all of them. The others wait until the watchdog or a timeout ends them: torch's default is
    10 minutes with NCCL and 30 with gloo.

    ## Seen as
    hangs

    ## How we know
    RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, WORLD_SIZE and MASTER_ADDR in the environment of the processes that are
    there: with a loopback address all ranks belong here, else those between the first and the last of each
    launcher; where every host of the job was looked at, also those of a host without any. With connections between
    the others the rank has been there, and has ended; without any it never joined. A process whose parent and
    group are gone, and that has no thread of its own for its connections, is what a rank left behind: no rank.
    A job whose processes are younger than 60 s and have no connection is still starting.

    ## Fix
    - **you** look for the end of that rank in the log: `ncclcheck logs`; a launcher that ends all ranks with the
      first (torchrun, `srun --kill-on-bad-exit`) leaves nobody waiting.

    ## Source
    torch.distributed.run, environment variables; proc(5); the hang was made with real jobs of torch and gloo.
    """
    job, missing = judged.job, judged.job.missing
    left = [helper for helper in job.helpers if helper.orphan and helper.rank in missing]
    ended = (
        left
        or any(process.sockets for process in judged.who)
        or any(rank.state in ("gone", "Z") for rank in job.ranks)
    )
    how = "has ended" if ended else "has no process"
    many = "have ended" if ended else "have no process"
    if not ended and job.empty:
        how, many = (f"{text} on the hosts looked at ({fold_names(job.empty)} has none)" for text in (how, many))
    known = all(words.is_known(rank) for rank in job.ranks if rank.rank in missing)
    size = f"{'WORLD_SIZE' if job.ranks[0].rank_by == 'environment' else 'at least'} {job.world}"
    yield fail(
        Where(node=judged.who[0].host, rank=missing[0] if len(missing) == 1 and known else None),
        f"{words.numbers(missing, job)} of {job.world} {how if len(missing) == 1 else many}, "
        f"and {len(judged.who)} still wait",
        why="A collective needs every rank; the others wait for one that cannot come.",
        owner="job",
        evidence=[
            seen("/proc", f"{size} at {job.name}; here {words.ranks(judged.who)}"),
            *_left(left),
            *_killed(judged.who),
            *words.evidence([process for process in judged.who if process.closed][:1] or judged.who[:1]),
        ],
        fix=[
            you("Find how it ended, or why it was not started; end the rest.", "ncclcheck logs LOG"),
            you(
                "Let the launcher end all ranks with the first: torchrun does, and srun so.",
                "srun --kill-on-bad-exit",
            ),
        ],
    )


def _left(left: Sequence[LiveProcess]) -> list[Evidence]:
    """What a rank left behind: its peers do not see its end while that has its connections."""
    return [
        seen(
            f"/proc/{process.pid}",
            f"rank {process.rank} left it behind on {process.host}, with {process.sockets} connections: "
            f"{process.command[:80]}",
        )
        for process in left[:2]
    ]


def _killed(there: Sequence[LiveProcess]) -> list[Evidence]:
    """What the kernel has killed beside them for want of memory."""
    most = max(there, key=lambda process: process.oom_kills)
    if not most.oom_kills:
        return []
    text = f"{most.oom_kills} processes of it were killed for want of memory since it was made"
    return [seen(f"the memory cgroup of rank {most.rank} on {most.host}", text)]
