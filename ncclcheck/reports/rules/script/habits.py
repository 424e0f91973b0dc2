"""SCR015 to SCR018: what works, and costs time. Notes, but for SCR015 in a group."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Guard, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, note, warn, you
from ncclcheck.reports.subjects.script.changes import Change, changed, dist, single
from ncclcheck.reports.subjects.script.processes import INIT, started_by
from ncclcheck.reports.subjects.script.scripts import (
    DDP,
    SHARDED,
    by_rank,
    edited,
    given_to,
    here,
    in_function,
    indent,
    line_of,
    of_many_ranks,
    on_all_ranks,
    own_ways,
    reached,
    says,
    script_rule,
    written,
)
from ncclcheck.reports.subjects.script.steps import each_step
from ncclcheck.reports.subjects.script.traced import tags

_EXCHANGES = re.compile(r"^torch\.distributed\..*(?:reduce|gather|broadcast|scatter|all_to_all|send|recv|rpc)")
_OF_GRADIENTS = re.compile(r"grad|param|weight|\b(?:p|model|net)\b|bucket|flat")
_AVERAGES = re.compile(r"(?:reduce|average|avg|sync)_?\w*grad|grad\w*_(?:reduce|average|avg|sync)", re.IGNORECASE)
_FREEZES = re.compile(r"requires_grad|freez|frozen", re.IGNORECASE)
_READS = (".item", ".cpu")
_CONSTANT = re.compile(r"True|False|None|-?[\d.]+|(['\"]).*\1")
# Made on the GPU in a step, as they are called; samples and labels come from the CPU.
_RESULTS = re.compile(r"loss|output|logit|pred|\bacc(?:uracy)?\d?\b|correct", re.IGNORECASE)
_WAITS = "torch.cuda.synchronize"
_ON_GPU = re.compile(
    r"(?:torch\.)?cuda\.is_available\(\)|[\w.]*device(?:\.type)? == 'cuda'"
    r"|[\w.]*device\.type\.startswith\('cuda'\)"
    r"|'cuda' in (?:str\()?[\w.]*device(?:\.type)?\)?|(?:\w+\.)*(?:(?:use|on|is|has)_)?(?:cuda|gpu)"
)
_SPLITS = ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel")
_LIGHTNINGS = re.compile(r"(?:pytorch_lightning|lightning)\.(?:\w+\.)*Trainer$")
_STRATEGIES = ("strategy", "accelerator", "distributed_backend")
_SHOWS = re.compile(r"print\(|[\w.]+\.(?:info|log|add_scalar|set_postfix|set_description)\(")
_FEW_STEPS = 20  # steps; a training has more: a demonstration of 6 was judged (docs/script.md)


@script_rule("SCR015", "the model is not split by DataParallel", worst=State.WARN)
def data_parallel(script: Script) -> Iterator[Finding]:
    """
    ## What
    `torch.nn.DataParallel`, or Lightning's strategy `dp`.

    ## Why it matters
    One process drives all GPUs of one node: it copies the model in every step and is held up by Python's lock.
    In a job that also starts a process group it averages no gradients among the ranks: each trains a model of
    its own.

    ## How we know
    The call; nothing that was read calls DistributedDataParallel, or the call stands under a count of GPUs in a
    script that has both (a note). It is a warning where a group is started,
    both stand under no condition but that there are several ranks, and no rank gives gradients or parameters to
    another.

    ## Fix
    - **you** use DistributedDataParallel under torchrun, on one node too. There is no diff: a group, a GPU and a
      share of the samples for each process, and saves by one of them, come with it.

    ## Source
    PyTorch documentation, torch.nn.DataParallel: "It is recommended to use DistributedDataParallel";
    PyTorch Lightning 2.0, "Removed".
    """
    for call in reached(script):
        if _LIGHTNINGS.match(call.name) and "'dp'" in (call.arguments.get(name) for name in _STRATEGIES):
            yield note(
                here(call),
                "the strategy dp is DataParallel, slower than ddp on one node too; Lightning 2.0 has it no longer",
                evidence=[written(script, call)],
                fix=[you('Give it strategy="ddp".')],
            )
            return
    if own_ways(script):
        return
    if any(call.name.endswith(("DistributedDataParallel", "DDP")) for call in script.calls):
        if split := _in_its_place(script):
            yield warn(
                here(split),
                "on several GPUs DataParallel takes the place of DistributedDataParallel, in a job with a group",
                why="Each rank trains a model of its own: its gradients are averaged over no ranks.",
                owner="job",
                evidence=[written(script, split)],
                fix=[you("Use DistributedDataParallel, with one GPU for each process.")],
            )
            return
        for call in reached(script):
            if call.name in _SPLITS and any("device_count" in guard.text for guard in call.guards):
                yield note(
                    here(call),
                    "on several GPUs one way is DataParallel: its other one, a process for each, is faster",
                    evidence=[written(script, call)],
                )
                return
        return
    for call in reached(script):
        if call.name in _SPLITS:
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


def _in_its_place(script: Script) -> Call | None:
    """DataParallel that ranks come to after they have started their group, because there are several GPUs."""
    started = False
    for call in script.trace:
        started |= call.name == INIT and _is_plain(call)
        if started and call.name in _SPLITS:
            asks = [guard for guard in call.guards if guard.kind != "main"]
            if all("device_count" in guard.text and guard.branch == "if" for guard in asks):
                return call
    return None


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
    if any(SHARDED.search(call.name) or _exchanges(call) for call in script.calls):
        return False
    return not any(_AVERAGES.search(word) for file in script.files for word in file.words)


def _exchanges(call: Call) -> bool:
    """Whether it may average gradients or parameters: metrics and barriers are something else."""
    given = " ".join(call.arguments.values())
    loops = " ".join(f"{loop.target} {loop.over}" for loop in call.loops)
    return bool(_EXCHANGES.search(call.name) and _OF_GRADIENTS.search(f"{given} {loops}"))


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
        if call.name == "text" and "find_unused" in call.arguments["0"]:
            text = f"{call.arguments['0']} costs time in every step: is a parameter unused?"
            yield note(here(call), text, evidence=[written(script, call)])
        named = {"find_unused_parameters", "ddp_find_unused_parameters"} & {*call.arguments}
        if (
            call.name not in DDP
            and any(call.arguments[option] == "True" for option in named)
            and ":" not in call.name
        ):
            text = f"{sorted(named)[0]}=True costs time in every step: is a parameter unused?"
            yield note(here(call), text, evidence=[written(script, call)])
        if call.name in DDP and _looks(script, call) and call.arguments.get("static_graph", "False") == "False":
            if _is_called_in_several_ways(script, call) or _has_branches(script, call):
                continue
            if _may_be_unused(script, call):
                text = "find_unused_parameters=True costs time in every step: is a parameter unused?"
                yield note(here(call), text, evidence=[written(script, call)])
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


def _looks(script: Script, call: Call) -> bool:
    """Whether it is given True, as written, as a constant that is handed on, or as an option's default."""
    if given_to(script, call, "find_unused_parameters", "find_unused_parameters") == "True":
        return True
    ways = [way for way in script.trace if way.place == call.place and way.name == call.name]
    return bool(ways) and all("True" in tags(way, "find_unused_parameters") for way in ways)


