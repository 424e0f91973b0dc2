"""SCR015 to SCR020: what works, and costs time or says less than it seems to. Notes, but for SCR015 in a group."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Guard, Script
from ncclcheck.reports.judgement.findings import Finding, State, note, warn, you
from ncclcheck.reports.subjects.script.processes import INIT
from ncclcheck.reports.subjects.script.scripts import (
    DDP,
    SAMPLER,
    SHARDED,
    by_rank,
    edited,
    here,
    in_function,
    line_of,
    of_many_ranks,
    on_all_ranks,
    own_ways,
    reached,
    says,
    script_rule,
    splits_model,
    written,
)
from ncclcheck.reports.subjects.script.steps import each_step
from ncclcheck.reports.subjects.script.traced import in_training, made_at, objects, tags, training_loaders

_WORK = re.compile(r"download|load_dataset$|tokeni[sz]e|preprocess|prepare_data|urlretrieve", re.IGNORECASE)
_EXCHANGES = re.compile(r"^torch\.distributed\..*(?:reduce|gather|broadcast|scatter|all_to_all|send|recv|rpc)")
_AVERAGES = re.compile(r"(?:reduce|average|avg|sync)_?\w*grad|grad\w*_(?:reduce|average|avg|sync)", re.IGNORECASE)
_FREEZES = re.compile(r"requires_grad|freez|frozen", re.IGNORECASE)
_READS = (".item", ".cpu")
_CONSTANT = re.compile(r"True|False|None|-?[\d.]+|(['\"]).*\1")
# Made on the GPU in a step, as they are called; samples and labels come from the CPU.
_RESULTS = re.compile(r"loss|output|logit|pred|\bacc(?:uracy)?\d?\b|correct", re.IGNORECASE)
# Where a loss is logged, and words by which it may be one of all ranks.
_LOGS = re.compile(r"(?:^|\.)(?:print|info|log|log_metrics|add_scalars?|set_postfix|set_description|write)$")
_REDUCES = re.compile(r"reduce|gather|synchronize_between|average_across|average_loss|sync_dist|torchmetrics")
_HELD_OUT = re.compile(r"val|test|eval|\bdev", re.IGNORECASE)
_BAR = re.compile(r"set_postfix|set_description")
_EXCHANGED = re.compile(r"reduc|gather|synchroni[sz]e_|average_across|send|recv|all_to_all", re.IGNORECASE)
_WAITS = "torch.cuda.synchronize"
_ON_GPU = re.compile(
    r"(?:torch\.)?cuda\.is_available\(\)|[\w.]*device(?:\.type)? == 'cuda'"
    r"|[\w.]*device\.type\.startswith\('cuda'\)"
    r"|'cuda' in (?:str\()?[\w.]*device(?:\.type)?\)?|(?:\w+\.)*(?:(?:use|on|is|has)_)?(?:cuda|gpu)"
)
_DEEP = 3  # functions within functions that are looked at
_FEW_STEPS = 20  # steps; a training has more: a demonstration of 6 was judged (docs/script.md)
_SHORT_MIN = 2  # minutes; a checkpoint of a large model takes as long to a file system that is busy (a judgement)
_DEFAULT_MIN = 10  # minutes that torch gives a collective of NCCL, since 2.2


@script_rule("SCR015", "the model is not split by DataParallel", worst=State.WARN)
def data_parallel(script: Script) -> Iterator[Finding]:
    """
    ## What
    `torch.nn.DataParallel`, in a script that never uses DistributedDataParallel.

    ## Why it matters
    One process drives all GPUs of one node: it copies the model in every step and is held up by Python's lock.
    In a job that also starts a process group it averages no gradients among the ranks: each trains a model of
    its own.

    ## How we know
    The call; nothing that was read calls DistributedDataParallel. It is a warning where a group is started,
    both stand under no condition but that there are several ranks, and no rank gives a tensor to another.

    ## Fix
    - **you** use DistributedDataParallel under torchrun, on one node too.

    ## Source
    PyTorch documentation, torch.nn.DataParallel: "It is recommended to use DistributedDataParallel".
    """
    if own_ways(script):
        return
    if any(call.name.endswith(("DistributedDataParallel", "DDP")) for call in script.calls):
        return
    for call in reached(script):
        if call.name in ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel"):
            if _is_alone(script, call):
                yield warn(
                    here(call),
                    "DataParallel in a job with a process group: the ranks do not average their gradients",
                    why="Each rank trains a model of its own.",
                    owner="job",
                    evidence=[written(script, call)],
                    fix=[you("Use DistributedDataParallel, with one GPU for each process.")],
                )
            else:
                yield note(here(call), "DataParallel is slower than DistributedDataParallel, on one node too",
                           evidence=[written(script, call)])  # fmt: skip


def _is_alone(script: Script, call: Call) -> bool:
    """Whether it stands in a job of several ranks, none of which gives a tensor to another."""
    inits = [call for call in reached(script) if call.name == INIT]
    one_process = any("1" in (init.arguments.get("world_size"), init.arguments.get("3")) for init in inits)
    all_run = on_all_ranks(script)
    if (
        not inits
        or one_process
        or not all(_is_plain(call) and call.function in all_run for call in (call, *inits))
    ):
        return False
    if any(SHARDED.search(call.name) or _EXCHANGES.search(call.name) for call in script.calls):
        return False
    return not any(_AVERAGES.search(word) for file in script.files for word in file.words)


def _is_plain(call: Call) -> bool:
    """Whether it stands under no condition but that there are several ranks."""
    return all(guard.kind == "main" or (guard.kind == "group" and guard.branch == "if") for guard in call.guards)


@script_rule("SCR016", "unused parameters are looked for only where there are some", worst=State.NOTE)
def unused(script: Script) -> Iterator[Finding]:
    """
    ## What
    `find_unused_parameters=True`.

    ## Why it matters
    Each forward walks through the whole graph. Where every parameter is used, that is lost time.

    ## How we know
    The argument of DistributedDataParallel, without `static_graph=True`. Whether the model has unused parameters
    is not seen in the script; where it freezes parameters or builds the model in several ways, it is asked only.
    A model is not judged that is called with other arguments in one place than in another, or is of a class in a
    file of the script where a forward calls layers under a condition: their parameters are unused in some steps.

    ## Fix
    - **you** try it without; a model with unused parameters says so in its second step.

    ## Source
    PyTorch documentation, torch.nn.parallel.DistributedDataParallel.
    """
    for call in reached(script):
        if (
            call.name in DDP
            and call.arguments.get("find_unused_parameters") == "True"
            and call.arguments.get("static_graph", "False") == "False"
        ):
            if _is_called_in_several_ways(script, call) or _has_branches(script, call):
                continue
            if _may_be_unused(script, call):
                said = "find_unused_parameters=True costs time in every step: is a parameter unused?"
                yield note(here(call), said, evidence=[written(script, call)])
                continue
            line = line_of(script, call.file, call.line)
            new = line.replace(", find_unused_parameters=True", "")
            change = {call.line: new} if line.count(", find_unused_parameters=True") == 1 else None
            yield note(
                here(call),
                "find_unused_parameters=True costs time in every step; some models need it",
                evidence=[written(script, call)],
                fix=[
                    edited(
                        script,
                        "Try without it; a model that needs it says so in its second step.",
                        call.file,
                        change,
                    )
                ],
            )


def _is_called_in_several_ways(script: Script, call: Call) -> bool:
    """Whether its calls differ by which arguments they have, or by a constant among these."""
    ways = {
        frozenset((name, text if _CONSTANT.fullmatch(text) else "") for name, text in one.arguments.items())
        for one in script.calls
        if one.wrapped and one.on == call.target and one.file == call.file
    }
    return len(ways) > 1


def _has_branches(script: Script, call: Call) -> bool:
    """Whether a class beside that of the model leaves layers out under a condition."""
    model = call.arguments.get("0", call.arguments.get("module", ""))
    built = {call.name.partition(":")[0] for call in script.calls if call.target == model and ":" in call.name}
    homes = {file.name for file in script.files if file.branching}
    return bool(built & homes) or any(
        re.match(rf"{name}\(", model) for file in script.files for name in file.branching
    )


def _may_be_unused(script: Script, call: Call) -> bool:
    """Whether parameters are frozen somewhere, or the model is built in several ways."""
    model = call.arguments.get("0", call.arguments.get("module", ""))
    built = [one for one in in_function(script, call.function) if one.target == model and one.line < call.line]
    conditional = any(guard.kind == "other" for call in built for guard in call.guards)
    return conditional or any(_FREEZES.search(word) for file in script.files for word in file.words)


@script_rule("SCR017", "the process group is destroyed at the end", worst=State.NOTE)
def destroyed(script: Script) -> Iterator[Finding]:
    """
    ## What
    `init_process_group` without `destroy_process_group`.

    ## Why it matters
    torch warns of it since 2.4; NCCL's threads are ended by force, which may hang or leave errors in the log.

    ## Seen as
    hangs

    ## How we know
    No file has the word, or it stands in one function whose name is used nowhere. Groups over gloo or MPI alone
    are not judged: torch warns of NCCL's only.

    ## Fix
    - **you** `torch.distributed.destroy_process_group()` as the last line.

    ## Source
    PyTorch documentation, torch.distributed, "Shutdown".
    """
    calls = of_many_ranks(script)
    never = _never_called(script)
    if not says(script, "destroy_process_group") or never:
        init = next((call for call in calls if call.name == INIT), None)
        if init is None:
            return
        others = re.search(r"gloo|mpi|ucc", " ".join(init.arguments.values()))
        if others or (says(script, "gloo") and not says(script, "nccl")):
            return
        said = "the process group is never destroyed"
        if never:
            said += f": nothing calls {never.function.rpartition(':')[2]}(), which would"
        evidence = [written(script, init), *([written(script, never)] if never else [])]
        yield note(here(init), said, evidence=evidence)


def _never_called(script: Script) -> Call | None:
    """The one place that destroys it, if it stands in a function whose name no file uses."""
    given = [call for call in script.calls if call.name.endswith("destroy_process_group")]
    inside = {call.function for call in given}
    if len(inside) != 1:
        return None
    function = inside.pop().rpartition(":")[2]
    name = function.rpartition(".")[2]
    if not name or name.startswith("__") or says(script, name) or _by_several_names(script, name):
        return None
    return given[0]


def _by_several_names(script: Script, name: str) -> bool:
    """Whether it is imported by another one, or stands in a longer string."""
    return any(name in word for file in script.files for word in (*file.words, *file.modules))


@script_rule("SCR018", "no step waits for the GPU to be read", worst=State.NOTE)
def waits(script: Script) -> Iterator[Finding]:
    """
    ## What
    `.item()`, `.cpu()` or `float()` of a loss, an output or an accuracy in every step of a training loop.

    ## Why it matters
    The CPU waits for the GPU to end the step before it can give it more to do.

    ## How we know
    The innermost loop calls `backward`, and the call stands there under no condition, or under that of backward;
    or it stands in a function that such a loop calls in every step, if no loop reads anything itself. A tensor
    that was made on the CPU is not judged, nor a loop that calls `torch.cuda.synchronize` in every step (or in
    every one on a GPU), as timers do, or has twenty steps or fewer.

    ## Fix
    - **you** sum losses on the GPU, and read the sum every hundred steps.

    ## Source
    PyTorch tutorial "Performance Tuning Guide", "Avoid unnecessary CPU-GPU synchronization".
    """
    if not says(script, "cuda", "nccl", "to"):
        return
    steps = {
        (call.file, call.loops[-1].line, len(call.guards) and call.guards[-1].line)
        for call in reached(script)
        if call.name == ".backward" and call.loops
    }
    told: set[tuple[str, int]] = set()
    for call in reached(script):
        if call.name not in (*_READS, "float") or not call.loops or not _RESULTS.search(_read(call)):
            continue
        if call.name == "float" and not _is_of_the_step(script, call):
            continue
        loop = call.loops[-1].line
        inner = [guard.line for guard in call.guards if guard.line > loop]
        inside = (
            {(call.file, loop, inner[-1])} if inner else {step for step in steps if step[:2] == (call.file, loop)}
        )
        if not steps & inside or (call.file, loop) in told or _on_cpu(script, call):
            continue
        if not _has_few_steps(call) and not _waits_anyway(script, call):
            told.add((call.file, loop))
            yield _read_in_every_step(script, call)
    for call in reached(script):
        of_step = not told and call.function in each_step(script) and not call.loops
        by_all = not any(guard.branch != "rest" for guard in call.guards)
        if of_step and by_all and call.name in _READS and _RESULTS.search(call.on) and not _on_cpu(script, call):
            yield _read_in_every_step(script, call)
            return


def _read_in_every_step(script: Script, call: Call) -> Finding:
    what = "the loss" if "loss" in _read(call).lower() else "a result"
    return note(here(call), f"{what} is read from the GPU in every step", evidence=[written(script, call)])


def _read(call: Call) -> str:
    """What is read, by name."""
    return call.arguments.get("0", "") if call.name == "float" else call.on


def _is_of_the_step(script: Script, call: Call) -> bool:
    """Whether backward is called on what is read: it is a tensor."""
    return any(
        one.name == ".backward" and one.on == _read(call) and one.line < call.line
        for one in in_function(script, call.function)
    ) and not any(one.target == _read(call) and one.name in _READS for one in in_function(script, call.function))


def _has_few_steps(call: Call) -> bool:
    """Whether its loops say so in plain numbers: `for step in range(6)`."""
    counts = [re.fullmatch(r"range\((\d+)\)", loop.over) for loop in call.loops]
    return math.prod(int(count.group(1)) if count else _FEW_STEPS + 1 for count in counts) <= _FEW_STEPS


def _waits_anyway(script: Script, call: Call) -> bool:
    """Whether each step of its loop waits for the GPU in any case, as one that is timed does."""
    loop = call.loops[-1]
    words = next((file.words for file in script.files if file.name == call.file), [])
    if "synchronize" in words and not any(one.name == _WAITS and one.file == call.file for one in script.calls):
        return True  # by a timer's own method, or a lambda: it is not seen when
    waits = [
        [guard for guard in call.guards if guard.line > loop.line and not _is_of_every_step(guard)]
        for call in in_function(script, call.function)
        if call.loops
        and call.loops[-1] == loop
        and any(inner.name == _WAITS for inner in (call, *in_function(script, call.name)))
    ]
    either = {(guards[0].line, guards[0].branch) for guards in waits if len(guards) == 1}
    return not all(waits) or any((line, "else") in either for line, branch in either if branch == "if")


def _is_of_every_step(guard: Guard) -> bool:
    """Whether it holds in all steps on a GPU: it asks for the GPU, or stands for what has not left the loop."""
    return guard.branch == "rest" or (guard.branch == "if" and bool(_ON_GPU.fullmatch(guard.text)))


def _on_cpu(script: Script, call: Call) -> bool:
    """Whether what it is called on was made in the CPU's memory."""
    return any(
        one.name == ".pin_memory" or "cpu" in one.arguments.get("device", "")
        for one in in_function(script, call.function)
        if one.target == call.on and one.line < call.line
    )


