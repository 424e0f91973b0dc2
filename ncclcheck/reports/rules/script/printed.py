"""SCR019, SCR036: what is printed and logged is of all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, note, you
from ncclcheck.reports.subjects.script.changes import after, at_line, changed, dist, is_started, spelled
from ncclcheck.reports.subjects.script.scripts import (
    SAMPLER,
    by_rank,
    here,
    in_function,
    indent,
    line_of,
    of_own_steps,
    reached,
    says,
    script_rule,
    splits_model,
    written,
)
from ncclcheck.reports.subjects.script.steps import shares_model
from ncclcheck.reports.subjects.script.traced import in_training, made_at, objects, tags, training_loaders

# Where a loss is logged, and words by which it may be one of all ranks.
_LOGS = re.compile(r"(?:^|\.)(?:print|info|log|log_metrics|add_scalars?|set_postfix|set_description|write)$")
_REDUCES = re.compile(r"reduce|gather|synchronize_between|average_across|average_loss|sync_dist|torchmetrics")
_HELD_OUT = re.compile(r"val|test|eval|\bdev", re.IGNORECASE)
_BY_RANKS = re.compile(r"/ (?:\w+\.)*(?:world_size|get_world_size\(\))\)*$")
_BAR = re.compile(r"set_postfix|set_description")
_EXCHANGED = re.compile(r"reduc|gather|synchroni[sz]e_|average_across|send|recv|all_to_all", re.IGNORECASE)
# A name in an f-string, or as an argument.
_SHOWN = r"(?P<ahead>[{{(](?={0}[:}}).!,])|(?:^\s*|, )(?={0}[).,])){0}"
_LONG = 40  # lines of a block that logs (chosen)
_DEEP = 3  # functions within functions that are looked at


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
    rank; there no name in any file speaks of reducing or gathering. So with numbers of a validation whose samples
    are shared out, of which nothing, or a part, is reduced since its loader began. Scripts that split the model by
    pipeline or tensor parallelism are not judged: their ranks share samples.

    ## Fix
    - **you** `dist.all_reduce(loss, op=dist.ReduceOp.AVG)` of a detached copy, on all ranks, before it is printed.
      The diff does so where the loss of the step is printed as it is, and all ranks come to the condition. There
      is none for sums, counts and averages of an epoch: what they are divided by must be summed over ranks too.

    ## Source
    PyTorch documentation, torch.distributed, all_reduce.
    """
    calls = of_own_steps(script)
    if splits_model(script):
        return
    findings = [*_validated(script, calls)] or [*_of_own_share(script)] or [*_own_metric(script)]
    yield from findings
    if logged := _own_logged(script):
        yield _alone(script, logged, "the loss that is logged is that of one rank's samples alone")
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
            yield _alone(script, call, "what is printed is of rank 0's samples alone")
            return
    if any(_REDUCES.search(word) for file in script.files for word in file.words):
        return
    if logged := next((call for call in calls if _logs_loss(calls, call) and _of_one_rank(calls, call)), None):
        yield _alone(script, logged, "the loss that is logged is that of one rank's samples alone")


def _alone(script: Script, call: Call, what: str) -> Finding:
    return note(here(call), what, evidence=[written(script, call)], fix=[_averaged(script, call)])


def _averaged(script: Script, call: Call) -> Remedy:
    """The mean over ranks of a loss that has one name there, made before the condition on the rank."""
    text = "Average it over all ranks first, before the condition on the rank."
    line, home = line_of(script, call.file, call.line), dist(script, call.file)
    static = next((other for other in script.calls if (other.place, other.name) == (call.place, call.name)), call)
    guard = next((guard for guard in static.guards if guard.kind == "rank"), None)
    steps = [other for other in in_function(script, static.function) if other.name == ".backward"]
    losses = {other.on for other in steps if other.on.isidentifier()}
    if not losses and "loss" in line and not steps:
        losses = {given for given in static.arguments.values() if re.fullmatch(r"\w*loss", given)}
    block = _block(script, call.file, guard.line) if guard else {}
    names = [name for name in losses if any(re.search(_SHOWN.format(name), line) for line in block.values())]
    outer = static.guards[: static.guards.index(guard)] if guard else ()
    if (
        len(names) != 1 or guard is None or guard.branch != "if" or not home
        or not is_started(script, call) or (static.loops and guard.line < static.loops[-1].line)
        or any(guard.kind != "main" for guard in outer) or call.line not in block
    ):  # fmt: skip
        return you(text)
    name = names[0]
    before = at_line(script, call.file, guard.line, f"mean_{name} = {name}.detach().clone()",
                     f"{home}.all_reduce(mean_{name})", f"mean_{name} /= {home}.get_world_size()")  # fmt: skip
    shown = {at: re.sub(_SHOWN.format(name), rf"\g<ahead>mean_{name}", line) for at, line in block.items()}
    return changed(script, text, call.file, before, {at: new for at, new in shown.items() if new != block[at]})


def _block(script: Script, file: str, head: int) -> dict[int, str]:
    """The lines under a condition, as far as they are known."""
    lines: dict[int, str] = {}
    depth, known = (
        indent(line_of(script, file, head)),
        next(kept.lines for kept in script.files if kept.name == file),
    )
    for at in range(head + 1, head + _LONG):
        line = known.get(str(at))
        if line is None or (line.strip() and len(indent(line)) <= len(depth)):
            break
        lines[at] = line
    return lines


