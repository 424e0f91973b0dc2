"""SCR001 to SCR003: all was read, and every rank enters what every rank must enter."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Guard, Script
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    fail,
    note,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.subjects.script.changes import at_line, changed, single
from ncclcheck.reports.subjects.script.processes import INIT, is_ruled_out
from ncclcheck.reports.subjects.script.scripts import (
    DDP,
    by_rank,
    collective,
    edited,
    gathers,
    here,
    in_function,
    indent,
    line_of,
    reached,
    script_rule,
    written,
)
from ncclcheck.reports.subjects.script.sides import unbalanced
from ncclcheck.reports.subjects.script.steps import shares_model
from ncclcheck.reports.subjects.script.traced import left_alone, made_at, objects, tags, training_loaders

_STEPS_BY_RANK = re.compile(r"(?:\w+\()?range\([^(),]*\b(?:\w+_)?rank\b[^(),]*\)+")
_TELLS_NOTHING = re.compile(
    r"(?:monitored_)?barrier|synchronize|wait_for_everyone"
)  # ranks wait, and exchange nothing
_NOT_OF_ONE = re.compile(r"KeyboardInterrupt|StopIteration|Import|Attribute|KeyError|FileNotFound|SystemExit")
_NEAR = 30  # lines of a block that is seen at once (chosen; a screen has some 50)
_BENCHMARK = re.compile(
    r"throughput|bench|flops|profil|latency|speed", re.IGNORECASE
)  # an option that ends the job


@script_rule("SCR001", "the script and what it imports were read", worst=State.UNKNOWN)
def all_was_read(script: Script) -> Iterator[Finding]:
    """
    ## What
    Files that the script imports from its own repository.

    ## Why it matters
    What was not read is not judged: a function of such a file may enter a collective, or set the device.

    ## How we know
    Each file is parsed as text; nothing is imported or run. At most 500 files, 2 MB each and 20 MB together, are
    followed. Links that lead out of the repository are not. Modules are looked for in the script's folder, in
    those around it up to where the command was typed (or to a folder with `.git`, `setup.py` or
    `pyproject.toml`), and in their `src`. A relative import, or one from a package that lies there, of which
    there is no file, is named.

    ## Fix
    - **you** repair the named file, or name it on the command line to see its own error.

    ## Source
    Python documentation, ast.
    """
    for file in script.files:
        if file.problem:
            yield unknown(
                Where(device=file.name),
                f"it was not read: {file.problem}",
                why="What was not read is not judged.",
                owner="job",
                evidence=[seen(file.name, file.problem)],
                fix=[you("Repair it, fetch it, or leave it out of what the script imports.")],
            )


@script_rule("SCR002", "no collective stands under a condition on the rank", worst=State.FAIL)
def conditional(script: Script) -> Iterator[Finding]:
    """
    ## What
    A collective (`barrier`, `all_reduce`, `all_gather`, ...), `init_process_group` or the wrapping in
    DistributedDataParallel inside `if rank == 0:`, `if is_main_process():` and the like, which the other ranks do
    not enter.

    ## Why it matters
    A collective ends on no rank before all have entered it: the job hangs until the timeout, or the call is
    matched with another one of the other ranks and mixes up numbers.

    ## Seen as
    hangs

    ## How we know
    The conditions around the call, and what stands in the other branch and in other branches of the same function.
    In a loop, the backward pass of a model inside DistributedDataParallel counts as one.
    Functions of the script's own are followed. Calls with a group of their own are not judged, for its ranks may
    be those. `rank == -1` and `is_initialized()` ask whether there is a group, and differ on no rank.
    Accelerate's `gather` and `wait_for_everyone` and Lightning's `fit`, `validate`, `test` and `predict` count as
    collectives. What is one only where parameters are shared out, and the script need not say that, is a note:
    `accelerator.save_state`, a trainer's `save_checkpoint`, ZeRO's `GatheredParameters`.
    Where a condition tells on which ranks it holds (`rank > 0`, `local_rank not in [-1, 0]`, a variable that was
    made of these), four ranks on two nodes are followed side by side, and the collectives of each are counted:
    what some enter more often than others under the same options and loops is a warning.

    ## Fix
    - **you** call it on every rank, and leave under the condition only what one rank alone does.

    ## Source
    PyTorch, Distributed communication package, "Collective functions"; pytorch/pytorch#21144.
    """
    reported: set[tuple[str, int]] = set()
    read: set[tuple[str, int]] = set()
    named: set[tuple[str, int]] = set()
    for call in reached(script):
        guard = by_rank(call)
        read |= {(call.file, guard.line)} if guard else set()
        reported |= {(call.file, guard.line)} if guard and _entered(script, call) else set()
        if guard and guard.branch != "rest" and (name := _entered(script, call)) and _alone(script, call, guard):
            named.add((guard.file or call.file, guard.line))
            yield fail(
                here(call),
                f"{name} stands under a condition on the rank: {_shown(guard)}",
                why="The ranks that do not enter it leave the others waiting until the timeout.",
                owner="job",
                evidence=[written(script, call), seen(f"{call.file}:{guard.line}", _shown(guard))],
                fix=[_outdented(script, call, guard)],
            )
        elif guard and guard.branch != "rest" and (name := gathers(script, call)):
            waits = "save_checkpoint" in name  # Lightning's own ends in a barrier, whatever the strategy
            why = "it ends in a barrier" if waits else "with FSDP or ZeRO all ranks must enter it"
            yield note(
                here(call),
                f"{name} stands under a condition on the rank: {why}",
                evidence=[written(script, call), seen(f"{call.file}:{guard.line}", _shown(guard))],
            )
    yield from _side_by_side(script, named)
    for guard, call, name, _ in left_alone(script):
        if (
            (guard.file, guard.line) in named
            or ((guard.file, guard.line) in read and not _is_plain(call, guard))
            or _leaves_loop(guard, call)
        ):
            continue
        if guard.kind == "rank" and (guard.file, guard.line) not in reported:
            uneven = guard.text.startswith("for ")  # its length may be alike on all ranks after all
            text = f"{name.rstrip(',')} is not entered by all ranks: {_shown(guard)} does not hold on all"
            if uneven:
                text = f"ranks may come to {name.rstrip(',')} another number of times: {guard.text}"
            yield (note if uneven else warn)(
                here(call) if not uneven and _is_near(guard, call) else Where(device=f"{guard.file}:{guard.line}"),
                text,
                why="The ranks that do not enter it leave the others waiting until the timeout.",
                owner="job",
                evidence=[_head(script, guard), written(script, call)],
                fix=[you("Call it on every rank, outside of the condition.")],
            )


def _side_by_side(script: Script, reported: set[tuple[str, int]]) -> Iterator[Finding]:
    """Collectives that the branches of a condition on the rank do not have in common, counted rank by rank."""
    for call, guard in unbalanced(script, lambda call: collective(script, call) if ":" not in call.name else ""):
        if (guard.file, guard.line) in reported or guard.branch == "rest" or call.name in (INIT, *DDP):
            continue
        reported.add((guard.file, guard.line))
        name = collective(script, call)
        yield warn(
            here(call) if _is_near(guard, call) else Where(device=f"{guard.file}:{guard.line}"),
            f"{name} is entered by those ranks alone for which {_shown(guard)} holds: the others have none for it",
            why="Its ranks wait until the timeout, or meet a later one of the others.",
            owner="job",
            evidence=[written(script, call), _head(script, guard)],
            fix=[you("Let all ranks enter it, outside of the condition or in both branches.")],
        )


def _is_near(guard: Guard, call: Call) -> bool:
    """Whether the call stands below its condition; else that is a caller's, and is to be changed there."""
    return guard.file == call.file and 0 <= call.line - guard.line <= _NEAR