@script_rule("SCR019", "the loss that is printed is that of all ranks", worst=State.NOTE)
def printed(script: Script) -> Iterator[Finding]:
    """
    ## What
    Rank 0 prints or logs a loss, and nothing is reduced over ranks.

    ## Why it matters
    What is printed is the loss of one rank's samples: it is noisier than that of the batch, and hides other ranks.

    ## How we know
    The call of `print` under a condition on the rank; no file has `all_reduce`, `reduce` or `all_gather`. So with
    a logger, a writer or wandb, of a training loss, under such a condition or where the logger was made for one
    rank; there no name in any file speaks of reducing or gathering. Scripts that split the model by pipeline or
    tensor parallelism are not judged: their ranks share samples.

    ## Fix
    - **you** `dist.all_reduce(loss, op=dist.ReduceOp.AVG)` of a detached copy, on all ranks, before it is printed.

    ## Source
    PyTorch documentation, torch.distributed, all_reduce.
    """
    calls = of_many_ranks(script)
    if splits_model(script):
        return
    findings = [*_validated(script, calls)] or [*_of_own_share(script)]
    yield from findings
    if logged := _own_logged(script):
        yield note(here(logged), "the loss that is logged is that of one rank's samples alone",
                   evidence=[written(script, logged)])  # fmt: skip
        return
    if says(script, "all_reduce", "reduce", "all_gather", "all_gather_object", "gather", "all_gather_into_tensor"):
        return
    for call in calls:
        text = " ".join(call.arguments.values())
        if (
            call.name == "print"
            and by_rank(call)
            and re.search(r"\bloss\b|\bacc(?:uracy)?\b", text)
            and call.loops
        ):
            yield note(
                here(call), "what is printed is of rank 0's samples alone", evidence=[written(script, call)]
            )
            return
    if any(_REDUCES.search(word) for file in script.files for word in file.words):
        return
    if logged := next((call for call in calls if _logs_loss(calls, call) and _of_one_rank(calls, call)), None):
        said = "the loss that is logged is that of one rank's samples alone"
        yield note(here(logged), said, evidence=[written(script, logged)])


