"""SCR028: processes that use CUDA are not forked from one that has used it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, State, fail, warn
from ncclcheck.reports.subjects.script.processes import INIT
from ncclcheck.reports.subjects.script.scripts import (
    edited,
    here,
    in_function,
    line_of,
    reached,
    script_rule,
    sets_spawn,
    written,
)

_DEEP = 4  # functions within functions that are followed
_PROCESS = re.compile(r"(?:^(?:torch\.)?multiprocessing(?:\.\w+)*)\.(?:Process|start_processes)$")
# What opens CUDA in the process that calls it; seeds and is_available only put off or ask.
_OPENS = re.compile(
    r"torch\.cuda\.(?:set_device|init|current_device|synchronize|mem_get_info"
    r"|get_device_(?:properties|name|capability)|memory_allocated|memory_reserved)$"
)


@script_rule("SCR028", "processes that use CUDA are not forked from one that has used it", worst=State.FAIL)
def forked(script: Script) -> Iterator[Finding]:
    """
    ## What
    CUDA used in the parent, at the top of the script or before `Process(...)`, and used again by the function that
    this process runs, while the process is forked.

    ## Why it matters
    The process raises "Cannot re-initialize CUDA in forked subprocess", or hangs in the driver; the parent waits
    for it in `join`.

    ## Seen as
    hangs

    ## How we know
    The order of the lines: `.cuda()`, `.to("cuda")`, `set_device` and the like in the function that builds the
    process, in functions that it has called, or at the top of the script; then `multiprocessing.Process` with a
    target that uses CUDA. It fails where fork is asked for, and is a warning where nothing is: Linux forks then up
    to Python 3.13. `mp.spawn`, `set_start_method("spawn")` and contexts of their own do not fork.

    ## Fix
    - **you** build it by `get_context("spawn").Process(...)`, or use CUDA in the processes only.

    ## Source
    PyTorch documentation, "Multiprocessing best practices", "CUDA in multiprocessing"; pytorch/pytorch#40403.
    """
    if sets_spawn(script):
        return
    calls = reached(script)
    for call in calls:
        if not (_PROCESS.search(call.name) and _child(script, call)):
            continue
        asked = any(
            call.name.endswith("set_start_method") and "'fork'" in call.arguments.values() for call in calls
        )
        asked |= call.arguments.get("start_method") == "'fork'"
        if (call.name.endswith(".start_processes") and not asked) or not (opened := _opened(script, call)):
            continue
        line = line_of(script, call.file, call.line)
        old = f"{call.on}.Process("
        new = line.replace(old, f'{call.on}.get_context("spawn").Process(') if line.count(old) == 1 else ""
        text = f"CUDA is used before, at line {opened.line}, and again in the process that is forked here"
        make = fail if asked else warn
        yield make(
            here(call),
            text,
            why='The process raises "Cannot re-initialize CUDA in forked subprocess".',
            owner="job",
            evidence=[written(script, opened), written(script, call)],
            fix=[edited(script, "Let it begin anew, by spawn.", call.file, {call.line: new} if new else None)],
        )


def _child(script: Script, call: Call) -> bool:
    """Whether the function that it runs uses CUDA, as far as names tell."""
    target = call.arguments.get("target", call.arguments.get("0", ""))
    handed = re.findall(r"\w+", call.arguments.get("args", ""))  # one of them may be what it runs
    return any(_uses(script, f"{call.file}:{name}") for name in (target, *handed))


def _uses(script: Script, name: str) -> bool:
    inside = in_function(script, name)
    nccl = any(call.name == INIT and "nccl" in "".join(call.arguments.values()) for call in inside)
    named = any(call.name == "torch.device" and "cuda" in call.arguments.get("0", "") for call in inside)
    return nccl or named or _first(script, name, _DEEP) is not None


def _opened(script: Script, call: Call) -> Call | None:
    """What opens CUDA before it, in its function or at the top of its file."""
    before = [other for other in in_function(script, call.function) if other.line < call.line]
    if call.function != f"{call.file}:":
        before += in_function(script, f"{call.file}:")
    for earlier in before:
        certain = earlier.guards == call.guards[: len(earlier.guards)]
        if certain and (_opens(earlier) or _first(script, earlier.name, _DEEP)):
            return earlier
    return None


def _first(script: Script, function: str, deep: int) -> Call | None:
    """The first call of a function of the script's own that opens CUDA whatever it is given."""
    for call in in_function(script, function) if deep and ":" in function else []:
        if not call.guards and (_opens(call) or _first(script, call.name, deep - 1)):
            return call
    return None


def _opens(call: Call) -> bool:
    device = call.arguments.get("device", call.arguments.get("0", ""))
    moved = call.name == ".to" and re.match(r"f?['\"]cuda", device)
    return call.name == ".cuda" or bool(moved) or bool(_OPENS.fullmatch(call.name))
