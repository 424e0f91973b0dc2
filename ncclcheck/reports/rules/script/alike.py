"""SCR040, SCR041: what ranks share stays alike: learning rates, optimizers, weights, gradients."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ncclcheck.probes.facts.script import Call, Guard, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, fail, warn, you
from ncclcheck.reports.subjects.script.changes import changed as edit
from ncclcheck.reports.subjects.script.changes import replaced, single, spelled
from ncclcheck.reports.subjects.script.processes import INIT
from ncclcheck.reports.subjects.script.scripts import (
    DDP,
    SAMPLER,
    by_rank,
    here,
    indent,
    line_of,
    of_own_steps,
    script_rule,
    splits_model,
    written,
)
from ncclcheck.reports.subjects.script.sides import differs
from ncclcheck.reports.subjects.script.steps import shares_model
from ncclcheck.reports.subjects.script.traced import objects, passes

# What may exchange gradients: collectives, wrappers, engines, averaging of models.
_AVERAGES = re.compile(
    r"reduce|gather|broadcast|DDP|ParallelModel|(?:Data|Module)Parallel|[pP]arallelize|FSDP|fully_shard|FullySharded|engine|deepspeed|horovod|apex"
    r"|accelerat|fabric|lightning|averag|sync|rpc|isend|irecv|\bsend\b|\brecv\b|[zZ]eRO|ZeroRed|no_ddp|wrap_model",
)
_SCHEDULER = re.compile(r"(?:^|[._])(?:lr_)?sched(?:uler)?s?$", re.IGNORECASE)
_OF_RANK = re.compile(r"rank|is_main|is_master", re.IGNORECASE)
_EITHER = r"([\w.]+\.no_sync\(\)) if (.+) else ((?:contextlib\.)?(?:nullcontext|suppress)\(\))(?=:| as )"
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
    for call in script.trace:
        rate = "lr"
        if "params:" in call.values.get("0", "") and differs(call, rate) and passes(script):
            yield warn(
                here(call),
                f"the learning rate is another one on each rank: {call.arguments.get(rate, '')}",
                why="The ranks' copies of the model drift apart.",
                owner="job",
                evidence=[written(script, call)],
                fix=[_one_rate(script, call)],
            )
            break
    wrapped: set[str] = set()
    named: set[str] = set()  # as they are called where they are wrapped: two models may be made in one place
    sent = any("broadcast" in call.name and not by_rank(call) for call in script.trace)
    reported: set[tuple[str, int]] = set()
    for at, call in enumerate(script.trace):
        if call.name in DDP:
            wrapped |= objects(call, "0", "module", "new", "object")
            named |= {call.arguments.get("0", call.arguments.get("module", "")), call.target}
        guard = by_rank(call)
        if guard is None or guard.branch != "if" or (guard.file, guard.line) in reported:
            continue
        ours = wrapped if call.on.removesuffix(".module") in named else set()
        if not (what := _changes(call, ours)) or (sent and call.name == ".load_state_dict"):
            continue
        trained = [call for call in passes(script) if guard not in call.guards]
        if not trained or any(_is_counterpart(other, call) for other in script.trace):
            continue  # these ranks train by themselves, or each does it in its own place
        if call.name == ".load_state_dict" and not _trains_on(script.trace[at:], trained, call):
            continue  # the best one, for a last test
        reported.add((guard.file, guard.line))
        yield warn(
            here(call),
            f"{what} on those ranks only for which {guard.text} holds",
            why=_SAMPLES if call.name == ".set_epoch" else "The ranks' copies of the model drift apart.",
            owner="job",
            evidence=[written(script, call)],
            fix=[_on_all(script, call, guard)],
        )


def _one_rate(script: Script, call: Call) -> Remedy:
    """A factor of the rank is left out where it is one: `lr=0.1 * (rank + 1)`."""
    text, rate = "Give all ranks one learning rate.", call.arguments.get("lr", "")
    plain = re.fullmatch(r"([\w.]+) [*] \(?[\w.]*rank[\w.() +]*", rate)
    return edit(
        script, text, call.file, spelled(script, call.file, call.line, rate, plain.group(1)) if plain else None
    )


def _on_all(script: Script, call: Call, guard: Guard) -> Remedy:
    """The only statement of its block: the condition goes, or its part that asks for the rank does."""
    text = "Do it on all ranks."
    head, line = line_of(script, guard.file or call.file, guard.line), single(script, call)
    above = line_of(script, call.file, call.line - 1)
    later = [line_of(script, call.file, at) for at in range(call.line + 1, call.line + 4)]
    below = next((line for line in later if line.strip()), "")
    alone = (
        guard.line == call.line - 1 and above == head and guard.file in ("", call.file)
        and below and len(indent(below)) <= len(indent(head))
        and not re.match(r"\s*(?:else|elif)\b", below)
    )  # fmt: skip
    parts = re.fullmatch(r"if (.+):", head.strip())
    if not line or not alone or parts is None or "(" in parts.group(1).replace("()", ""):
        return you(text)
    rest = [part for part in parts.group(1).split(" and ") if not _OF_RANK.search(part)]
    if re.search(r"\bor\b|\bnot\b|\bif\b", parts.group(1)):
        return you(text)
    if rest:
        return edit(script, text, call.file, {guard.line: f"{indent(head)}if {' and '.join(rest)}:"})
    return edit(script, text, call.file, {guard.line: None, call.line: indent(head) + line})


def _trains_on(after: Sequence[Call], trained: Sequence[Call], load: Call) -> bool:
    """Whether a step follows, in the order of a rank or in the next round of a loop."""
    rounds = {(loop.file, loop.line) for loop in load.loops}
    return any(step in after or rounds & {(loop.file, loop.line) for loop in step.loops} for step in trained)


def _changes(call: Call, wrapped: set[str]) -> str:
    """What is changed, in words."""
    if call.name == "set lr":
        return "the learning rate is set"
    if call.name == ".set_epoch" and "sampler" in call.on:
        return "the sampler is given the epoch"
    optimizers = objects(call, "on", "optimizer", "plateau")
    if call.name == ".step" and (optimizers or _SCHEDULER.search(call.on)):
        return f"{call.on} takes its step"
    if call.name == ".load_state_dict" and optimizers:
        return f"{call.on} is given a state"
    if call.name == ".zero_grad" and (optimizers or objects(call, "on", "ddp")):
        return f"the gradients of {call.on} are cleared"
    if call.name.endswith(("clip_grad_norm_", "clip_grad_value_")):
        return "gradients are clipped"
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


def _never_averaged(script: Script) -> tuple[Call, Call] | None:
    """A sampler of all ranks, and a backward pass after which ranks exchange nothing, by whatever name."""
    words = {word for file in script.files for word in (*file.words, *file.modules)}
    if shares_model(script) or splits_model(script) or any(map(_AVERAGES.search, words)):
        return None
    sampler = next((call for call in script.trace if call.name in SAMPLER), None)
    trained = passes(script)
    started = any(
        call.name == INIT and all(guard.kind != "other" for guard in call.guards) for call in script.trace
    )
    return (sampler, trained[0]) if sampler and trained and started else None


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
    condition, by its words and branch, in one loop, and no other `step` is taken there. Or `i < n` holds in all of
    `range(n)`. Or samples are shared out by a sampler, and no word of the script speaks of anything that averages
    gradients (a warning).

    ## Fix
    - **you** turn the condition around: no_sync in the steps that only accumulate.

    ## Source
    PyTorch documentation, torch.nn.parallel.DistributedDataParallel.no_sync.
    """
    of_own_steps(script)
    if alone := _never_averaged(script):
        sampler, backward = alone
        yield warn(
            here(backward),
            "the samples are shared out among the ranks, and nothing averages their gradients",
            why="Each rank trains a model of its own, on its part of the samples.",
            owner="job",
            evidence=[written(script, backward), written(script, sampler)],
            fix=[you("Wrap the model in DistributedDataParallel, and call that in the forward pass.")],
        )
    for call in script.trace:
        if call.name != ".no_sync" or not call.guards or not call.loops:
            continue
        asked = (call.guards[-1].text, call.guards[-1].branch)
        if call.guards[-1].kind in ("group", "main"):
            continue
        loop = call.loops[-1]
        if call.guards[-1].branch == "if" and loop.over == f"range({asked[0].removeprefix(f'{loop.target} < ')})":
            yield fail(
                here(call),
                f"no_sync is used in every step: {asked[0]} holds in all of range({asked[0].rpartition(' ')[2]})",
                why="The gradients of these steps are averaged over no ranks.",
                owner="job",
                evidence=[written(script, call)],
                fix=[
                    edit(
                        script,
                        "Leave no_sync out in the last step before the optimizer's.",
                        call.file,
                        replaced(
                            script, call, rf"\b{re.escape(asked[0])}(?![\w.])", f"{asked[0]} - 1".replace("\\", "")
                        )
                        or spelled(script, call.file, call.guards[-1].line, f"{asked[0]}:", f"{asked[0]} - 1:"),
                    )
                ],
            )
            return
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
                fix=[
                    edit(
                        script,
                        "Use no_sync where the optimizer does not step.",
                        call.file,
                        replaced(script, call, _EITHER, r"\3 if \2 else \1"),
                    )
                ],
            )
            return