def _own_logged(script: Script) -> Call | None:
    """Where one rank logs what was made of its own training samples, in whatever function."""
    trained = training_loaders(script)
    for call in script.trace:
        if not _LOGS.search(call.name) or not in_training(script, call) or _BAR.search(call.name):
            continue
        given = set().union(*(tags(call, key) for key in call.values if key != "on"))
        alone = by_rank(call) or "some" in tags(call, "on")
        said = " ".join(call.arguments.values()).lower()
        from_training = any(f"from:{one}" in given for one in trained)
        if (
            alone
            and from_training
            and "own" in given
            and re.search(r"loss|acc", said)
            and not _HELD_OUT.search(said)
            and "rank" not in said
        ):
            return call
    return None


def _of_own_share(script: Script) -> Iterator[Finding]:
    """A validation of shared out samples after which ranks exchange nothing until the training goes on."""
    trained = training_loaders(script)
    trace = script.trace
    for at, call in enumerate(trace):
        one = next(iter(sorted(objects(call, "0", "loader"))), "") if call.name == "iterate" else ""
        made = made_at(script, one) if one and one not in trained else None
        samplers = objects(made, "sampler", "sampler", "sampled", "plain") if made else set()
        if (
            not made
            or by_rank(call)
            or not samplers
            or not all(sampler.startswith("sampler@") for sampler in samplers)
        ):
            continue
        rest = trace[at + 1 :]
        reads = [one for one in rest if call.loops[-1] in one.loops and one.name == ".item"]
        end = next((place for place, call in enumerate(rest) if call.name == ".backward"), len(rest))
        exchanged = any(_EXCHANGED.search(call.name) for call in rest[:end])
        if reads and not exchanged and trained:
            yield note(
                here(reads[0]),
                "the validation's samples are shared out, and its numbers are summed over no ranks",
                evidence=[written(script, reads[0]), written(script, made)],
            )
            return