def _own_logged(script: Script) -> Call | None:
    """Where one rank logs what was made of its own training samples, in whatever function."""
    trained = training_loaders(script)
    for call in script.trace:
        if not _LOGS.search(call.name) or not in_training(script, call) or _BAR.search(call.name):
            continue
        given = set().union(*(tags(call, key) for key in call.values if key != "on"))
        alone = by_rank(call) or "some" in tags(call, "on")
        words = " ".join(call.arguments.values()).lower()
        from_training = any(f"from:{loader}" in given for loader in trained)
        if (
            alone
            and from_training
            and "own" in given
            and re.search(r"loss|acc", words)
            and not _HELD_OUT.search(words)
            and "rank" not in words
            and not _REDUCES.search(words)
        ):
            return call
    return None


def _own_metric(script: Script) -> Iterator[Finding]:
    """Where one rank prints or logs numbers of its own share of the samples of a validation."""
    trained = training_loaders(script)
    for call in script.trace:
        if (
            not _LOGS.search(call.name)
            or _BAR.search(call.name)
            or not (by_rank(call) or "some" in tags(call, "on"))
        ):
            continue
        given = set().union(*(tags(call, key) for key in call.values if key != "on"))
        sources = [tag.removeprefix("from:") for tag in sorted(given) if tag.startswith("from:loader@")]
        others = [made for tag in sources if tag not in trained and (made := made_at(script, tag))]
        shared = [made for made in others if objects(made, "sampler", "sampler")]
        begun = {loader for made in shared for loader in sources if made_at(script, loader) is made}
        exchanged = _exchanged_since(script, call, begun)
        partly = "agreed" in given and not any(re.search(r"gather|object", name) for name in exchanged)
        if (
            "own" in given
            and shared
            and (not exchanged or partly)
            and "rank" not in " ".join(call.arguments.values()).lower()
        ):
            text = "what is shown of the validation is made of one rank's share of its samples"
            yield note(here(call), text, evidence=[written(script, call), written(script, shared[0])],
                       fix=[you("Sum its numbers over all ranks first: all_reduce.")])  # fmt: skip
            return


def _exchanged_since(script: Script, call: Call, loaders: set[str]) -> list[str]:
    """What ranks exchange between the beginning of a loader and the call."""
    names: list[str] = []
    for other in script.trace:
        if other is call:
            return names
        if other.name == "iterate" and objects(other, "0", "loader") & loaders:
            names = []
        elif _EXCHANGED.search(other.name):
            names.append(other.name)
    return names


def _of_own_share(script: Script) -> Iterator[Finding]:
    """A validation of shared out samples after which ranks exchange nothing until the training goes on."""
    trained = training_loaders(script)
    trace = script.trace
    for at, call in enumerate(trace):
        loader = next(iter(sorted(objects(call, "0", "loader"))), "") if call.name == "iterate" else ""
        made = made_at(script, loader) if loader and loader not in trained else None
        samplers = objects(made, "sampler", "sampler", "sampled", "plain") if made else set()
        if (
            not made
            or by_rank(call)
            or not samplers
            or not all(sampler.startswith("sampler@") for sampler in samplers)
        ):
            continue
        rest = trace[at + 1 :]
        reads = [read for read in rest if call.loops[-1] in read.loops and read.name == ".item"]
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
        callers = [caller for caller in calls if caller.name == call.function]
        if not callers or any(_reduces(script, caller.function, _DEEP) for caller in callers):
            continue
        if any(_REDUCES.search(word) for file in script.files if file.name == call.file for word in file.words):
            continue
        text = "the validation's samples are shared out, and its numbers are summed over no ranks"
        yield note(here(call), text, evidence=[written(script, call), written(script, shared[0])])
        return


def _reduces(script: Script, function: str, deep: int) -> bool:
    return any(
        re.search(r"reduce|gather|synchroni|average_|sync", call.name.rpartition(".")[2])
        or (deep and ":" in call.name and _reduces(script, call.name, deep - 1))
        for call in in_function(script, function)
    )


def _logs_loss(calls: list[Call], call: Call) -> bool:
    """A loss of the training, in its loop; a validation may be done by one rank as a whole."""
    words = " ".join([*call.arguments.values(), call.function.rpartition(":")[2], call.on])
    trains = any(backward.name == ".backward" and backward.function == call.function for backward in calls)
    return (
        bool(call.loops) and trains and _LOGS.search(call.name) is not None
        and "loss" in words.lower() and not _HELD_OUT.search(words)
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
    of_own_steps(script)
    for call in reached(script):
        divided = call.name == ".backward" and _BY_RANKS.search(call.on)
        if divided and call.loops and shares_model(script):
            yield note(
                here(call),
                "the loss is divided by the number of ranks, and DDP averages the gradients too",
                evidence=[written(script, call)],
                fix=[
                    changed(
                        script,
                        "Call backward on the loss itself.",
                        call.file,
                        spelled(script, call.file, call.line, f"({call.on})", call.on.partition(" / ")[0]),
                    )
                ],
            )
            break
    for call in script.trace:
        given = set().union(*(tags(call, key) for key in call.values if key != "on"), set())
        if _LOGS.search(call.name) and "summed" in given:
            yield note(
                here(call),
                "this is the sum of all ranks' averages: it grows with the number of ranks",
                evidence=[written(script, call)],
                fix=[_divided(script, call)],
            )
            return


def _divided(script: Script, call: Call) -> Remedy:
    """After the all_reduce of what is logged there, where it has a name."""
    text = "Reduce it with ReduceOp.AVG, or divide it by the number of ranks."
    line = line_of(script, call.file, call.line)
    given = {
        other.arguments.get("0", ""): other
        for other in in_function(script, call.function)
        if other.name == "torch.distributed.all_reduce" and other.line < call.line
    }
    sums = [name for name in given if name.isidentifier() and re.search(rf"\b{name}\b", line)]
    home = dist(script, call.file)
    if len(sums) != 1 or not home:
        return you(text)
    new = f"{sums[0]} /= {home}.get_world_size()"
    return changed(script, text, call.file, after(script, given[sums[0]], new))
