"""HNG022, HNG023: GPUs of a running job: one idle while the others are busy, one that failed."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LiveGpu
from ncclcheck.reports.judgement.findings import Evidence, Finding, Where, admin, fail, seen, warn, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.witnesses import SeenJob, witness_rule

# Percent of NVML's last second. A rank that waits within an NCCL kernel shows 100, one that has launched nothing 0
# (libgpuarray#387: "100 % on 31, 0 % on 1"); not measured here on GPUs.
_BUSY, _IDLE = 90, 5


@witness_rule("HNG022", "no GPU of a running job is idle while the others are busy")
def no_gpu_is_idle_alone(seen_job: SeenJob) -> Iterator[Finding]:
    """
    ## What
    At both looks the GPUs of all ranks but few were busy, and those of the few idle.

    ## Why it matters
    A kernel of NCCL that waits for its partners keeps its GPU at 100 %, at little power. The GPU at 0 % has no
    such kernel: its rank has not launched the collective in which the others wait.

    ## How we know
    NVML's utilisation, twice: at least 90 % on most, at most 5 % on the few; which process computes on which
    GPU, by NVML's own list. Each rank with one GPU of its own, on the hosts that were looked at.

    ## Fix
    - **you** see the line of the program that this rank is in: `py-spy dump --pid PID`.

    ## Source
    NVML, nvmlDeviceGetUtilizationRates; Theano/libgpuarray#387.
    """
    pairs = [(rank, gpu) for rank, gpu in seen_job.gpus() if len(gpu.busy) == 2 and None not in gpu.busy]
    idle = [(rank, gpu) for rank, gpu in pairs if all((busy or 0) <= _IDLE for busy in gpu.busy)]
    busy = [(rank, gpu) for rank, gpu in pairs if all((busy or 0) >= _BUSY for busy in gpu.busy)]
    if not idle or len(idle) + len(busy) < len(pairs) or len(idle) >= len(busy) or len(busy) < 2:
        return
    for rank, gpu in idle:
        judged = fail if seen_job.stands else warn
        yield judged(
            Where(node=rank.host, device=f"GPU {gpu.index}", rank=rank.rank if words.is_known(rank) else None),
            f"the GPU of {words.rank(rank)} is idle while those of {len(busy)} others are busy (pid {rank.pid})",
            why="It has launched no kernel of the collective in which the others wait.",
            owner="job",
            evidence=[_told(gpu), _others([gpu for _, gpu in busy]), *words.evidence([rank])],
            fix=[words.stacks(rank), you(words.LATER, "ncclcheck hang --seconds 60")],
        )


@witness_rule("HNG023", "no GPU of a running job has failed")
def no_gpu_has_failed(seen_job: SeenJob) -> Iterator[Finding]:
    """
    ## What
    A GPU on a host of the job is lost to NVML, had a critical Xid between the looks, or NVML itself does not
    answer.

    ## Why it matters
    A kernel on a GPU that has failed never ends, and no rank can go on without it.

    ## How we know
    NVML gives no handle for it (GPU is lost), or its event set held an XidCriticalError. Xids of before the looks
    are in the kernel's log only: `ncclcheck env` reads them.

    ## Fix
    - **admin** read the kernel's log, drain the node and reset the GPU.

    ## Source
    NVML, nvmlEventSetWait; NVIDIA, Xid errors.
    """
    for host in seen_job.hosts:
        for gpu in host.gpus:
            if gpu.lost or gpu.xids:
                what = (
                    "is lost to NVML" if gpu.lost else f"had Xid {', '.join(map(str, gpu.xids))} between the looks"
                )
                yield fail(
                    Where(node=host.host, device=f"GPU {gpu.index}"),
                    f"GPU {gpu.index} {what}",
                    why="A kernel on a GPU that has failed never ends.",
                    owner="node",
                    evidence=[seen("NVML", what)],
                    fix=[
                        admin("Read the kernel's log; drain the node; reset the GPU.", "dmesg -T | grep -i xid"),
                        you("Exclude this node from the next start of the job."),
                    ],
                )
        if "no answer" in host.gpu_problem:
            yield warn(
                Where(node=host.host),
                f"NVML does not answer: {host.gpu_problem}",
                why="Where the driver hangs, so does every call of CUDA.",
                owner="node",
                evidence=[seen("NVML", host.gpu_problem)],
                fix=[admin("Read the kernel's log.", "dmesg -T | grep -iE 'xid|nvrm'")],
            )


def _told(gpu: LiveGpu) -> Evidence:
    power = [f"{milliwatt / 1000:.0f} W" for milliwatt in gpu.power_mw if milliwatt is not None]
    return seen(f"NVML, GPU {gpu.index}", f"busy {gpu.busy[0]} %, then {gpu.busy[1]} %; {', then '.join(power)}")


def _others(gpus: list[LiveGpu]) -> Evidence:
    least = min(percent or 0 for gpu in gpus for percent in gpu.busy)
    power = [milliwatt / 1000 for gpu in gpus for milliwatt in gpu.power_mw if milliwatt is not None]
    watts = f"; {min(power):.0f} to {max(power):.0f} W" if power else ""
    return seen(f"NVML, the other {len(gpus)} GPUs", f"busy {least} % and more at both looks{watts}")