def _validated(script: Script, calls: list[Call]) -> Iterator[Finding]:
    """A validation whose samples are shared out, and whose numbers nothing sums over ranks."""
    shared = [
        call for call in calls
        if call.name in SAMPLER and re.search(r"val|test|eval", f"{call.target} {call.arguments.get('0', '')}")
    ]  # fmt: skip
    if not shared:
        return
    for call in calls:
        name = call.function.rpartition(":")[2].rpartition(".")[2]
        read = call.name == ".item" and call.loops and re.match(r"_?(?:val|test|eval)", name)
        if not read or _reduces(script, call.function, _DEEP):
            continue
        callers = [one for one in calls if one.name == call.function]
        if not callers or any(_reduces(script, caller.function, _DEEP) for caller in callers):
            continue
        if any(_REDUCES.search(word) for file in script.files if file.name == call.file for word in file.words):
            continue
        said = "the validation's samples are shared out, and its numbers are summed over no ranks"
        yield note(here(call), said, evidence=[written(script, call), written(script, shared[0])])
        return


def _reduces(script: Script, function: str, deep: int) -> bool:
    return any(
        re.search(r"reduce|gather|synchroni|average_|sync", call.name.rpartition(".")[2])
        or (deep and ":" in call.name and _reduces(script, call.name, deep - 1))
        for call in in_function(script, function)
    )