def _leaves_loop(guard: Guard, missed: Call) -> bool:
    """Whether ranks leave a loop under the condition, and the collective stands elsewhere in that loop."""
    heads = {loop.line for loop in missed.loops}
    return guard.kind == "rank" and guard not in missed.guards and guard.line not in heads


def _is_plain(call: Call, guard: Guard) -> bool:
    """Whether the rank stands in no other condition around the call, and is asked for itself, not in a list."""
    ranks = [guard for guard in call.guards if guard.kind == "rank" or "rank" in guard.text.lower()]
    return ranks == [guard] and " in " not in guard.text


def _head(script: Script, guard: Guard) -> Evidence:
    return seen(f"{guard.file}:{guard.line}", line_of(script, guard.file, guard.line).strip() or guard.text)


@script_rule("SCR003", "no rank leaves before a collective", worst=State.FAIL)
def leaves(script: Script) -> Iterator[Finding]:
    """
    ## What
    `return`, `continue`, `break` or `sys.exit()` under a condition on the rank, with a collective after it. So
    with the backward pass of a model that all ranks share: a number of steps that differs by rank, or a step that
    is left where the loss of one rank is NaN, or is small; and `break` or `return` out of a loop on some ranks.

    ## Why it matters
    The rank that has left never enters the collective: all others hang in it until the timeout.

    ## Seen as
    hangs

    ## How we know
    The lines that follow in the same block, and functions of the script's own that they call. A rank stands in the
    `range` of a loop with a backward pass; or `break` or `continue` under `isnan` or `isfinite` comes before it,
    or `break` in the same loop under a size of the loss itself, and nothing was reduced (a warning); a barrier
    exchanges nothing. Or an `except` around the backward pass lets a rank go on with the next step (a warning;
    what a handler raises again ends the job). Calls with a group of their own are not judged. It is a note where
    the condition names a benchmark, such as `--throughput`: a job with that option is to end there.

    ## Fix
    - **you** move the collective before the condition, or put what one rank skips under the opposite condition.

    ## Source
    PyTorch, Distributed communication package, "Collective functions".
    """
    for call in reached(script):
        guard = by_rank(call)
        if guard and guard.branch == "rest" and (name := _entered(script, call)) and _alone(script, call, guard):
            text = (
                f"{name} is entered by those ranks only that did not leave at line {guard.line}: if {guard.text}"
            )
            evidence = [seen(f"{call.file}:{guard.line}", f"if {guard.text}"), written(script, call)]
            if _BENCHMARK.search(guard.text):
                yield note(here(call), text, evidence=evidence)
                continue
            yield fail(
                here(call),
                text,
                why="The rank that left never enters it: all others hang in it until the timeout.",
                owner="job",
                evidence=evidence,
                fix=[_sooner(script, call, guard)],
            )
    yield from _fewer_steps(script)


