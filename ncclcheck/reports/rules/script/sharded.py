"""SCR043, SCR044: a model is whole before it is wrapped, and what is shared out is not taken for the whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, fail, warn, you
from ncclcheck.reports.subjects.script.changes import at_line, before, changed, moved, replaced, single
from ncclcheck.reports.subjects.script.processes import INIT
from ncclcheck.reports.subjects.script.scripts import (
    DDP,
    by_rank,
    here,
    in_function,
    of_many_ranks,
    script_rule,
    written,
)
from ncclcheck.reports.subjects.script.traced import objects, tags

_MODELS = ("module", "new", "object")
_LAYER = re.compile(
    r"\bnn\.(?!functional|parallel|\w*Loss\b)[A-Z]\w*\("
    r"|(?:Linear|Conv\dd|Sequential|Embedding|Head|Classifier|BatchNorm\dd)\("
)
# Libraries whose trainers, and methods of objects of theirs, wrap the model that they are given.
_WRAPS_ITSELF = re.compile(
    r"(?:transformers|trl|lightning|pytorch_lightning|lightning_fabric|composer|adapters|setfit)\..*Trainer$"
)
_PREPARES = re.compile(r"accelerator|fabric", re.IGNORECASE)
_WITHOUT_PARAMETERS = re.compile(
    r"\bnn\.(?:Identity|Flatten|Unflatten|\w*Dropout\w*|\w*Pool\w*|Softmax|LogSoftmax|Sigmoid|Tanh|Upsample"
    r"|(?:Leaky|Si|Ge|E|Se|Ce)?(?:LU|ReLU6?))\("
)
_ZERO = "ZeroRedundancyOptimizer"


@script_rule("SCR043", "a model is complete before it is wrapped", worst=State.WARN)
def complete(script: Script) -> Iterator[Finding]:
    """
    ## What
    A model that is changed after DistributedDataParallel has taken it: `SyncBatchNorm.convert_sync_batchnorm` of
    the wrapper, parameters whose `requires_grad` is set, or a layer that is put in the place of another one.

    ## Why it matters
    The wrapper looks at the parameters once, as it is built. Layers that are converted later are other layers
    than those whose gradients it averages; a parameter that is frozen later is still waited for, and the next
    step raises "Expected to have finished reduction in the prior iteration".

    ## Seen as
    hangs, dies

    ## How we know
    The script is followed from its first line: the wrapper is given to the conversion; or, after it was built, and
    in no loop over epochs or steps, `requires_grad` is set of parameters of it or of the model inside. A Trainer
    is judged where it is imported from a library whose trainers wrap; layers without parameters are not.

    ## Fix
    - **you** convert and freeze first, then wrap.

    ## Source
    PyTorch documentation, torch.nn.parallel.DistributedDataParallel ("You should never try to change your model's
    parameters after wrapping"), torch.nn.SyncBatchNorm.convert_sync_batchnorm.
    """
    for call in script.trace:
        given = objects(call, "model", "ddp") | objects(call, "0", "ddp")
        prepares = call.name in (".prepare", ".setup") and _PREPARES.search(call.on)
        if given and (prepares or _WRAPS_ITSELF.match(call.name)):
            yield warn(
                here(call),
                f"{call.name.rpartition('.')[2]} is given a model that is wrapped already, and wraps it too",
                why="The outer wrapper finds no model's attributes, and gradients are averaged twice.",
                owner="job",
                evidence=[written(script, call)],
                fix=[_bare(script, call, "model" if objects(call, "model", "ddp") else "0")],
            )
            return
    of_many_ranks(script)
    for call in script.trace:
        if (
            call.name == "replace"
            and not _WITHOUT_PARAMETERS.search(call.arguments.get("0", ""))
            and not _comes_before(script, call)
            and _LAYER.search(call.arguments.get("0", ""))
            and not call.on.startswith("self.")
        ):
            yield warn(
                here(call),
                f"{call.on} is replaced after the model was wrapped",
                why="The wrapper averages gradients of layers that it saw: each rank trains the new one alone.",
                owner="job",
                evidence=[written(script, call)],
                fix=[_earlier(script, call, None)],
            )
            return
    wrapped: dict[str, Call] = {}
    places: set[str] = set()
    for call in script.trace:
        if call.name == INIT:
            wrapped = {}  # another way to start
        if call.name in DDP:
            for model in objects(call, "0", *_MODELS) | objects(call, "module", *_MODELS):
                wrapped[model] = call
        given = objects(call, "0", "ddp") if call.name.endswith("convert_sync_batchnorm") else set()
        frozen = _changed(call, wrapped)
        if (given or frozen) and call.place not in places:
            places.add(call.place)
            if frozen and frozen.arguments.get("find_unused_parameters") == "True":
                continue  # it looks anew in each step
            text = "batch norm is converted after the model was wrapped"
            if frozen:
                text = f"requires_grad is set after the model was wrapped at {frozen.place}"
            yield warn(
                here(call),
                text,
                why="The wrapper has looked at its parameters before, and averages those that it saw.",
                owner="job",
                evidence=[written(script, call), *([written(script, frozen)] if frozen else [])],
                fix=[_earlier(script, call, frozen)],
            )


def _comes_before(script: Script, call: Call) -> bool:
    """Whether all wrappers of its function come later: in what runs twice, the first one has taken the model."""
    wraps = [wrap for wrap in in_function(script, call.function) if wrap.name in DDP and not wrap.loops]
    return bool(wraps) and all(wrap.line > call.line for wrap in wraps)


def _bare(script: Script, call: Call, key: str) -> Remedy:
    name = call.arguments.get(key, "")
    ask = rf"\bmodel\s*=\s*{name}(?=\s*[,)])" if key == "model" else rf"(?<=\(){name}(?=\s*[,)])"
    change = (
        replaced(script, call, ask, f"{'model=' if key == 'model' else ''}{name}.module")
        if name.isidentifier()
        else None
    )
    return changed(script, "Give it the bare model.", call.file, change)


def _earlier(script: Script, call: Call, wrap: Call | None) -> Remedy:
    """One line that changes the wrapped model goes before the wrap, and names the model that is given to it."""
    text = "Do it before the model is wrapped."
    wraps = [other for other in script.calls if other.name in DDP and other.function == call.function
             and other.line < call.line and (wrap is None or other.line == wrap.line)]  # fmt: skip
    line = single(script, call)
    model = wraps[-1].arguments.get("0", wraps[-1].arguments.get("module", "")) if wraps else ""
    if not line or not re.fullmatch(r"[\w.]+", model):
        return you(text)
    new = re.sub(rf"\b{re.escape(wraps[-1].target)}\b(?:\.module\b)?", model, line) if wraps[-1].target else ""
    call = next((other for other in script.calls if other.place == call.place and other.name == call.name), call)
    return changed(script, text, call.file, moved(script, call, wraps[-1], text=new) if new else None)


def _changed(call: Call, wrapped: dict[str, Call]) -> Call | None:
    """The wrapper of the model whose parameters are frozen, or no longer, outside of the training's loops."""
    around = [
        loop for loop in call.loops if "param" not in f"{loop.over} {loop.target}" and "modules(" not in loop.over
    ]
    if call.name not in ("requires_grad", ".requires_grad_") or around:
        return None
    begins = call.loops[-1].line if call.loops else call.line
    inner = [guard for guard in call.guards if guard.file == call.file and begins < guard.line <= call.line]
    partly = "part" in tags(call, "on") or inner or any(tag.startswith("in:") for tag in tags(call, "on"))
    built = {tag.partition(":")[2] for tag in tags(call, "on") if tag.startswith(("params:", "in:"))}
    wrappers = {tag for tag in built if tag.startswith("ddp@")}
    models = {tag for tag in built if tag in wrapped} | wrappers
    if not models or not partly or objects(call, "on", "new") - {*wrapped}:
        return None  # a model that is frozen as a whole is waited for by nobody
    made = next((made for tag, made in wrapped.items() if tag in models), next(iter(wrapped.values()), None))
    return None if made and made.function == call.function and made.line > call.line else made


@script_rule("SCR044", "what is shared out is not taken for the whole", worst=State.FAIL)
def whole(script: Script) -> Iterator[Finding]:
    """
    ## What
    `torch.nn.utils.clip_grad_norm_` of a model in FullyShardedDataParallel; `state_dict()` of a
    ZeroRedundancyOptimizer that `consolidate_state_dict` has not gathered.

    ## Why it matters
    Each rank holds a part: the norm is that of a part, each rank scales by another number, and the model is
    trained by gradients that do not fit. The optimizer raises "Optimizer state has not been consolidated on this
    rank".

    ## Seen as
    dies, wrong results

    ## How we know
    The script is followed from its first line: the parameters are those of the wrapper, and FSDP shares them out
    (with fully_shard, whose parameters know that they are parts, nothing is wrong). The optimizer's class, and no
    call of `consolidate_state_dict` anywhere.

    ## Fix
    - **you** `model.clip_grad_norm_(max_norm)`; `optimizer.consolidate_state_dict(to=0)` on all ranks, then
      `state_dict()` on rank 0.

    ## Source
    PyTorch documentation, FullyShardedDataParallel.clip_grad_norm_;
    ZeroRedundancyOptimizer.consolidate_state_dict.
    """
    of_many_ranks(script)
    gathered = any(call.name.endswith("consolidate_state_dict") for call in script.calls)
    places: set[str] = set()
    zero = {call.target for call in script.trace if call.name.endswith(_ZERO) and call.target}
    for call in script.trace:
        if call.place in places:
            continue
        if call.name.endswith("nn.utils.clip_grad_norm_") or call.name.endswith("clip_grad.clip_grad_norm_"):
            given = {tag.removeprefix("params:") for tag in tags(call, "0") if tag.startswith("params:")}
            if given and all(tag.startswith("fsdp@") for tag in given):
                places.add(call.place)
                yield warn(
                    here(call),
                    "the norm is that of this rank's part of the gradients: FSDP shares them out",
                    why="Each rank scales its part by another number.",
                    owner="job",
                    evidence=[written(script, call)],
                    fix=[_by_wrapper(script, call)],
                )
        elif call.name == ".state_dict" and call.on in zero and not gathered:
            places.add(call.place)
            yield fail(
                here(call),
                f"the state of {call.on} is shared out, and consolidate_state_dict has not gathered it",
                why='ZeroRedundancyOptimizer raises "Optimizer state has not been consolidated on this rank".',
                owner="job",
                evidence=[written(script, call)],
                fix=[_gathered(script, call)],
            )


def _by_wrapper(script: Script, call: Call) -> Remedy:
    ask = r"[\w.]*clip_grad_norm_\((\w+)\.parameters\(\),\s*"
    change = replaced(script, call, ask, r"\1.clip_grad_norm_(")
    return changed(script, "Call the wrapper's own clip_grad_norm_(max_norm), on all ranks.", call.file, change)


def _gathered(script: Script, call: Call) -> Remedy:
    """Before the condition on the rank, which is the last one around it; or before the statement."""
    new, guard = f"{call.on}.consolidate_state_dict(to=0)", by_rank(call)
    text = f"Call {new} on all ranks before."
    if guard is None:
        return changed(script, text, call.file, before(script, call, new))
    plain = guard.branch == "if" and guard.file in ("", call.file) and guard == call.guards[-1]
    return changed(script, text, call.file, at_line(script, call.file, guard.line, new) if plain else None)
