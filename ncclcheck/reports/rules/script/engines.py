"""SCR037 to SCR039: what a library, or the wrapper, does only for what goes through it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, fail, note, warn
from ncclcheck.reports.judgement.rule import NothingToJudge
from ncclcheck.reports.subjects.script.changes import after, changed, replaced, spelled
from ncclcheck.reports.subjects.script.scripts import (
    DDP,
    LOADER,
    edited,
    here,
    line_of,
    of_own_steps,
    script_rule,
    written,
)
from ncclcheck.reports.subjects.script.steps import is_prepared
from ncclcheck.reports.subjects.script.traced import made_at, objects, passes, tags, training_loaders

_MAKERS = re.compile(r"^deepspeed\.initialize$|(?:^|\.)(?:Accelerator|Fabric)$")
_OWN_BACKWARD = re.compile(
    r"accelerator|fabric|engine|manual_backward|^self$|deepspeed|^ds_|amp|scal", re.IGNORECASE
)
_ASKS = re.compile(r"accelerat|deepspeed|fabric|fp16|amp\b|engine", re.IGNORECASE)


@script_rule("SCR037", "Accelerate shares the samples out", worst=State.WARN)
def prepared(script: Script) -> Iterator[Finding]:
    """
    ## What
    A training loader that does not go through `accelerator.prepare`, while the model does.

    ## Why it matters
    Every process goes through the whole dataset: an epoch takes as long as on one GPU.

    ## How we know
    The script is followed from its first line: a backward pass takes its samples from that loader, no `prepare`
    is given it, and what all of these are given is known. Loaders with a sampler that knows ranks are not judged.

    ## Fix
    - **you** `loader = accelerator.prepare(loader)`.

    ## Source
    Accelerate documentation, Accelerator.prepare.
    """
    if not any(call.name.endswith("Accelerator") for call in script.trace):
        raise NothingToJudge("the script makes no Accelerator")
    given = [call for call in script.trace if call.name.startswith(".prepare")]
    if not given or any("*" in call.arguments or not _is_known(call.values) for call in given):
        return
    through = set().union(*({*text.split()} for call in given for text in call.values.values()))
    for loader in training_loaders(script):
        made = made_at(script, loader)
        goes = {loader, f"from:{loader}"} & through
        if goes and made and objects(made, "sampler", "sampler"):
            yield note(
                here(made),
                "the samples are shared out twice: by DistributedSampler, and by accelerator.prepare",
                evidence=[written(script, made), written(script, given[0])],
                fix=[
                    changed(
                        script,
                        "Leave the sampler out: prepare shares them out.",
                        made.file,
                        replaced(script, made, r"(?<=, )sampler=[\w.]+(?=[,)])", "shuffle=True"),
                    )
                ],
            )
        if goes or made is None or made.name not in LOADER:
            continue
        knows = objects(made, "sampler", "sampler", "sampled") or "byrank" in tags(made, "0") | tags(
            made, "sampler"
        )
        if not knows:
            yield warn(
                here(made),
                "the loader of the training does not go through accelerator.prepare",
                why="Every process goes through the whole dataset.",
                owner="job",
                evidence=[written(script, made), written(script, given[0])],
                fix=[_given_too(script, made, given[0])],
            )


def _given_too(script: Script, made: Call, prepare: Call) -> Remedy:
    """After the later one of the two, in one function."""
    text, name = "Give it to accelerator.prepare, and use what that returns.", made.target
    same = (
        made.function == prepare.function and name.isidentifier() and prepare.on.isidentifier() and not made.loops
    )
    later = max(made, prepare, key=lambda call: call.line)
    change = after(script, later, f"{name} = {prepare.on}.prepare({name})") if same and not later.loops else None
    return changed(script, text, later.file, change)


def _by_engine(script: Script, call: Call) -> Remedy:
    text = "Call the engine's step(); it clears the gradients too."
    names = {
        step.on for step in passes(script) if objects(step, "on", "engine") and step.function == call.function
    }
    clears = any("zero_grad" in file.words for file in script.files)
    name = names.pop() if len(names) == 1 else ""
    change = spelled(script, call.file, call.line, f"{call.on}.step()", f"{name}.step()") if name else None
    return changed(script, text, call.file, None if clears else change)


def _by_wrapper(script: Script, backward: Call, wraps: list[Call]) -> Remedy:
    """`model.module(x)` in the loop around the backward pass is `model(x)`."""
    text, names = "Call the wrapped model in the forward pass.", {wrap.target for wrap in wraps} - {""}
    change: dict[int, str | None] = {}
    for at in range(backward.loops[-1].line + 1, backward.line + 1):
        line = line_of(script, backward.file, at)
        new = line
        for name in names:
            new = re.sub(rf"(?<![\w.]){re.escape(name)}\.module\(", f"{name}(", new)
        if new != line:
            change[at] = new
    return changed(script, text, backward.file, change or None)


def _is_known(values: dict[str, str]) -> bool:
    """Whether what stands there are objects that were made in the script."""
    return all("@" in text for key, text in values.items() if key != "on") and len(values) > 1


@script_rule("SCR038", "DeepSpeed's engine takes the steps", worst=State.WARN)
def stepped(script: Script) -> Iterator[Finding]:
    """
    ## What
    `optimizer.step()` after `engine.backward(loss)`.

    ## Why it matters
    The engine's own `step` counts micro-batches, clips, unscales, steps the schedule and clears gradients: all of
    that is passed by, and with gradient accumulation the optimizer steps too often.

    ## How we know
    The script is followed from its first line: the engine of `deepspeed.initialize` does the backward pass, its
    `step` is called nowhere, and that of the optimizer that came with it, or was given to it, is.

    ## Fix
    - **you** `engine.step()`, and no `zero_grad`.

    ## Source
    DeepSpeed documentation, "Getting started", "Training".
    """
    engines = {engine for call in passes(script) for engine in objects(call, "on", "engine")}
    steps = [call for call in script.trace if call.name == ".step"]
    if not engines:
        raise NothingToJudge("no engine of DeepSpeed does the backward pass")
    if any(objects(call, "on", "engine") for call in steps):
        return
    for call in steps:
        if {f"of:{engine}" for engine in engines} & tags(call, "on"):
            yield warn(
                here(call),
                "the optimizer takes the step that DeepSpeed's engine should take",
                why="Accumulation, clipping, loss scaling and the schedule of the engine are passed by.",
                owner="job",
                evidence=[written(script, call)],
                fix=[_by_engine(script, call)],
            )
            return


@script_rule("SCR045", "the library does the backward pass", worst=State.NOTE)
def backward(script: Script) -> Iterator[Finding]:
    """
    ## What
    `loss.backward()` in a script whose Accelerator, Fabric or DeepSpeed engine has a `backward` of its own.

    ## Why it matters
    The library's own scales the loss for mixed precision, divides it for accumulation, and lets DeepSpeed reduce
    the gradients that it shares out: all of that is passed by.

    ## How we know
    The script is followed from its first line: it makes an Accelerator, a Fabric or an engine, prepares the
    model with it, and calls `backward` in a loop on something else. Newer versions of DeepSpeed take such a call
    too: it is a note.

    ## Fix
    - **you** `accelerator.backward(loss)`, `fabric.backward(loss)`, `engine.backward(loss)`.

    ## Source
    Accelerate documentation, Accelerator.backward; Lightning documentation, Fabric.backward; DeepSpeed
    documentation, "Training".
    """
    if not is_prepared(script):
        raise NothingToJudge("no library prepares the model for steps of the script's own")
    maker = next(call for call in script.trace if _MAKERS.search(call.name))
    kind = maker.name.rpartition(".")[2]
    places: set[str] = set()
    for call in passes(script):
        own = _OWN_BACKWARD.search(call.on) or objects(call, "on", "engine") or call.arguments.get("0")
        if (
            own
            or call.place in places
            or (call.guards and any(guard.kind == "other" and _ASKS.search(guard.text) for guard in call.guards))
        ):
            continue
        places.add(call.place)
        name = "engine" if kind == "initialize" else kind.lower()
        line = line_of(script, call.file, call.line)
        new = (
            line.replace(f"{call.on}.backward()", f"{name}.backward({call.on})") if maker.target == name else line
        )
        yield note(
            here(call),
            f"{call.on}.backward() passes {kind if kind != 'initialize' else 'the engine'} by, which has its own",
            evidence=[written(script, call), written(script, maker)],
            fix=[edited(script, f"Call {name}.backward({call.on}).", call.file,
                        {call.line: new} if new != line else None)],
        )  # fmt: skip


@script_rule("SCR039", "the forward pass goes through the wrapper", worst=State.FAIL)
def through(script: Script) -> Iterator[Finding]:
    """
    ## What
    A model that is wrapped in DistributedDataParallel, and trained through the model inside: `model.module(x)`.

    ## Why it matters
    The wrapper prepares the exchange of gradients in its own forward: without it ranks average nothing, and each
    trains a model of its own.

    ## How we know
    The script is followed from its first line: what backward is called on was made by the model inside, and none
    of the script's backward passes was made by the wrapper.

    ## Fix
    - **you** call the wrapper, `model(x)`.

    ## Source
    PyTorch documentation, torch.nn.parallel.DistributedDataParallel.
    """
    of_own_steps(script)
    every = [(call, tags(call, "on") | tags(call, "0")) for call in passes(script)]
    wraps = [call for call in script.trace if call.name in DDP]
    always = all(guard.kind in ("main", "group") for call in wraps for guard in call.guards)
    if not always and any(tag.startswith("via:") for _, names in every for tag in names):
        return  # the model inside may be what is trained where there is no group
    for call, made in every:
        if any(tag.startswith("via:") for tag in made):
            continue
        past = sorted(tag.removeprefix("past:") for tag in made if tag.startswith("past:"))
        if past:
            yield fail(
                here(call),
                "the loss was made past DistributedDataParallel, by the model inside it",
                why="Its gradients are averaged over no ranks: each trains a model of its own.",
                owner="job",
                evidence=[written(script, call)],
                fix=[_by_wrapper(script, call, wraps)],
            )
            return
