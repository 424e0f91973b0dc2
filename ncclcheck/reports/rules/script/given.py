"""SCR042, SCR048: what a collective is given fits it, and the group is there as long as it is used."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, fail, note, warn, you
from ncclcheck.reports.subjects.script.changes import changed, moved
from ncclcheck.reports.subjects.script.processes import INIT
from ncclcheck.reports.subjects.script.scripts import (
    COLLECTIVES,
    DDP,
    DIST,
    by_rank,
    edited,
    given_to,
    here,
    line_of,
    of_any_start,
    of_many_ranks,
    says,
    script_rule,
    written,
)
from ncclcheck.reports.subjects.script.traced import tags

# Collective -> the argument that names one rank, and its position.
_NAMES_A_RANK = {
    "broadcast": ("src", "1"), "broadcast_object_list": ("src", "1"), "reduce": ("dst", "1"),
    "gather": ("dst", "2"), "gather_object": ("dst", "2"),
    "scatter": ("src", "2"), "scatter_object_list": ("src", "2"),
}  # fmt: skip
_OF_TENSORS = {f"{DIST}{name}" for name in (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather", "reduce_scatter",
    "scatter",
)}  # fmt: skip
_GIVEN = {"all_gather": "1", "all_gather_into_tensor": "1", "reduce_scatter": "1"}  # where the own tensor stands
_ELSEWHERE = ("set_default_device", "set_default_tensor_type")
_ASK = ("get_rank", "get_world_size")
_NO_USE = {INIT, f"{DIST}is_initialized", f"{DIST}is_available", f"{DIST}destroy_process_group"}


@script_rule("SCR042", "a collective is given what fits it", worst=State.FAIL)
def fitting(script: Script) -> Iterator[Finding]:
    """
    ## What
    A collective whose `src` or `dst` is each rank's own number; `new_group` with other ranks on each process; a
    tensor of the CPU in a collective over NCCL; a collective with `async_op=True` whose handle nobody keeps.

    ## Why it matters
    With `src=rank` every rank sends to all, and none receives: the calls do not fit each other, and the job
    hangs or goes on with other numbers on each rank. All processes must make all groups, in one order. NCCL
    knows no tensors of the CPU: "No backend type associated with device type cpu". Without `wait()` the tensor
    is read before the sum is in it.

    ## Seen as
    hangs, dies, wrong results

    ## How we know
    The script is followed from its first line: the argument is the rank itself; or the list of ranks is made of
    the rank, in no loop; or, in a loop over all groups, it stands under `i == my_group`; or the tensor was made or
    moved to the CPU and not moved since, `init_process_group` is given "nccl" and the call no group of its own.
    The handle of an asynchronous collective is given to no variable, and no `wait()` stands in its line.

    ## Fix
    - **you** name one rank for all, `src=0`; make all groups on all processes; `.cuda()` before the collective;
      `handle.wait()` before the tensor is used.

    ## Source
    PyTorch documentation, torch.distributed, "Collective functions", "Groups" and "Backends".
    """
    calls = of_any_start(script)
    reported: set[tuple[str, int]] = set()
    for call in script.trace:
        if not call.name.startswith(DIST) or (call.file, call.line) in reported:
            continue
        finding = (
            _own_number(script, call)
            or _own_group(script, call)
            or _one_of_many(script, call)
            or _of_the_cpu(script, call)
        )
        if finding:
            reported.add((call.file, call.line))
            yield finding
    if slow := _over_gloo(script):
        yield slow
    for call in calls:
        asked = call.name in COLLECTIVES and call.arguments.get("async_op") == "True"
        kept = call.target or call.inner or any(
            ".wait(" in line_of(script, call.file, at) or "return" in line_of(script, call.file, at)
            for at in range(call.first, call.last + 1)
        )  # fmt: skip
        if asked and not kept:
            yield warn(
                here(call),
                f"{call.name.rpartition('.')[2]} runs on its own, and nobody keeps its handle to wait for it",
                why="The tensor is read before the other ranks' numbers are in it.",
                owner="job",
                evidence=[written(script, call)],
                fix=[_not_async(script, call)],
            )


def _over_gloo(script: Script) -> Finding | None:
    """Gradients of models on GPUs that go over gloo."""
    starts = [call for call in script.trace if call.name == INIT]
    over = starts and all(given_to(script, start, "backend", "0").strip("'\"") == "gloo" for start in starts)
    wraps = [call for call in script.trace if call.name in DDP]
    on_gpus = any(call.arguments.get("device_ids", "None") != "None" for call in wraps)
    if not over or not on_gpus or says(script, "nccl"):
        return None
    return note(
        here(starts[0]),
        "the group is gloo's, and the models lie on GPUs: their gradients go through the CPU",
        evidence=[written(script, starts[0]), written(script, wraps[0])],
        fix=[you("Start the group with nccl.")],
    )


def _not_async(script: Script, call: Call) -> Remedy:
    line = line_of(script, call.file, call.line)
    new = re.sub(r", *async_op=True", "", line)
    return edited(script, "Leave async_op out, or wait for the handle.", call.file,
                  {call.line: new} if new != line else None)  # fmt: skip


def _own_number(script: Script, call: Call) -> Finding | None:
    """A collective that names each rank itself."""
    named, position = _NAMES_A_RANK.get(call.name.removeprefix(DIST), ("", ""))
    given = call.arguments.get(named, call.arguments.get(position, ""))
    marks = tags(call, named) | tags(call, position if named not in call.arguments else "")
    if not named or not given or not {"rank", "local"} & marks or by_rank(call):
        return None
    line = line_of(script, call.file, call.line)
    new = re.sub(rf"\b{named}={re.escape(given)}", f"{named}=0", line)
    return fail(
        here(call),
        f"{named}={given} is another number on each rank",
        why="Each rank takes itself for the one: the calls do not fit each other, and the job hangs.",
        owner="job",
        evidence=[written(script, call)],
        fix=[edited(script, "Name one rank for all.", call.file, {call.line: new} if new != line else None)],
    )


def _own_group(script: Script, call: Call) -> Finding | None:
    """A group of other ranks on each process, where each makes its own alone."""
    given = tags(call, "ranks") | tags(call, "0")
    local = call.arguments.get("use_local_synchronization") == "True"
    unlike = {"rank", "local", "byrank", "first"} & given
    if call.name != f"{DIST}new_group" or not unlike or local or by_rank(call):
        return None
    made = [way for way in script.trace if way.place == call.place]
    if any(loop.target and "rank" not in loop.over for way in made for loop in way.loops):
        return None  # one of many that each process makes
    return fail(
        here(call),
        "each process makes a group of its own ranks, and not those of the others",
        why="new_group is entered by all processes of the job, for each group and in one order: they do not fit.",
        owner="job",
        evidence=[written(script, call)],
        fix=[you("Make all groups on all processes, in one order, and keep that of the own rank.")],
    )


def _one_of_many(script: Script, call: Call) -> Finding | None:
    """A loop over all groups, in which each process makes its own alone."""
    if (
        call.name != f"{DIST}new_group"
        or not call.loops
        or call.arguments.get("use_local_synchronization") == "True"
    ):
        return None
    loop, guard = call.loops[-1], call.guards[-1] if call.guards else None
    if guard is None or guard.file != call.file or guard.line <= loop.line or guard.branch == "else":
        return None
    names = "|".join(re.escape(name) for name in re.findall(r"\w+", loop.target))
    asks = rf"(?:{names}) == [A-Za-z_][\w.]*(?:\(\))?|[A-Za-z_][\w.]*(?:\(\))? == (?:{names})|\w*rank\w* in [\w.]+"
    if not names or not re.fullmatch(asks, guard.text):
        return None
    return fail(
        here(call),
        f"each process makes that group alone for which {guard.text} holds, and not those of the others",
        why="new_group is entered by all processes of the job, for each group and in one order: they do not fit.",
        owner="job",
        evidence=[written(script, call)],
        fix=[you("Make all groups on all processes, and keep that of the own rank.")],
    )


def _of_the_cpu(script: Script, call: Call) -> Finding | None:
    """A tensor of the CPU that is given to NCCL."""
    if call.name not in _OF_TENSORS or {"group", "process_group", "*"} & {*call.arguments}:
        return None
    place = _GIVEN.get(call.name.removeprefix(DIST), "0")
    given = tags(call, place) | tags(call, "tensor")
    starts = [start for start in script.trace if start.name == INIT]
    over_nccl = starts and all(given_to(script, start, "backend", "0").strip("'\"") == "nccl" for start in starts)
    if "oncpu" not in given or {"gpu0"} & given or not over_nccl or says(script, *_ELSEWHERE):
        return None
    return warn(
        here(call),
        f"{call.arguments.get(place, 'the tensor')} lies on the CPU, and the group is NCCL's",
        why='NCCL reduces tensors of GPUs only: "No backend type associated with device type cpu".',
        owner="job",
        evidence=[written(script, call), written(script, starts[0])],
        fix=[you("Move it to the rank's GPU before the call.")],
    )


@script_rule("SCR048", "the process group is used while it is there", worst=State.FAIL)
def in_order(script: Script) -> Iterator[Finding]:
    """
    ## What
    A collective, `get_rank()` or DistributedDataParallel before `init_process_group`, or a collective after
    `destroy_process_group`.

    ## Why it matters
    It raises "Default process group has not been initialized", on all ranks.

    ## Seen as
    dies

    ## How we know
    The order in which a rank comes to the calls, followed from the first line, both under no condition but the
    main module's; scripts that start a group in several places are not judged.

    ## Fix
    - **you** call `init_process_group` first, and `destroy_process_group` last.

    ## Source
    PyTorch documentation, torch.distributed, "Initialization" and "Shutdown".
    """
    of_many_ranks(script)
    starts = [at for at, call in enumerate(script.trace) if call.name == INIT]
    static = [call for call in script.calls if call.name == INIT]
    if len(starts) != 1 or len(static) != 1 or not _is_plain(script.trace[starts[0]]):
        return
    start = script.trace[starts[0]]
    for call in script.trace[: starts[0]]:
        if _needs(call) and _is_plain(call) and call.function not in _parents(script):
            yield _out_of_order(script, call, start, "is used before init_process_group, at")
            break
    ends = [
        at
        for at, call in enumerate(script.trace)
        if call.name == f"{DIST}destroy_process_group"
        and call.arguments.get("0", call.arguments.get("group", "None")) == "None"  # else another group alone
    ]
    if len(ends) != 1 or not _is_plain(script.trace[ends[0]]):
        return
    for call in script.trace[ends[0] + 1 :]:
        if _needs(call) and _is_plain(call):
            yield _out_of_order(script, call, script.trace[ends[0]], "is used after destroy_process_group, at")
            break


def _needs(call: Call) -> bool:
    named = call.name in COLLECTIVES or call.name.removeprefix(DIST) in _ASK or call.name in DDP
    return named and call.name not in _NO_USE


def _is_plain(call: Call) -> bool:
    return all(guard.kind == "main" for guard in call.guards) and not call.loops


def _parents(script: Script) -> set[str]:
    """Functions of a process that starts others."""
    return {
        call.function for call in script.trace if call.name.endswith((".spawn", ".Process", "start_processes"))
    }


def _out_of_order(script: Script, call: Call, other: Call, words: str) -> Finding:
    return fail(
        here(call),
        f"{call.name.rpartition('.')[2]} {words} {other.place}",
        why='It raises "Default process group has not been initialized".',
        owner="job",
        evidence=[written(script, call), written(script, other)],
        fix=[_in_its_place(script, call, other)],
    )


def _in_its_place(script: Script, call: Call, other: Call) -> Remedy:
    """What comes too early goes behind the start; the end of the group goes behind what uses it last."""
    text = "Start the group before anything that uses it, and destroy it last."
    change = moved(script, call, other, behind=True)
    if other.name.endswith("destroy_process_group"):
        later = [
            use for use in script.trace if use.line > other.line and use.function == other.function and _needs(use)
        ]
        change = moved(script, other, later[-1] if later else call, behind=True)
    return changed(script, text, call.file, change)