def _sooner(script: Script, call: Call, guard: Guard) -> Remedy:
    """A collective of one line that comes next after the block that leaves goes before it."""
    text = f"Move it before line {guard.line}, or put what that rank skips under the opposite of it."
    line, head = single(script, call), line_of(script, call.file, guard.line)
    own = line_of(script, call.file, call.line)
    inside = [line_of(script, call.file, at) for at in range(guard.line + 1, call.line)]
    deeper = all(not other.strip() or len(indent(other)) > len(indent(head)) for other in inside)
    known = (
        any(other.strip() for other in inside) and indent(own) == indent(head) and guard.file in ("", call.file)
    )
    if not line or not known or not deeper or (call.target and call.target in head):
        return you(text)
    up = at_line(script, call.file, guard.line, line)
    return changed(script, text, call.file, up, {call.line: None})


def _entered(script: Script, call: Call) -> str:
    """A collective, or the backward pass of a model that all ranks share."""
    if call.name == ".backward" and call.loops and shares_model(script):
        return "the backward pass, in which ranks average their gradients,"
    return collective(script, call)


def _fewer_steps(script: Script) -> Iterator[Finding]:
    """Loops that have another number of steps on each rank, and steps that one rank alone leaves."""
    if not shares_model(script):
        return
    passes = [call for call in reached(script) if call.name == ".backward" and call.loops]
    within = {(loop.file or call.file, loop.line): (loop, call) for call in passes for loop in call.loops}
    for (file, line), (loop, call) in within.items():
        if _STEPS_BY_RANK.fullmatch(loop.over):
            yield fail(
                Where(device=f"{file}:{line}"),
                f"the number of steps differs by rank: {loop.over}",
                why="In the backward pass ranks wait for those that have no more steps, until the timeout.",
                owner="job",
                evidence=[
                    seen(f"{file}:{line}", f"for {loop.target} in {loop.over}"),
                    written(script, call),
                ],
                fix=[you("Give all ranks the same number of steps, or train under model.join().")],
            )
    yield from _unequal(script)
    reported = set()
    for guard, missed, name, left in left_alone(script):
        if _leaves_loop(guard, missed):
            reported.add((guard.file, guard.line))
            yield warn(
                here(left) if left else Where(device=f"{guard.file}:{guard.line}"),
                f"those ranks alone leave the loop for which {guard.text} holds",
                why=f"The others go on, and wait for them in {name.rstrip(',')}, until the timeout.",
                owner="job",
                evidence=[_head(script, guard), written(script, missed)],
                fix=[you("Broadcast the decision, so that all ranks leave the loop or none.")],
            )
        if guard.kind != "own":
            continue
        reported.add((guard.file, guard.line))
        yield warn(
            Where(device=f"{guard.file}:{guard.line}"),
            f"a rank takes its own branch where {guard.text} holds for it alone",
            why=f"The others wait for it in {name.rstrip(',')}, until the timeout.",
            owner="job",
            evidence=[_head(script, guard), written(script, missed)],
            fix=[you("Reduce that number over all ranks before it is tested: all ranks then take one branch.")],
        )
    yield from _swallowed(script)
    for call in reached(script):
        if call.name not in ("break", "continue") or not call.loops or not call.guards:
            continue
        if (call.file, call.guards[-1].line) in reported:
            continue
        after = [
            backward for backward in passes if backward.function == call.function and _comes_after(backward, call)
        ]
        if not after or _is_agreed(script, call) or not _sees_own(script, after):
            continue
        yield warn(
            here(call),
            f"a rank leaves the step where {call.guards[-1].text} holds for its own samples",
            why="The others wait for it in the backward pass, until the timeout.",
            owner="job",
            evidence=[
                seen(f"{call.file}:{call.guards[-1].line}", f"if {call.guards[-1].text}"),
                written(script, after[0]),
            ],
            fix=[you("Reduce the loss over all ranks before it is tested, so that all leave or none.")],
        )


