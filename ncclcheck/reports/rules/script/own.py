"""SCR032, SCR035: what a rank does with numbers of its own samples."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, note, warn, you
from ncclcheck.reports.subjects.script.changes import changed, dist, is_started, single
from ncclcheck.reports.subjects.script.processes import INIT
from ncclcheck.reports.subjects.script.scripts import (
    by_rank,
    edited,
    here,
    imports,
    indent,
    line_of,
    of_own_steps,
    script_rule,
    written,
)
from ncclcheck.reports.subjects.script.traced import passes, tags


@script_rule("SCR032", "ranks step their scheduler with one number", worst=State.WARN)
def scheduled(script: Script) -> Iterator[Finding]:
    """
    ## What
    `ReduceLROnPlateau.step(loss)` with a loss of the rank's own samples.

    ## Why it matters
    The ranks see other losses, and lower their learning rates at other epochs: from then on each applies the same
    gradient with another step, and the copies of the model drift apart.

    ## How we know
    The script is followed from its first line: the loader has a DistributedSampler, and what is given to `step`
    was made of its samples, and neither reduced nor gathered before that.

    ## Fix
    - **you** `dist.all_reduce(loss, op=dist.ReduceOp.AVG)` before the step.

    ## Source
    PyTorch documentation, torch.optim.lr_scheduler.ReduceLROnPlateau; DistributedDataParallel, which broadcasts
    parameters only as it is built.
    """
    of_own_steps(script)
    for call in script.trace:
        is_plateau = tags(call, "on") and all(tag.startswith("plateau@") for tag in tags(call, "on") if "@" in tag)
        given = tags(call, "0") | tags(call, "metrics")
        if call.name == ".step" and is_plateau and "own" in given and not by_rank(call):
            yield warn(
                here(call),
                "each rank steps ReduceLROnPlateau with the number of its own samples",
                why="Ranks lower their learning rates at other epochs, and their models drift apart.",
                owner="job",
                evidence=[written(script, call)],
                fix=[_averaged(script, call)],
            )
            return


@script_rule("SCR035", "sums over steps keep no graph", worst=State.NOTE)
def kept(script: Script) -> Iterator[Finding]:
    """
    ## What
    `total += loss` or `losses.append(loss)` in the training loop, with the loss as the model gave it.

    ## Why it matters
    Each such loss keeps what is left of its step's graph: memory grows with every step, until the GPU runs out of
    it in the middle of an epoch, on the rank with the largest samples first.

    ## How we know
    The script is followed from its first line: the value comes from the model, nothing has detached it, the loop
    has a backward pass of its own, and the sum begins before the loop and is not what backward is called on.

    ## Fix
    - **you** `total += loss.detach()`.

    ## Source
    PyTorch documentation, "Frequently Asked Questions", "My model reports cuda runtime error(2): out of memory".
    """
    of_own_steps(script)
    backward = passes(script)
    for call in script.trace:
        if call.name != "keep" or not call.loops:
            continue
        same = [other for other in backward if other.loops == call.loops]
        summed = {call.on.partition(".")[0] for call in backward}
        if not same or call.on.partition(".")[0] in summed - {"self"} or call.on in {call.on for call in backward}:
            continue
        value, line = call.arguments.get("0", ""), line_of(script, call.file, call.line)
        new = line.replace(f"+= {value}", f"+= {value}.detach()") if value.isidentifier() else line
        new = new.replace(f".append({value})", f".append({value}.detach())") if value.isidentifier() else new
        yield note(
            here(call),
            f"{call.on} keeps the graph of every step",
            evidence=[written(script, call)],
            fix=[edited(script, "Detach it.", call.file, {call.line: new} if new != line else None)],
        )
        return


def _averaged(script: Script, call: Call) -> Remedy:
    """The number may be a tensor or none: it is put on the GPU where the group is NCCL's."""
    text, home = "Average the number over all ranks before: all_reduce with ReduceOp.AVG.", dist(script, call.file)
    line, given = single(script, call), call.arguments.get("0", call.arguments.get("metrics", ""))
    backends = {
        start.arguments.get("0", start.arguments.get("backend", "")).strip("'\"")
        for start in script.calls
        if start.name == INIT
    }
    device = {"nccl": ', device="cuda"', "gloo": ""}.get(backends.pop() if len(backends) == 1 else "")
    if not line or not home or device is None or line.count(f"({given})") != 1 or not is_started(script, call):
        return you(text)
    blank = indent(line_of(script, call.file, call.line))
    lines = [
        f"mean = torch.tensor(float({given}){device})",
        f"{home}.all_reduce(mean)",
        line.replace(f"({given})", f"(mean.item() / {home}.get_world_size())"),
    ]
    whole = imports(script, call.file, "torch") and "mean" not in given
    return changed(
        script, text, call.file, {call.line: "\n".join(blank + new for new in lines)} if whole else None
    )
