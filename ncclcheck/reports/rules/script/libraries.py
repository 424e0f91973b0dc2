"""SCR046, SCR047: what a library leaves to the script: metrics that are logged, and where a model lies."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, State, note, warn
from ncclcheck.reports.judgement.rule import NothingToJudge
from ncclcheck.reports.subjects.script.changes import changed, replaced
from ncclcheck.reports.subjects.script.processes import INIT
from ncclcheck.reports.subjects.script.scripts import (
    edited,
    here,
    in_function,
    line_of,
    own_ways,
    reached,
    says,
    script_rule,
    with_argument,
    written,
)

_LIGHTNING = re.compile(r"(?:pytorch_)?lightning\b")
_HELD_OUT = re.compile(r"val|test|eval", re.IGNORECASE)
_METRIC = re.compile(
    r"self\.[\w.]+$|\.compute\(\)|gather|reduce|mean_across|sync"
)  # of torchmetrics, or of all ranks
_ALL_GPUS = re.compile(r"^'(?:auto|balanced|balanced_low_0|sequential)'$")
_GPU_0 = re.compile(r"^\{'': (?:0|'cuda:0'|'cuda')\}$|^'cuda:0'$")
_SEVERAL = ("WORLD_SIZE", "LOCAL_RANK", "local_rank", "ddp_find_unused_parameters", "DistributedDataParallel")
_TRAINS = re.compile(r"(?:^|\.)(?:\w*Trainer|Accelerator|DistributedDataParallel)$")
_OWN_MAP = 'device_map={"": int(os.environ.get("LOCAL_RANK", 0))}'


@script_rule("SCR046", "what Lightning logs of a validation is of all ranks", worst=State.NOTE)
def logged(script: Script) -> Iterator[Finding]:
    """
    ## What
    `self.log("val_acc", value)` without `sync_dist=True`, in a validation or test step of a LightningModule.

    ## Why it matters
    Each rank logs the number of its own samples, and rank 0's is what is shown, what a checkpoint is chosen by,
    and what ends the training early: ranks may end it in different epochs.

    ## How we know
    The call as it is written, in a file that imports Lightning. What is given as a metric object
    (`self.accuracy`, which torchmetrics reduces), or was gathered, is not judged, nor is a training step, whose
    number is for a look.

    ## Fix
    - **you** `self.log(..., sync_dist=True)`.

    ## Source
    Lightning documentation, LightningModule.log, sync_dist; "Logging", "Automatic logging".
    """
    lightning = {file.name for file in script.files if any(map(_LIGHTNING.match, file.modules))}
    if not lightning:
        raise NothingToJudge("no file imports Lightning")
    functions: set[str] = set()
    for call in script.calls:
        if call.file not in lightning or call.name not in (".log", ".log_dict") or call.on != "self":
            continue
        step = call.function.rpartition(".")[2]
        words = " ".join([step, call.arguments.get("0", "")])
        value = call.arguments.get("1", call.arguments.get("value", call.arguments.get("0", "")))
        given = {"sync_dist", "*", "rank_zero_only"} & {*call.arguments}
        if (
            given - {"sync_dist"}
            or call.arguments.get("sync_dist", "False") != "False"
            or call.function in functions
        ):
            continue
        if not _HELD_OUT.search(words) or _METRIC.search(value) or _from_metric(script, call, value):
            continue
        functions.add(call.function)
        line = line_of(script, call.file, call.line)
        new = with_argument(line, "self.log(", "sync_dist=True")
        yield note(
            here(call),
            f"{call.arguments.get('0', value)} is logged without sync_dist: the number of one rank's samples",
            evidence=[written(script, call)],
            fix=[edited(script, "Give it sync_dist=True.", call.file, {call.line: new} if new else None)],
        )


def _from_metric(script: Script, call: Call, value: str) -> bool:
    """Whether the value was made by what gathers or reduces, in the same function."""
    return any(
        re.search(r"gather|reduce", maker.name) or (maker.target == value and "compute" in maker.name)
        for maker in in_function(script, call.function)
    )


@script_rule("SCR047", "a rank's model lies on the rank's own GPU", worst=State.WARN)
def placed(script: Script) -> Iterator[Finding]:
    """
    ## What
    `from_pretrained(..., device_map="auto")` in a script of several ranks, or a device map that names GPU 0.

    ## Why it matters
    Every process spreads its copy over all GPUs of the node, so that the copies lie on top of each other: out of
    memory, or an error of Trainer or Accelerate, which refuse to wrap such a model.

    ## Seen as
    out of memory, dies

    ## How we know
    The argument as it is written, or the variable that is given nothing else, and the script starts ranks itself,
    or speaks of WORLD_SIZE or LOCAL_RANK. It is a note where it only builds a Trainer or an Accelerator: with one
    process for all GPUs it is right.

    ## Fix
    - **you** `device_map={"": int(os.environ.get("LOCAL_RANK", 0))}`, or none at all.

    ## Source
    Accelerate documentation, "Handling big models for inference"; transformers documentation, "Efficient training
    on multiple GPUs".
    """
    calls = reached(script)
    starts = any(call.name == INIT for call in calls)
    if not starts and not own_ways(script):
        raise NothingToJudge("the script starts no ranks")
    several = starts or says(script, *_SEVERAL)
    for call in calls:
        given = call.arguments.get("device_map", "")
        values = [given] if not given.isidentifier() else _values(script, call, given)
        spread = bool(values) and all(_ALL_GPUS.match(value) for value in values)
        first = bool(values) and all(_GPU_0.match(value) for value in values)
        if not spread and not first:
            continue
        text = (
            "the model of each rank is spread over all GPUs" if spread else "the model of each rank lies on GPU 0"
        )
        if not starts and not (several and not _asks(call)):
            if any(_TRAINS.search(step.name) for step in calls):
                yield note(here(call), f"{text}, if there are several: {given}", evidence=[written(script, call)])
            continue
        yield (warn if starts else note)(
            here(call),
            text,
            why="Copies of the model lie on top of each other on the same GPUs.",
            owner="job",
            evidence=[written(script, call)],
            fix=[
                changed(
                    script,
                    'device_map={"": int(os.environ.get("LOCAL_RANK", 0))}, or none.',
                    call.file,
                    replaced(script, call, r"device_map\s*=\s*(?:['\"][\w:]+['\"]|\{[^{}]*\}|\w+)", _OWN_MAP),
                    needs="os",
                )
            ],
        )


def _values(script: Script, call: Call, name: str) -> list[str]:
    """What a variable is given in the function, or at the top of the file."""
    return [
        assignment.arguments.get("0", "")
        for assignment in script.calls
        if assignment.name == "given"
        and assignment.target == name
        and assignment.function in (call.function, f"{call.file}:")
    ]


def _asks(call: Call) -> bool:
    return any(re.search(r"WORLD_SIZE|world_size|ddp|local_rank", guard.text) for guard in call.guards)
