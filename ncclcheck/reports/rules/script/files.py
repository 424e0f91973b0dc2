"""SCR034: what one rank writes, others read when it is there."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, warn
from ncclcheck.reports.subjects.script.changes import before, changed, dist, is_started
from ncclcheck.reports.subjects.script.scripts import by_rank, here, of_any_start, script_rule, written
from ncclcheck.reports.subjects.script.traced import apart, entered

_WRITES = ("write", "torch.save")


@script_rule("SCR034", "ranks wait for a file that one of them writes", worst=State.WARN)
def waited_for(script: Script) -> Iterator[Finding]:
    """
    ## What
    A file that is written under a condition on the rank, and read by all ranks, without a barrier between.

    ## Why it matters
    The other ranks come first: they find no file, half a file, or that of an earlier run, and those that go on
    hang in the next collective.

    ## Seen as
    hangs

    ## How we know
    The script is followed from its first line: both paths are made of the same parts, the read comes next, and no
    collective stands between the two.

    ## Fix
    - **you** `dist.barrier()` between the two, on all ranks.

    ## Source
    PyTorch documentation, torch.distributed.barrier; PyTorch tutorial "Getting Started with Distributed Data
    Parallel", "Save and Load Checkpoints".
    """
    of_any_start(script)
    writes: dict[str, Call] = {}
    for call in script.trace:
        path = call.values.get("path", "")
        if entered(script, call):
            writes = {}
        elif (
            call.name in _WRITES and path.startswith("path:") and (guard := by_rank(call)) and guard.branch == "if"
        ):
            writes[path] = call
        elif call.name == "read" and path in writes and by_rank(call) is None and not apart(writes[path], call):
            yield warn(
                here(call),
                f"all ranks read a file that one rank writes at {writes[path].place}, and do not wait for it",
                why="The others find no file, or half of it.",
                owner="job",
                evidence=[written(script, writes[path]), written(script, call)],
                fix=[_waiting(script, call)],
            )
            return


def _waiting(script: Script, call: Call) -> Remedy:
    """A barrier before the read, which all ranks come to; Accelerate has its own."""
    text, home = "Call torch.distributed.barrier() on all ranks between the two.", dist(script, call.file)
    own = next(
        (made.target for made in script.calls if made.name.endswith("Accelerator") and made.file == call.file), ""
    )
    wait = f"{own}.wait_for_everyone()" if own else f"{home}.barrier()"
    known = bool(own) or (bool(home) and is_started(script, call))
    return changed(script, text, call.file, before(script, call, wait) if known else None)