def _logs_loss(calls: list[Call], call: Call) -> bool:
    """A loss of the training, in its loop; a validation may be done by one rank as a whole."""
    said = " ".join([*call.arguments.values(), call.function.rpartition(":")[2], call.on])
    trains = any(one.name == ".backward" and one.function == call.function for one in calls)
    return (
        bool(call.loops) and trains and _LOGS.search(call.name) is not None
        and "loss" in said.lower() and not _HELD_OUT.search(said)
    )  # fmt: skip


def _of_one_rank(calls: list[Call], call: Call) -> bool:
    """Under a condition on the rank, or by a logger that was made under one."""
    return by_rank(call) is not None or any(
        by_rank(made) or made.by_rank or any(by_rank(call) or call.name.endswith("get_rank") for call in calls
                                             if call.function == made.name)
        for made in calls
        if call.on and made.target == call.on and made.file == call.file
    )  # fmt: skip


@script_rule("SCR036", "averages of ranks are averaged", worst=State.NOTE)
def summed(script: Script) -> Iterator[Finding]:
    """
    ## What
    An average of each rank's samples, such as a loss, that is added over all ranks by `all_reduce`, and is printed
    or logged as it then is.

    ## Why it matters
    The number is as many times too large as there are ranks: it changes with the size of the job, and cannot be
    compared with that of another one.

    ## How we know
    The script is followed from its first line: the value is a loss, or was divided, then `all_reduce` adds it up,
    and nothing divides it before the call that logs it. Sums that are divided by each other are not judged.

    ## Fix
    - **you** `op=dist.ReduceOp.AVG`, or divide by the number of ranks.

    ## Source
    PyTorch documentation, torch.distributed, ReduceOp.
    """
    of_many_ranks(script)
    for call in script.trace:
        given = set().union(*(tags(call, key) for key in call.values if key != "on"), set())
        if _LOGS.search(call.name) and "summed" in given:
            yield note(
                here(call),
                "this is the sum of all ranks' averages: it grows with the number of ranks",
                evidence=[written(script, call)],
                fix=[you("Reduce it with ReduceOp.AVG, or divide it by the number of ranks.")],
            )
            return


