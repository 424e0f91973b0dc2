"""SCR031, SCR033: what is asked of a wrapped model, and what was made before it was wrapped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Guard, Script
from ncclcheck.reports.judgement.findings import Finding, State, fail, warn
from ncclcheck.reports.subjects.script.changes import changed, moved
from ncclcheck.reports.subjects.script.progress import same_on_all
from ncclcheck.reports.subjects.script.scripts import (
    DDP,
    edited,
    here,
    line_of,
    script_rule,
    written,
)
from ncclcheck.reports.subjects.script.traced import apart, objects, tags

# What DistributedDataParallel and every Module have (torch 2.13).
_OF_ALL = re.compile(
    r"_\w*|module|device\w*|output_device|dim|process_group|require\w*|find_unused_parameters|broadcast_\w+|bucket_\w+"
    r"|gradient_as_bucket_view|static_graph|reducer|logger|will_sync_module_buffers|mixed_precision|parameters_to_ignore"
    r"|training|parameters|named_\w+|children|modules|buffers|state_dict|load_state_dict|register_\w+|get_\w+|set_\w+"
    r"|add_module|apply|cuda|ipu|xpu|mtia|cpu|type|float|double|half|bfloat16|to|to_empty|forward|train|eval"
    r"|requires_grad_|zero_grad|share_memory|extra_repr|compile|call_super_init|dump_patches|T_destination"
    r"|no_sync|join\w*|scatter|to_kwargs|gather|unused_parameters|delay_\w+|skip_\w+|use_\w+|is_multi_device_module|ddp_\w+|optimizer"
)
_ASKS = re.compile(r"hasattr|isinstance|module|[pP]arallel|distributed|ddp|try|except|unwrap", re.IGNORECASE)
# An option of the script's own says what is done with the model, and not which one it is.
_OPTION = re.compile(r"(?:not )?(?:args|opts?|cfg|config|hparams|FLAGS)\.\w+")
_OF_ENGINES = re.compile(r"(?:save|load)_checkpoint|backward|step|save_16bit_model")
_SHARDS = re.compile(r"(?:^|\.)(?:FullyShardedDataParallel|FSDP|fully_shard)$")


@script_rule("SCR031", "a wrapped model is asked for what it has", worst=State.FAIL)
def attributes(script: Script) -> Iterator[Finding]:
    """
    ## What
    An attribute or a method of the user's model, `model.generate(...)` or `model.config`, read from the
    DistributedDataParallel around it.

    ## Why it matters
    The wrapper hands on `forward` alone: it raises "'DistributedDataParallel' object has no attribute", on all
    ranks, as soon as that line is reached, which may be after the first epoch.

    ## How we know
    The script is followed from its first line, through its functions and attributes: there the variable holds
    nothing but the wrapper, and neither it nor a Module has that name. Where a condition nearby asks what the
    model is, and where the wrapper is given such an attribute, nothing is reported.

    ## Fix
    - **you** `model.module.generate(...)`.

    ## Source
    PyTorch source, torch/nn/parallel/distributed.py.
    """
    given = {text.rpartition(".")[2] for call in script.trace for text in [call.target] if "." in text}
    places: set[str] = set()
    for call in script.trace:
        name = call.arguments.get("0", "").strip("'\"")
        if call.name != "attribute" or _OF_ALL.fullmatch(name) or name in given or call.place in places:
            continue
        made = tags(call, "made")
        if not made or any(not tag.startswith("ddp@") for tag in made):
            continue
        if any(_ASKS.search(guard.text) for guard in call.guards):
            continue
        always = all(
            guard.kind in ("main", "group") for wrap in script.trace if wrap.name in DDP for guard in wrap.guards
        )
        if not all(_is_sure(guard) or (always and _OPTION.fullmatch(guard.text)) for guard in call.guards):
            continue
        if _OF_ENGINES.fullmatch(name) and call.guards:
            continue
        places.add(call.place)
        line = line_of(script, call.file, call.line)
        old = f"{call.on}.{name}"
        new = re.sub(rf"(?<![\w.]){re.escape(old)}\b", f"{call.on}.module.{name}", line)
        yield fail(
            here(call),
            f"{old} is asked of DistributedDataParallel, which has no {name}",
            why=f"It raises \"'DistributedDataParallel' object has no attribute '{name}'\" on all ranks.",
            owner="job",
            evidence=[written(script, call)],
            fix=[edited(script, "Ask the model inside.", call.file, {call.line: new} if new != line else None)],
        )


def _is_sure(guard: Guard) -> bool:
    """Under an option the variable may hold another model than the one that is seen to be wrapped."""
    return guard.kind != "other" or guard.branch == "rest" or same_on_all(guard.text)


@script_rule("SCR033", "the optimizer is made of the parameters that are trained", worst=State.WARN)
def optimized(script: Script) -> Iterator[Finding]:
    """
    ## What
    An optimizer that was made of a model's parameters before FSDP took the model.

    ## Why it matters
    FSDP puts parameters of its own in the place of the model's: the optimizer holds the old ones, and its steps
    change nothing, or other tensors than those that are trained.

    ## How we know
    The order in which a rank comes to the two calls, through functions and attributes; the model is the same one,
    and no other optimizer is made after it was wrapped. DistributedDataParallel keeps the parameters, and is not
    judged.

    ## Fix
    - **you** make the optimizer after the model is wrapped.

    ## Source
    PyTorch documentation, torch.distributed.fsdp.FullyShardedDataParallel, "The optimizer must be initialized
    after the module has been wrapped"; fully_shard.
    """
    prepared = [
        call for call in script.trace if call.name.startswith(".prepare") or call.name.startswith("deepspeed.")
    ]
    if any("*" in call.arguments or not _is_of_loaders(call) for call in prepared):
        return
    made = [
        (at, call)
        for at, call in enumerate(script.trace)
        if "params:" in call.values.get("0", "") and _makes(call)
    ]
    for at, call in enumerate(script.trace):
        if not _SHARDS.search(call.name) or "0" not in call.values:
            continue
        models = objects(call, "0", "module", "new", "object")
        before = [other for place, other in made if place < at and _of(other) & models and not apart(other, call)]
        after = [call for place, call in made if place > at]
        if before and not after and len(_of(before[0])) == 1:
            yield warn(
                here(before[0]),
                f"the optimizer is made before the model is wrapped at {call.place}",
                why="It holds the parameters that FSDP has replaced: its steps do not change what is trained.",
                owner="job",
                evidence=[written(script, before[0]), written(script, call)],
                fix=[
                    changed(
                        script,
                        "Make it after the model is wrapped.",
                        call.file,
                        moved(script, before[0], call, behind=True) if _keeps_name(call) else None,
                    )
                ],
            )
            return


def _keeps_name(wrap: Call) -> bool:
    """Whether the wrapped model is called as the model was."""
    return bool(wrap.target) and wrap.target == wrap.arguments.get("0", wrap.arguments.get("module"))


def _is_of_loaders(call: Call) -> bool:
    """Whether a library is given loaders alone, and neither model nor optimizer."""
    given = [text for key, text in call.values.items() if key.isdecimal()]
    return bool(given) and all(text.startswith("loader@") or " loader@" in text for text in given)


def _makes(call: Call) -> bool:
    return call.name[:1] != "." or call.name[1:2].isupper()


def _of(call: Call) -> set[str]:
    return {tag.removeprefix("params:") for tag in tags(call, "0") if tag.startswith("params:")}