def _sees_own(script: Script, passes: list[Call]) -> bool:
    """Whether each rank has other samples in these steps, or it is not known; with the same ones all agree."""
    places = {call.place for call in passes}
    ways = [way for way in script.trace if way.name == ".backward" and way.place in places]
    known = [way for way in ways if "from:loader" in way.values.get("on", "")]
    return len(known) < len(ways) or not ways or any("own" in tags(way, "on") for way in known)


def _swallowed(script: Script) -> Iterator[Finding]:
    """A rank that goes on to the next step after an error that the others had not."""
    for call in script.trace:
        if call.name == "swallow" and call.loops and not _NOT_OF_ONE.search(call.on) and shares_model(script):
            yield warn(
                here(call),
                f"a rank that meets {call.on} goes on with the next step, and the others wait for it",
                why="The ranks' backward passes no longer fit each other: they hang, or mix up gradients.",
                owner="job",
                evidence=[written(script, call)],
                fix=[
                    you("Raise it, so that the launcher ends all ranks, or let all ranks agree on leaving a step.")
                ],
            )
            return


def _unequal(script: Script) -> Iterator[Finding]:
    """Loaders of the training that may give ranks another number of batches."""
    for loader in training_loaders(script):
        made = made_at(script, loader)
        sizes = tags(made, "batch_size") | tags(made, "1") if made else set()
        if made and _is_synchronised(script):
            continue
        share = "share" in (tags(made, "0") | tags(made, "dataset") | tags(made, "sampler")) if made else False
        if made and (share or {"rank", "local", "byrank", "first", "some"} & sizes):
            what = (
                "the samples are divided by a step of the number of ranks"
                if share
                else "the batch size differs by rank"
            )
            yield warn(
                here(made),
                f"ranks may have another number of batches: {what}",
                why="In the backward pass ranks wait for those that have no more batches, until the timeout.",
                owner="job",
                evidence=[written(script, made)],
                fix=[you("Use DistributedSampler, which gives all ranks as many, or train under model.join().")],
            )
        if made and not share and (size := _by_rank_size(script, made)):
            yield note(
                here(size),
                "the dataset is made of the rank: its length may differ, and with it the number of batches",
                evidence=[written(script, size), written(script, made)],
            )


