"""HNG025: all ranks of a running job are in the same call, and it does not end."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.reports.judgement.findings import Evidence, Finding, Where, fail, note, seen, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.nccl_ras import is_quiet
from ncclcheck.reports.subjects.live.witnesses import SeenJob, witness_rule
from ncclcheck.reports.subjects.logs.flight import words as flight
from ncclcheck.reports.subjects.logs.flight.hang import odd_in
from ncclcheck.reports.subjects.logs.flight.waits import Waits

_MORE = (
    "Record more of the next one: NCCL's last words, and what each GPU has begun.",
    "export NCCL_DEBUG=WARN NCCL_DEBUG_FILE=/tmp/nccl.%h.%p TORCH_NCCL_ENABLE_TIMING=1",
)


@witness_rule("HNG025", "a call that all ranks of a running job have made comes to its end")
def what_all_have_called_ends(seen_job: SeenJob) -> Iterator[Finding]:
    """
    ## What
    All ranks of a group have made the same call, and it does not end: the data does not get through, or a GPU does
    not come to it. A note where only NCCL's RAS says so.

    ## Why it matters
    No line of the program is at fault then: a link, a NIC, a GPU, or kernels that hold each other up. RAS prints
    `RUNNING OK` for it, because it counts launches: that is no finding that all is well (NVIDIA/nccl#1730).

    ## How we know
    Flight Recorder: all have entered, none has ended (LOG136); who has not begun on its GPU where the others have,
    with TORCH_NCCL_ENABLE_TIMING. RAS at two questions: all ranks answer, and the counts agree; operations of Send
    and Recv (pipelines, all-to-all) are not counted by it.

    ## Fix
    - **you** see HNG022 to HNG024 for a GPU or a link; `ncclcheck bench` on the same nodes finds the slow or dead
      link. For the next time: `NCCL_DEBUG=WARN`, `NCCL_DEBUG_FILE`, `TORCH_NCCL_ENABLE_TIMING=1`.

    ## Source
    NVIDIA/nccl#1730; NCCL user guide, RAS; torch.distributed.flight_recorder.
    """
    waits = seen_job.waits
    if waits is not None:
        yield from _recorded(seen_job, waits)
    elif seen_job.ras is not None and is_quiet(seen_job.ras):
        yield _counted(seen_job)


def _recorded(seen_job: SeenJob, waits: Waits) -> Iterator[Finding]:
    record = seen_job.record
    assert record is not None
    for call in waits.hanging[:2]:
        odd, how = odd_in(waits, call)
        processes = [rank for rank in seen_job.judged.job.ranks if rank.rank in odd]
        detail = f": {how}" if how else ""
        judged = fail if seen_job.stands else note
        yield judged(
            words.where(processes) if processes else Where(),
            f"{flight.call(waits.state, call)} was called by all and does not end{detail}",
            why="No program is late: a link, a NIC or a GPU does not carry on.",
            owner="site",
            evidence=[
                *flight.counts(waits.state, call.group, waits.waiting(call)),
                words.written(record),
                *_busy(seen_job),
            ],
            fix=[you("Test the same nodes: which link or GPU is it.", "ncclcheck bench --quick"), you(*_MORE)],
        )


def _counted(seen_job: SeenJob) -> Finding:
    ras = seen_job.ras
    assert ras is not None
    groups = sum(group.communicators for group in ras.looks[-1].groups)
    return note(
        Where(),
        f"{seen_job.judged.job.name}: RAS of NCCL finds nothing, which only says that all launched equally often",
        why="It counts launches, not ends, and neither Send nor Recv: an all-clear of it is none.",
        evidence=[
            seen(
                "NCCL's RAS, twice", f"NCCL {ras.version}: {groups} communicators, all ranks answer, counts agree"
            ),
            *_busy(seen_job),
        ],
        fix=[words.record_next()],
    )


def _busy(seen_job: SeenJob) -> list[Evidence]:
    gpus = [gpu for _, gpu in seen_job.gpus() if gpu.busy and None not in gpu.busy]
    if not gpus:
        return []
    least = min(percent or 0 for gpu in gpus for percent in gpu.busy)
    power = [milliwatt / 1000 for gpu in gpus for milliwatt in gpu.power_mw if milliwatt is not None]
    watts = f", {min(power):.0f} to {max(power):.0f} W" if power else ""
    return [seen(f"NVML, {len(gpus)} GPUs", f"busy {least} % and more{watts}")]
