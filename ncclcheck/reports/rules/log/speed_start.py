"""LOG114: by the log, communicators are made in reasonable time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, seen, you
from ncclcheck.reports.subjects.logs.logged import cause, events_of, log_rule

_SLOW = 60.0  # seconds
_PART = re.compile(r"(\w+) (\d{1,6}\.\d{1,4})")


@log_rule("LOG114", "communicators are created within a minute", worst=State.WARN)
def quick_start(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `Init timings .. total 95.20` of NCCL 2.22 and later: a communicator took more than a minute to make.

    ## Why it matters
    Each start and each restart pays it, with all GPUs idle; some frameworks make dozens of communicators.

    ## How we know
    The parts of the line. bootstrap: ranks meet over TCP, and wait for the last. The rank that waited least came
    last: it is named where its wait is much shorter than the others'. kernels: code is loaded to the GPU. topo,
    graphs: the machine's topology is read and searched. connections: network connections are made.

    ## Fix
    - **you** bootstrap: look at what the last rank does before (imports from a slow file system, checkpoints);
      with many hundred ranks `export TORCH_NCCL_RANKS_PER_ROOT=128`. kernels: `export CUDA_MODULE_LOADING=LAZY`.
      Confirm: `NCCL_DEBUG=INFO` prints the line again.
    - **admin** names of hosts must resolve at once: `getent hosts NAME`.

    ## Source
    NCCL user guide, NCCL_DEBUG; PyTorch documentation, ProcessGroupNCCL environment variables; CUDA programming
    guide, lazy loading.
    """
    slow = [event for event in events_of(logs, "init-timings") if float(event.fields["total"]) > _SLOW]
    if not slow:
        return
    worst = max(slow, key=lambda event: float(event.fields["total"]))
    parts = _parts(worst)
    part = max(parts, key=lambda name: parts[name], default="")
    last = _last(logs, worst) if part == "bootstrap" else None
    late = f", while rank {last.fields['of']} came last" if last else ""
    at = Where(node=last.host or None, rank=int(last.fields["of"])) if last else Where()
    yield cause(
        [worst, *([last] if last else [])],
        f"making a communicator took {float(worst.fields['total']):.0f} s, of it {part or 'an unknown part'} "
        f"{parts.get(part, 0.0):.0f} s{late}",
        why="All GPUs are idle meanwhile, at each start and restart.",
        owner="job",
        fix=[_fix(part)],
        state=State.WARN,
        at=at,
        more=[seen("ranks", worst.fields["nranks"])],
    )


def _parts(event: LogEvent) -> dict[str, float]:
    return {name: float(seconds) for name, seconds in _PART.findall(event.fields["parts"])}


def _last(logs: Logs, worst: LogEvent) -> LogEvent | None:
    """Of the same communicator the rank that waited least, where it waited less than half as long."""
    same = [event for event in events_of(logs, "init-timings") if event.fields["nranks"] == worst.fields["nranks"]]
    least = min(same, key=lambda event: _parts(event).get("bootstrap", 0.0))
    waited, longest = _parts(least).get("bootstrap", 0.0), _parts(worst).get("bootstrap", 0.0)
    return least if len(same) > 1 and waited < longest / 2 else None


def _fix(part: str) -> Remedy:
    if part == "bootstrap":
        return you("Confirm what the last rank did before; with hundreds of ranks use more roots.",
                   "py-spy dump --pid PID", "getent hosts NAME",
                   "export TORCH_NCCL_RANKS_PER_ROOT=128")  # fmt: skip
    if part == "kernels":
        return you("Load only the code that is used; confirm by the same line.", "export CUDA_MODULE_LOADING=LAZY")
    return you("Confirm by the parts of the same line of all ranks.", "grep 'Init timings' LOG")