def _is_synchronised(script: Script) -> bool:
    """Whether ranks agree before each batch that all have one: where a batch is taken, something is reduced."""
    taking = {
        call.function for call in script.trace if call.name == "next" and "loader@" in call.values.get("0", "")
    }
    return any(
        call.function in taking
        and collective(script, call)
        and not _TELLS_NOTHING.match(call.name.rpartition(".")[2])
        for call in script.trace
        if call.name.startswith("torch.distributed.")
    )


def _by_rank_size(script: Script, loader: Call) -> Call | None:
    """Where its dataset is given a size that is made of the rank, though a sampler shares it out."""
    if not objects(loader, "sampler", "sampler"):
        return None
    made = objects(loader, "0", "new", "object", "dataset") | objects(
        loader, "dataset", "new", "object", "dataset"
    )
    places = {tag.partition("@")[2].rpartition(".")[0] for tag in made}
    sizes = {"size", "length", "n", "num_samples", "n_samples"}
    return next((call for call in script.calls if call.place in places and sizes & {*call.by_rank}), None)


def _comes_after(backward: Call, call: Call) -> bool:
    """Whether a rank that leaves there misses the backward pass: of this step, or after `break` of the next."""
    if backward.line > call.line:
        return backward.loops[: len(call.loops)] == call.loops
    own = re.search(rf"(?<![\w.]){re.escape(backward.on)}(?!\w)", call.guards[-1].text) if backward.on else None
    return call.name == "break" and backward.loops == call.loops and bool(own)


def _is_agreed(script: Script, call: Call) -> bool:
    """Whether ranks exchange something earlier in the loop, or the name tells of it."""
    if re.search(r"reduc|all_|avg|mean|global|sync", call.guards[-1].text, re.IGNORECASE):
        return True
    before = [
        earlier
        for earlier in in_function(script, call.function)
        if call.loops[-1].line < earlier.line <= call.line
    ]
    entered = (collective(script, call) for call in before)
    named = any(name and not _TELLS_NOTHING.match(name) for name in entered)
    return named or any(re.search(r"reduce|gather", call.name) for call in before)


def _alone(script: Script, call: Call, guard: Guard) -> bool:
    """No other branch of the function enters a collective that could be its counterpart.

    After `if not several and rank != 0: return` nobody has left where `if several:` holds.
    """
    if guard.branch != "if" and any(is_ruled_out(guard, other) for other in call.guards if other is not guard):
        return False
    for other in in_function(script, call.function):
        theirs = by_rank(other)
        if theirs and (theirs.line, theirs.branch) != (guard.line, guard.branch) and _entered(script, other):
            return False
    return True


def _shown(guard: Guard) -> str:
    if guard.text.startswith("@"):
        return guard.text
    return f"if {guard.text}" if guard.branch == "if" else f"the else of if {guard.text}"


def _outdented(script: Script, call: Call, guard: Guard) -> Remedy:
    """A bare barrier that ends the branch can stand after it as it is."""
    text = "Call it on every rank, outside of the condition."
    line, after = line_of(script, call.file, call.line), line_of(script, call.file, call.last + 1)
    last = call.name.endswith(".barrier") and call.first == call.last and call.line > guard.line + 1
    head = line_of(script, call.file, guard.line)
    moved = (
        head and line and len(call.guards) and call.guards[-1] == guard and not call.loops[_depth(call, guard) :]
    )
    if (
        last
        and moved
        and len(indent(after)) <= len(indent(head))
        and not after.strip().startswith(("else", "elif"))
    ):
        return edited(script, text, call.file, {call.line: indent(head) + line.strip()})
    return you(text)


def _depth(call: Call, guard: Guard) -> int:
    """How many loops stand around the condition."""
    return sum(loop.line < guard.line for loop in call.loops)