@script_rule("SCR020", "no rank works longer alone than the others wait", worst=State.NOTE)
def alone(script: Script) -> Iterator[Finding]:
    """
    ## What
    One rank downloads, tokenizes or prepares data, and the others wait for it in a collective.

    ## Why it matters
    The others wait for 10 minutes, or what `timeout=` says; then the watchdog ends the job.

    ## Seen as
    hangs, dies

    ## How we know
    The name of a call under a condition on the rank, a barrier after it in the same function, and no `timeout` in
    `init_process_group`, or one of 10 minutes or less. How long the work takes is not seen in the script. A
    timeout of two minutes or less is reported in any case.

    ## Fix
    - **you** prepare the data before the job, or give `timeout=timedelta(hours=2)` to `init_process_group`.

    ## Source
    PyTorch documentation, torch.distributed.init_process_group, timeout.
    """
    calls = of_many_ranks(script)
    given = [call.arguments.get("timeout", "") for call in calls if call.name == INIT]
    for call in calls:
        short = _minutes(call.arguments.get("timeout", "")) if call.name == INIT else None
        if short is not None and 0 < short <= _SHORT_MIN:
            said = f"a rank that works alone for longer than {short * 60:g} seconds ends the job"
            yield note(here(call), f"{said}: a checkpoint or a validation may take as long",
                       evidence=[written(script, call)])  # fmt: skip
            return
    minutes = _minutes(
        next((text for text in given if text and text != "None"), f"timedelta(minutes={_DEFAULT_MIN})")
    )
    if minutes is None or minutes > _DEFAULT_MIN:
        return
    barriers = [call for call in calls if call.name == "torch.distributed.barrier"]
    for call in calls:
        if by_rank(call) and _WORK.search(call.name.rpartition(".")[2]) and _waited_for(call, barriers):
            yield note(
                here(call),
                f"the other ranks wait for this in a barrier, for {minutes:g} minutes at most",
                evidence=[written(script, call)],
            )


def _minutes(timeout: str) -> float | None:
    """What a `timedelta(...)` of plain numbers gives; None where it is not plain."""
    units = {"seconds": 1 / 60, "minutes": 1, "hours": 60, "days": 1440}
    parts = re.findall(r"(seconds|minutes|hours|days)=([\d.]+)(?=[,)])", timeout)
    return sum(units[unit] * float(number) for unit, number in parts) if parts else None


def _waited_for(call: Call, barriers: list[Call]) -> bool:
    return any(barrier.function == call.function and barrier.line > call.line for barrier in barriers)
