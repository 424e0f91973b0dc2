"""SCR040, SCR041: what ranks share stays alike: learning rates, optimizers, weights, gradients."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, State, fail, warn, you
from ncclcheck.reports.subjects.script.scripts import DDP, by_rank, here, of_own_steps, script_rule, written
from ncclcheck.reports.subjects.script.steps import shares_model
from ncclcheck.reports.subjects.script.traced import objects, passes

_SCHEDULER = re.compile(r"(?:^|[._])(?:lr_)?sched(?:uler)?s?$", re.IGNORECASE)
_SAMPLES = "Ranks deal samples out from different orders: some come twice in an epoch, others never."


@script_rule("SCR040", "ranks change what they share alike", worst=State.WARN)
def changed(script: Script) -> Iterator[Finding]:
    """
    ## What
    A learning rate that is set, an optimizer or a scheduler that steps, a sampler that is told the epoch, or a
    state that is loaded into an optimizer or a wrapped model, under a condition on the rank.

    ## Why it matters
    Ranks average gradients only: from then on each applies the same gradient in another way, and the copies of the
    model drift apart, in silence. Samplers of different epochs deal samples out from different orders: some come
    twice, others never.

    ## How we know
    The script is followed from its first line: the call stands under a condition on the rank, nothing in the other
    branch does the same, and the model is inside DistributedDataParallel. A state that is loaded before the model
    is wrapped goes to all ranks as it is wrapped; where something is broadcast later, nothing is said of loading.

    ## Fix
    - **you** do it on all ranks.

    ## Source
    PyTorch documentation, torch.nn.parallel.DistributedDataParallel.
    """
    of_own_steps(script)
    if not shares_model(script):
        return
    wrapped: set[str] = set()
    sent = any("broadcast" in call.name and not by_rank(call) for call in script.trace)
    reported: set[tuple[str, int]] = set()
    for call in script.trace:
        if call.name in DDP:
            wrapped |= objects(call, "0", "module", "new", "object")
        guard = by_rank(call)
        if guard is None or guard.branch != "if" or (guard.file, guard.line) in reported:
            continue
        if not (what := _changes(call, wrapped)) or (sent and call.name == ".load_state_dict"):
            continue
        trained = [call for call in passes(script) if guard not in call.guards]
        if not trained or any(_is_counterpart(other, call) for other in script.trace):
            continue  # these ranks train by themselves, or each does it in its own place
        reported.add((guard.file, guard.line))
        yield warn(
            here(call),
            f"{what} on those ranks only for which {guard.text} holds",
            why=_SAMPLES if call.name == ".set_epoch" else "The ranks' copies of the model drift apart.",
            owner="job",
            evidence=[written(script, call)],
            fix=[you("Do it on all ranks.")],
        )


def _changes(call: Call, wrapped: set[str]) -> str:
    """What is changed, in words."""
    if call.name == "set lr":
        return "the learning rate is set"
    if call.name == ".set_epoch" and "sampler" in call.on:
        return "the sampler is given the epoch"
    if call.name == ".step" and _SCHEDULER.search(call.on):
        return f"{call.on} takes its step"
    optimizers = objects(call, "on", "optimizer", "plateau")
    if call.name == ".step" and optimizers:
        return f"{call.on} takes its step"
    if call.name == ".load_state_dict" and optimizers:
        return f"{call.on} is given a state"
    models = objects(call, "on", "ddp", "module", "new", "object")
    if (
        call.name == ".load_state_dict"
        and models
        and all(model in wrapped or model.startswith("ddp@") for model in models)
    ):
        return f"the wrapped model {call.on} is given a state"
    return ""


def _is_counterpart(other: Call, call: Call) -> bool:
    """Whether the other ranks do the same in another branch, or where their own condition holds."""
    guard, theirs = by_rank(call), by_rank(other)
    if other.name != call.name or guard is None or theirs is None:
        return False
    return (theirs.file, theirs.line, theirs.branch) != (guard.file, guard.line, guard.branch)


@script_rule("SCR041", "the gradients of a step are exchanged", worst=State.FAIL)
def exchanged(script: Script) -> Iterator[Finding]:
    """
    ## What
    `model.no_sync()` in the very steps after which the optimizer runs.

    ## Why it matters
    Under no_sync the backward pass averages nothing: the optimizer applies each rank's own gradients, and the
    copies of the model drift apart.

    ## How we know
    The script is followed from its first line: `no_sync` and the optimizer's `step` stand under the same
    condition, by its words and branch, in one loop, and no other `step` is taken there.

    ## Fix
    - **you** turn the condition around: no_sync in the steps that only accumulate.

    ## Source
    PyTorch documentation, torch.nn.parallel.DistributedDataParallel.no_sync.
    """
    of_own_steps(script)
    for call in script.trace:
        if call.name != ".no_sync" or not call.guards or not call.loops:
            continue
        asked = (call.guards[-1].text, call.guards[-1].branch)
        if call.guards[-1].kind in ("group", "main"):
            continue
        steps = [step for step in script.trace if step.name == ".step" and step.loops[:1] == call.loops[:1]
                 and objects(step, "on", "optimizer")]  # fmt: skip
        steps += [step for step in script.trace if step.name == ".step" and step.loops[:1] == call.loops[:1]
                  and "scaler" in step.on]  # fmt: skip
        if steps and all(asked in [(guard.text, guard.branch) for guard in step.guards] for step in steps):
            yield fail(
                here(call),
                f"no_sync is used in those steps that the optimizer takes: {asked[0]}",
                why="The gradients of these steps are averaged over no ranks.",
                owner="job",
                evidence=[written(script, call), written(script, steps[0])],
                fix=[you("Use no_sync where the optimizer does not step.")],
            )
            return
