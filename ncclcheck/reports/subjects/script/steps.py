"""What is done in every step of a training, in the loop itself and in functions that it calls."""

from __future__ import annotations

import re

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.subjects.script.scripts import DDP, SHARDED, in_function, reached, splits_model

_DEEP = 2  # functions within functions
_WAITS = "torch.cuda.synchronize"
_MAKERS = re.compile(r"^deepspeed\.initialize$|(?:^|\.)(?:Accelerator|Fabric)$")
_PREPARES = re.compile(r"^\.(?:prepare\w*|setup(?:_module)?)$")


def shares_model(script: Script) -> bool:
    """Whether a backward pass ends on no rank before all have come to it."""
    wraps = any(_wraps(call) for call in reached(script)) or is_prepared(script)
    joined = any(call.name.endswith((".join", ".Join")) and "Join" in call.name for call in script.calls)
    return wraps and not joined and not splits_model(script)


def _wraps(call: Call) -> bool:
    """DistributedDataParallel, of torch or of Apex, and FSDP."""
    return call.name in DDP or call.name.endswith(".DistributedDataParallel") or bool(SHARDED.search(call.name))


def is_prepared(script: Script) -> bool:
    """Whether Accelerate, Fabric or DeepSpeed wraps the model, and the script runs the steps itself."""
    prepared: bool | None = script.__dict__.get("is_prepared")
    if prepared is None:
        made = {call.name.rpartition(".")[2] for call in script.trace if _MAKERS.search(call.name)}
        prepares = any(_PREPARES.match(call.name) for call in script.trace)
        prepared = bool(made) and ("initialize" in made or prepares)
        prepared = script.__dict__["is_prepared"] = prepared and any(
            call.name == ".backward" and call.loops for call in script.trace
        )
    return prepared


def each_step(script: Script) -> set[str]:
    """Functions that every step runs: those with a backward pass that a loop calls, and what they lead to.

    Empty where a step waits for the GPU in any case, as one that is timed does.
    """
    functions: set[str] | None = script.__dict__.get("each_step")
    if functions is None:
        functions = script.__dict__["each_step"] = _each_step(script)
    return functions


def _each_step(script: Script) -> set[str]:
    calls = reached(script)
    loops = {(call.function, call.loops[-1]) for call in calls if call.name == ".backward" and call.loops}
    alone = {call.function for call in calls if call.name == ".backward" and not call.loops}
    waiting = {call.name for call in calls if call.loops and call.name in alone and not _within(call)}
    loops |= {(call.function, call.loops[-1]) for call in calls if call.loops and call.name in waiting}
    waiting |= {
        call.name
        for call in calls
        if call.loops and (call.function, call.loops[-1]) in loops and ":" in call.name and not _within(call)
    }
    functions = set(waiting)
    for _ in range(_DEEP):
        waiting = {
            call.name
            for function in waiting
            for call in in_function(script, function)
            if ":" in call.name and not call.loops and not call.guards
        } - functions
        functions |= waiting
    timed = {call.function for call in calls if call.name == _WAITS}
    return set() if timed & (functions | {function for function, _ in loops}) else functions


def _within(call: Call) -> bool:
    """Whether a condition within its loop decides about it."""
    return any(guard.line > call.loops[-1].line and guard.branch != "rest" for guard in call.guards)