def _is_called_in_several_ways(script: Script, call: Call) -> bool:
    """Whether its calls differ by which arguments they have, or by a constant among these."""
    ways = {
        frozenset((name, text if _CONSTANT.fullmatch(text) else "") for name, text in use.arguments.items())
        for use in script.calls
        if use.wrapped and use.on == call.target and use.file == call.file
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
    built = [
        maker for maker in in_function(script, call.function) if maker.target == model and maker.line < call.line
    ]
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
    - **you** `torch.distributed.destroy_process_group()` as the last line: of the main module, or of the function
      that is spawned. There is no diff where that block ends in `return` or `sys.exit()`, where several functions
      are spawned, or where the function that would destroy it is there and not called.

    ## Source
    PyTorch documentation, torch.distributed, "Shutdown".
    """
    calls = of_many_ranks(script)
    never = _never_called(script)
    ended = [call for call in script.trace if call.name.endswith("destroy_process_group")]
    if ended and all((guard := by_rank(call)) and guard.branch != "rest" for call in ended):
        yield note(here(ended[0]), "the process group is destroyed on some ranks only",
                   evidence=[written(script, ended[0])])  # fmt: skip
        return
    if not says(script, "destroy_process_group") or never:
        init = next((call for call in calls if call.name == INIT), None)
        if init is None:
            return
        others = re.search(r"gloo|mpi|ucc", " ".join(init.arguments.values()))
        if others or (says(script, "gloo") and not says(script, "nccl")):
            return
        text = "the process group is never destroyed"
        if never:
            text += f": nothing calls {never.function.rpartition(':')[2]}(), which would"
        evidence = [written(script, init), *([written(script, never)] if never else [])]
        text_of_fix = "Destroy it at the end, on all ranks."
        yield note(here(init), text, evidence=evidence, fix=[_at_end(script, text_of_fix, init, never)])


def _at_end(script: Script, text: str, init: Call, never: Call | None) -> Remedy:
    """After the last thing that the main module, or the function that is spawned, does under no condition."""
    spawned = [function for call in reached(script) for function in started_by(call)]
    named = [f"{file.name}:" for file in script.files if file.named]
    function = next(iter(spawned or named), "")
    file, _, name = function.partition(":")
    at, blanks = next((source.ends.get(name, (0, 0)) for source in script.files if source.name == file), (0, 0))
    line, home = line_of(script, file, at), dist(script, file) or "torch.distributed"
    if never or len({*spawned}) > 1 or (not spawned and len(named) > 1) or not line:
        return you(text)
    plain = init.function == function and all(guard.kind == "main" for guard in init.guards)
    new = [f"{home}.destroy_process_group()"]
    if not plain:
        new = [f"if {home}.is_initialized():", f"    {new[0]}"]
    change = {at: "\n".join([line, *(" " * blanks + part for part in new)])}
    return edited(script, text, file, change, needs="" if dist(script, file) else "torch.distributed")


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
    - **you** sum losses on the GPU, and read the sum every hundred steps. The diff does so for
      `total += loss.item()` and for what is printed in a loop that counts its steps. There is none where the
      number is handed on, as to `meter.update(loss.item())` or a list: whether that takes a tensor of a GPU is
      not seen.

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
    loops: set[tuple[str, int]] = set()
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
        if not steps & inside or (call.file, loop) in loops or _on_cpu(script, call):
            continue
        if not _has_few_steps(call) and not _waits_anyway(script, call):
            loops.add((call.file, loop))
            yield _read_in_every_step(script, call)
    for call in reached(script):
        of_step = not loops and call.function in each_step(script) and not call.loops
        by_all = not any(guard.branch != "rest" for guard in call.guards)
        if of_step and by_all and call.name in _READS and _RESULTS.search(call.on) and not _on_cpu(script, call):
            yield _read_in_every_step(script, call)
            return


def _read_in_every_step(script: Script, call: Call) -> Finding:
    what = "the loss" if "loss" in _read(call).lower() else "a result"
    return note(
        here(call),
        f"{what} is read from the GPU in every step",
        evidence=[written(script, call)],
        fix=[_read_seldom(script, call)],
    )


def _read_seldom(script: Script, call: Call) -> Remedy:
    """Sums stay on the GPU; what is shown in a loop that counts its steps is shown every hundred of them."""
    loop = call.loops[-1] if call.loops else None
    reads = {
        other.line: other
        for other in in_function(script, call.function)
        if (other.name in _READS or other.name == "float") and other.loops == call.loops and loop
        and other.guards == call.guards
        and _RESULTS.search(_read(other))
    }  # fmt: skip
    count = re.match(r"\(?(\w+)(?:,|$)", loop.target) if loop and re.match(r"range|enumerate", loop.over) else None
    parts: list[Change | None] = []
    for at, other in sorted(reads.items()):
        line = line_of(script, other.file, at)
        if re.match(r"\s*[\w.]+ \+= ", line) and line.count(".item()") == 1 and single(script, other):
            parts.append({at: line.replace(".item()", ".detach()")})
        elif count and re.match(
            r"print\(|[\w.]+\.(?:info|log|add_scalar|set_postfix|set_description)\(", single(script, other)
        ):
            blank = indent(line)
            parts.append({at: f"{blank}if {count.group(1)} % 100 == 0:\n{blank}    {line.strip()}"})
        else:
            parts.append(None)
    text = "Sum on the GPU, and read the sum every hundred steps."
    return changed(script, text, call.file, *parts) if parts else you(text)


def _read(call: Call) -> str:
    """What is read, by name."""
    return call.arguments.get("0", "") if call.name == "float" else call.on


def _is_of_the_step(script: Script, call: Call) -> bool:
    """Whether backward is called on what is read: it is a tensor."""
    return any(
        backward.name == ".backward" and backward.on == _read(call) and backward.line < call.line
        for backward in in_function(script, call.function)
    ) and not any(
        maker.target == _read(call) and maker.name in _READS for maker in in_function(script, call.function)
    )


def _has_few_steps(call: Call) -> bool:
    """Whether its loops say so in plain numbers: `for step in range(6)`."""
    counts = [re.fullmatch(r"range\((\d+)\)", loop.over) for loop in call.loops]
    return math.prod(int(count.group(1)) if count else _FEW_STEPS + 1 for count in counts) <= _FEW_STEPS


def _waits_anyway(script: Script, call: Call) -> bool:
    """Whether each step of its loop waits for the GPU in any case, as one that is timed does."""
    loop = call.loops[-1]
    words = next((file.words for file in script.files if file.name == call.file), [])
    if "synchronize" in words and not any(wait.name == _WAITS and wait.file == call.file for wait in script.calls):
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
        maker.name == ".pin_memory" or "cpu" in maker.arguments.get("device", "")
        for maker in in_function(script, call.function)
        if maker.target == call.on and maker.line < call.line
    )
