"""SCR007 to SCR009: every rank trains on its own samples, in another order each epoch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import structs

from ncclcheck.probes.facts.script import Call, Loop, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, fail, note, seen, warn, you
from ncclcheck.reports.subjects.script.processes import INIT
from ncclcheck.reports.subjects.script.scripts import (
    LOADER,
    SAMPLER,
    edited,
    here,
    imports,
    in_function,
    indent,
    line_of,
    of_many_ranks,
    reached,
    says,
    script_rule,
    written,
)
from ncclcheck.reports.subjects.script.sides import numbers
from ncclcheck.reports.subjects.script.steps import shares_model
from ncclcheck.reports.subjects.script.traced import (
    begun_anew,
    counts_epochs,
    made_at,
    objects,
    tags,
    training_loaders,
)

# Words of a dataset that shares itself out; and of a sampler of the script's own.
_SPLIT_OTHERWISE = ("split_dataset_by_node", "split_by_node", "num_shards", "shard", "IterableDataset")
_SHARED_OUT = (*_SPLIT_OTHERWISE, "num_replicas", "batch_sampler")
# Samplers of torch that know nothing of ranks; one of any other name may.
_OF_ONE_PROCESS = re.compile(r"torch\.utils\.data\.(?:sampler\.)?\w+Sampler")
_PLAIN_SAMPLER = re.compile(r"(?:[\w.]+\.)?(?:Random|Sequential)Sampler\(")
_WRAPS = re.compile(r"(?:^torch|^apex)\..*\.DistributedDataParallel$")
_ASKS_FOR_GROUP = re.compile(r"^(?!not )[\w.]*initiali[sz]ed\(\)")
_DATASET = re.compile(r"(?:^|[._])(?:data_?sets?|ds|data)(?:_(?!loader|sampler)\w+)?$", re.IGNORECASE)
_ENDLESS = ("True", "1", "count()", "itertools.count()")
_HELD_OUT = re.compile(r"val|test|eval|dev", re.IGNORECASE)


@script_rule("SCR007", "every rank trains on its own samples", worst=State.WARN)
def shared_out(script: Script) -> Iterator[Finding]:
    """
    ## What
    A DataLoader that shuffles, in a script with DistributedDataParallel, and nothing that shares the samples out.
    Or `DistributedSampler(num_replicas=0)`, which shares them out among no ranks, and `rank=0` on all of them.

    ## Why it matters
    Every rank goes through the whole dataset: an epoch takes as long as on one GPU, and with one seed for all
    ranks they all train on the same batches. With num_replicas=0 DistributedSampler raises "Invalid rank".

    ## How we know
    `DataLoader(..., shuffle=True)` without a sampler, while nothing builds a DistributedSampler or a sampler of
    its own, and no file speaks of shards. Or, where the script can be followed from its first line, such a
    loader whose samples a backward pass comes from, whatever sampler another loader has. Validation loaders,
    iterable datasets, datasets that are given the rank, lists of loaders, what is done before `mp.spawn` in its
    process, and scripts whose library does this are not judged.

    ## Fix
    - **you** give the loader `sampler=DistributedSampler(dataset)` in place of `shuffle=True`, and call
      `sampler.set_epoch(epoch)`.

    ## Source
    PyTorch documentation, torch.utils.data.distributed.DistributedSampler.
    """
    calls = of_many_ranks(script)
    for call in calls:
        if call.name in SAMPLER and call.arguments.get("num_replicas", call.arguments.get("1")) == "0":
            yield warn(
                here(call),
                "num_replicas=0: the samples are shared out among no ranks",
                why='DistributedSampler raises "Invalid rank": no rank is in an interval of none.',
                owner="job",
                evidence=[written(script, call)],
                fix=[you("Leave num_replicas and rank out: the sampler takes both from the group.")],
            )
    places = set()
    for call in _of_one_number(script):
        yield warn(
            here(call),
            "the sampler is given one number as the rank, on all ranks",
            why="All ranks get the same part of the samples, and the rest is never seen.",
            owner="job",
            evidence=[written(script, call)],
            fix=[you("Leave rank and num_replicas out: the sampler takes both from the group.")],
        )
    if early := _asked_early(script):
        call, start = early
        yield warn(
            here(call),
            f"the sampler is built only where the group is started, which happens later, at {start.place}",
            why="There is no group yet: every rank goes through the whole dataset.",
            owner="job",
            evidence=[written(script, call), written(script, start)],
            fix=[you("Start the group before the loader is built.")],
        )
    for call in _not_shared(script):
        places.add(call.place)
        yield _whole(script, call)
    if not any(_WRAPS.search(call.name) for call in calls) or says(script, *_SHARED_OUT) or _own_sampler(calls):
        return
    by_rank = {call.target for call in calls if call.by_rank and call.target}
    for call in calls:
        if call.arguments.get("0", call.arguments.get("dataset", "")) in by_rank or "sampler" in call.arguments:
            continue
        if call.inner:
            continue  # one of several in a list: each rank may take its own
        function = call.function.rpartition(":")[2]
        held_out = _HELD_OUT.search(" ".join([call.target, call.arguments.get("0", ""), function]))
        single = any(guard.kind == "group" for guard in call.guards)
        if call.name in LOADER and _at_random(call) and not held_out and not single and call.place not in places:
            yield _whole(script, call)


def _whole(script: Script, call: Call) -> Finding:
    return warn(
        here(call),
        "the samples are not shared out among the ranks",
        why="Every rank goes through the whole dataset, so an epoch is no faster than on one GPU.",
        owner="job",
        evidence=[written(script, call)],
        fix=[_sampled(script, call)],
    )


def _at_random(loader: Call) -> bool:
    return loader.arguments.get("shuffle", loader.arguments.get("2")) == "True"


def _of_one_number(script: Script) -> Iterator[Call]:
    """Samplers of several ranks whose rank is a number that is written there."""
    places = set()
    for call in script.trace:
        rank = call.arguments.get("rank", call.arguments.get("2", ""))
        single = call.arguments.get("num_replicas", call.arguments.get("1", "")) in ("0", "1", "")
        asked = any(guard.kind in ("rank", "group") for guard in call.guards)
        if call.name in SAMPLER and rank.isdecimal() and not single and not asked and call.place not in places:
            places.add(call.place)
            yield call


def _asked_early(script: Script) -> tuple[Call, Call] | None:
    """A sampler under the question whether there is a group, before all calls that start one."""
    starts = [at for at, call in enumerate(script.trace) if call.name == INIT]
    asked = [
        (at, call)
        for at, call in enumerate(script.trace)
        if call.name in SAMPLER
        and any(_ASKS_FOR_GROUP.search(guard.text) and guard.branch == "if" for guard in call.guards)
    ]
    if starts and asked and asked[-1][0] < starts[0]:
        return asked[0][1], script.trace[starts[0]]
    return None


def _not_shared(script: Script) -> Iterator[Call]:
    """Loaders that a backward pass takes samples from, which shuffle by themselves and know of no rank."""
    if not shares_model(script) or says(script, *_SPLIT_OTHERWISE):
        return
    for loader in training_loaders(script):
        call = made_at(script, loader)
        if call is None or call.name not in LOADER or "batch_sampler" in call.arguments:
            continue
        if any(guard.kind == "group" and guard.branch != "if" for guard in call.guards):
            continue
        sampler = tags(call, "sampler") | tags(call, "3")
        alone = _at_random(call) and "sampler" not in call.arguments
        alone |= {*numbers(call, "sampler", "3")} == {"None"} and {*numbers(call, "shuffle", "2")} == {"True"}
        alone |= bool(sampler) and all(tag.startswith("plain@") for tag in sampler)
        knows = {"rank", "local", "byrank", "world", "share", "own"} & (tags(call, "0") | tags(call, "dataset"))
        if alone and not knows:
            yield call


def _own_sampler(calls: list[Call]) -> bool:
    """A sampler that may know the rank: built by this name, or given to a loader as something not built here."""
    plain = {call.target for call in calls if _OF_ONE_PROCESS.fullmatch(call.name)} - {""}
    given = {call.arguments.get("sampler", "None") for call in calls if call.name in LOADER}
    known = {"None", *plain}
    own = [call for call in calls if call.name.endswith("Sampler") and not _OF_ONE_PROCESS.fullmatch(call.name)]
    shared = any(call.name in SAMPLER for call in calls)
    return bool(own) or shared or any(tag not in known and not _PLAIN_SAMPLER.match(tag) for tag in given)


def _sampled(script: Script, call: Call) -> Remedy:
    text = "Share them out with DistributedSampler, and call its set_epoch(epoch) in each epoch."
    line, data = line_of(script, call.file, call.line), call.arguments.get("0", "")
    if line.count("shuffle=True") != 1 or not re.fullmatch(r"[\w.]+", data):
        return edited(script, text, call.file, None)
    new = line.replace("shuffle=True", f"sampler=torch.utils.data.distributed.DistributedSampler({data})")
    return edited(script, text, call.file, {call.line: new} if imports(script, call.file, "torch") else None)


@script_rule("SCR008", "a loader with a sampler does not shuffle by itself", worst=State.FAIL)
def shuffled_once(script: Script) -> Iterator[Finding]:
    """
    ## What
    `DataLoader(..., sampler=..., shuffle=True)`.

    ## Why it matters
    DataLoader raises "sampler option is mutually exclusive with shuffle": the job ends as it starts.

    ## How we know
    Both stand in one call, and the sampler is built by DistributedSampler under no condition but
    that there are several ranks.

    ## Fix
    - **you** leave out `shuffle=True`; DistributedSampler shuffles. Where there is none without a group, write
      `shuffle=sampler is None`.

    ## Source
    PyTorch source, torch/utils/data/dataloader.py; documentation of DistributedSampler.
    """
    built = {
        (call.function, call.target)
        for call in reached(script)
        if call.name in SAMPLER and all(guard.kind in ("group", "main") for guard in call.guards)
    }
    places = set()
    for call in script.trace:
        given = objects(call, "sampler", "sampler", "plain", "sampled") if call.name in LOADER else set()
        if given and "True" in tags(call, "shuffle") and call.place not in places:
            places.add(call.place)
            yield _twice(script, call)
    for call in reached(script):
        if call.place in places:
            continue
        sampler = call.arguments.get("sampler", "")
        is_one = (call.function, sampler) in built or "DistributedSampler(" in sampler
        if call.name in LOADER and call.arguments.get("shuffle") == "True" and is_one:
            yield _twice(script, call)


def _twice(script: Script, call: Call) -> Finding:
    return fail(
        here(call),
        "the loader is given a sampler and shuffle=True",
        why="DataLoader refuses this: the job ends as it starts.",
        owner="job",
        evidence=[written(script, call)],
        fix=[_without_shuffle(script, call)],
    )


def _without_shuffle(script: Script, call: Call) -> Remedy:
    sampler = call.arguments.get("sampler", "")
    if _is_for_groups_alone(script, call, sampler):
        new = f"shuffle={sampler} is None"
        text = f"Shuffle only where there is no sampler: {new}."
        for at in range(call.first, call.last + 1):
            line = line_of(script, call.file, at)
            if line.count("shuffle=True") == 1:
                return edited(script, text, call.file, {at: line.replace("shuffle=True", new)})
        return edited(script, text, call.file, None)
    for at in range(call.first, call.last + 1):
        line = line_of(script, call.file, at)
        if line.count("shuffle=True") == 1:
            left = re.sub(r", *shuffle=True|shuffle=True,? *", "", line)
            change = {at: left if left.strip() else None}
            return edited(script, "Leave out shuffle=True.", call.file, change)
    return edited(script, "Leave out shuffle=True.", call.file, None)


def _is_for_groups_alone(script: Script, loader: Call, sampler: str) -> bool:
    """Whether there may be no group, and then no sampler."""
    return any(
        call.name in SAMPLER and call.target == sampler and any(guard.kind == "group" for guard in call.guards)
        for call in in_function(script, loader.function)
    )


@script_rule("SCR009", "the sampler is given every epoch", worst=State.WARN)
def epochs(script: Script) -> Iterator[Finding]:
    """
    ## What
    A DistributedSampler that shuffles, a loop over epochs, and no `set_epoch`.

    ## Why it matters
    Every epoch has the same order and the same samples on each rank: the model trains worse, and nothing says so.

    ## Seen as
    setting without effect

    ## How we know
    The script is followed from its first line: the samples of a backward pass come from a loader with that
    sampler, a loop begins the loader again and again, and no `set_epoch` is called of it. Where that cannot be
    followed: no file has the word `set_epoch`. Samplers with `shuffle=False` and those of validation are not
    judged. It is a note where `set_epoch` is called of a dataset or of another sampler of the function only, and
    where no loop counts epochs and the sampler's loader is begun anew, as `iter(loader)` in a loop or a
    generator does.

    ## Fix
    - **you** `sampler.set_epoch(epoch)` as the first line of the epoch's loop.

    ## Source
    PyTorch documentation, torch.utils.data.distributed.DistributedSampler.
    """
    calls = of_many_ranks(script)
    judged = set()
    if constant := _of_one_epoch(script):
        call, number = constant
        yield warn(
            here(call),
            f"the sampler is told {number} in every epoch",
            why="It gives the same order in every epoch.",
            owner="job",
            evidence=[written(script, call)],
            fix=[you("Give it the number of the epoch, and count it.")],
        )
    for call, informed, anew in _followed(script):
        judged.add(call.place)
        if anew and not informed:
            loop = structs.replace(anew[1], of="", file="")
            yield warn(
                here(call),
                f"the sampler is never given the epoch of the loop at {_head(anew)}",
                why="It gives the same order in every epoch.",
                owner="job",
                evidence=[written(script, call), seen(_head(anew), _loop(loop))],
                fix=[_told(script, call, calls, _file(anew), loop)],
            )
    for call in calls:
        if call.place in judged:
            continue
        named = " ".join([call.target, call.arguments.get("0", ""), call.function.rpartition(":")[2]])
        still = call.arguments.get("shuffle", call.arguments.get("3")) == "False" or "*" in call.arguments
        if call.name not in SAMPLER or still or _HELD_OUT.search(named) or _is_told(script, call):
            continue
        if not (place := _epochs(calls, call)):
            if (again := _begun_anew(calls, call)) and _shuffles(calls, call):
                yield note(
                    here(call),
                    f"the sampler is never given the epoch, and its loader is begun anew at {again.place}",
                    why="It gives the same order each time.",
                    evidence=[written(script, call), written(script, again)],
                    fix=[you("Count how often the loader is begun, and give that to set_epoch before each.")],
                )
            continue
        file, loop = place
        if says(script, "set_epoch"):
            yield note(
                here(call),
                f"set_epoch is not called of this sampler, in the loop at {file}:{loop.line}",
                why="It gives the same order in every epoch.",
                evidence=[written(script, call), seen(f"{file}:{loop.line}", f"for {loop.target} in {loop.over}")],
                fix=[_told(script, call, calls, file, loop)],
            )
        else:
            yield warn(
                here(call),
                f"the sampler is never given the epoch of the loop at {file}:{loop.line}",
                why="It gives the same order in every epoch.",
                owner="job",
                evidence=[written(script, call), seen(f"{file}:{loop.line}", f"for {loop.target} in {loop.over}")],
                fix=[_told(script, call, calls, file, loop)],
            )


def _followed(script: Script) -> Iterator[tuple[Call, bool, tuple[Call, Loop] | None]]:
    """Samplers of the training, as a rank comes to them: whether they are told, and where the loader begins anew.

    What is not known in all its ways is not among them.
    """
    calls = [call for call in script.trace if call.name.endswith("set_epoch")]
    if any(not objects(call, "on", "sampler", "plain", "sampled") for call in calls):
        return
    if {file.name for file in script.files if "set_epoch" in file.words} - {call.file for call in calls}:
        return  # a word, as in hasattr, or what is not reached
    by_sampler: dict[str, tuple[Call, tuple[Call, Loop] | None]] = {}
    for loader in training_loaders(script):
        made = made_at(script, loader)
        samplers = made and objects(made, "sampler", "sampler", "sampled", "plain")
        if not made or not samplers or any(not sampler.startswith("sampler@") for sampler in samplers):
            continue
        for tag in samplers:
            call = made_at(script, tag)
            shuffle = tags(call, "shuffle") | tags(call, "3") if call else set()
            given = call and {"shuffle", "3"} & {*call.arguments}
            still = bool(given) and "True" not in shuffle
            call = next(
                (this for this in script.calls if call and this.place == call.place and this.name in SAMPLER), call
            )
            if call and not still and not {"*", "**"} & {*call.arguments}:
                by_sampler[tag] = call, begun_anew(script, loader)
    for tag, (call, again) in by_sampler.items():
        epoch_calls = [this for this in calls if tag in tags(this, "on")]
        if again and counts_epochs(again[1]):  # once before the loop is as good as never
            head = (again[1].file, again[1].line)
            epoch_calls = [
                this for this in epoch_calls if any((loop.file, loop.line) == head for loop in this.loops)
            ]
        yield call, bool(epoch_calls), again


def _of_one_epoch(script: Script) -> tuple[Call, str] | None:
    """Where a sampler is told one number in all rounds of a loop, and nothing tells it another."""
    calls = [call for call in script.trace if call.name == ".set_epoch" and objects(call, "on", "sampler")]
    numbers = [[tag[1:] for tag in tags(call, "0") if tag.startswith("=")] for call in calls]
    for call, number in zip(calls, numbers, strict=True):
        last = call.loops[-1] if call.loops else None
        if (
            number
            and last
            and not re.fullmatch(r"(?:tqdm\()?range\(1\)+", last.over)
            and all(other == number for other in numbers)
        ):
            return call, number[0]
    return None


def _head(again: tuple[Call, Loop]) -> str:
    return f"{_file(again)}:{again[1].line}"


def _file(again: tuple[Call, Loop]) -> str:
    """Of the loop: it may be that of a caller."""
    return again[1].file or again[0].file


def _loop(loop: Loop) -> str:
    return f"for {loop.target} in {loop.over}" if loop.target else f"while {loop.over}"


def _is_told(script: Script, sampler: Call) -> bool:
    """Whether some set_epoch may be its own: that of a dataset is not, nor that of a sampler beside it."""
    given = [call for call in script.calls if call.name.endswith("set_epoch")]
    if {file.name for file in script.files if "set_epoch" in file.words} - {call.file for call in given}:
        return True  # a word, as in hasattr
    beside = {call.target for call in script.calls if call.name in SAMPLER and call.function == sampler.function}
    beside -= {sampler.target}
    return any(
        not _DATASET.search(call.on) and not (call.function == sampler.function and call.on in beside)
        for call in given
    )


def _shuffles(calls: list[Call], sampler: Call) -> bool:
    """As written, or as its function is called."""
    given = sampler.arguments.get("shuffle", sampler.arguments.get("3", "True"))
    callers = [call.arguments.get(given, "") for call in calls if call.name == sampler.function]
    return given == "True" or "True" in callers


def _begun_anew(calls: list[Call], sampler: Call) -> Call | None:
    """Where the loader that has the sampler is begun again and again."""
    maker = sampler.function.rpartition(":")[2].rpartition(".")[2]
    loaders = {
        call.target
        for call in calls
        if call.name in LOADER and call.target
        and (given := call.arguments.get("sampler", ""))
        and ((given == sampler.target and call.function == sampler.function)
             or (maker and given.startswith(f"{maker}(")))
    }  # fmt: skip
    endless = {call.function: call for call in calls if call.name == "yield" and call.loops[-2].over in _ENDLESS}
    for call in calls:
        if call.file != sampler.file or loaders.isdisjoint(call.arguments.values()):
            continue
        if call.name in endless:
            return endless[call.name]
        if call.name == "iter" and call.loops and not _HELD_OUT.search(call.function.rpartition(":")[2]):
            return call
    return None


def _epochs(calls: list[Call], sampler: Call) -> tuple[str, Loop] | None:
    """The loop over epochs, in the sampler's own function first."""
    loops = [
        (call.function, loop.file or call.file, loop)
        for call in calls
        for loop in call.loops
        if counts_epochs(loop) and loop.over != "range(1)"
    ]
    loops.sort(key=lambda place: place[0] != sampler.function)
    return loops[0][1:] if loops else None


def _read_in(script: Script, calls: list[Call], file: str, loop: Loop) -> str:
    """The loader that the training goes through in each epoch, where it has its name before the epoch begins."""
    inner = {call.loops[-1] for call in calls if call.name == ".backward" and call.file == file
             and loop in call.loops[:-1]}  # fmt: skip
    if len(inner) != 1:
        return ""
    steps = inner.pop()
    match = re.fullmatch(r"(?:(?:enumerate|tqdm)\()?([\w.]+)\)?", steps.over)
    if not match:
        return ""
    made = re.compile(rf"\s*{re.escape(match.group(1))}\s*=")
    inside = range(loop.line + 1, steps.line)
    return "" if any(made.match(line_of(script, file, line)) for line in inside) else match.group(1)


def _written(calls: list[Call], sampler: Call) -> str:
    """How its function names it: made within the call of its loader it has no name but the loader's."""
    within = any(
        call.name in LOADER and call.target == sampler.target and call.function == sampler.function
        and call.first <= sampler.line <= call.last
        for call in calls
    )  # fmt: skip
    return f"{sampler.target}.sampler" if within else sampler.target


def _told(script: Script, sampler: Call, calls: list[Call], file: str, loop: Loop) -> Remedy:
    text = "Call its set_epoch(epoch) as the first line of the epoch's loop."
    inside = any(loop in call.loops and call.function == sampler.function for call in calls)
    head, after = line_of(script, file, loop.line), line_of(script, file, loop.line + 1)
    plain = head.rstrip().endswith(":") and len(indent(after)) > len(indent(head))
    if not (inside and plain and sampler.target.isidentifier() and loop.target.isidentifier()) or sampler.guards:
        loader = _read_in(script, calls, file, loop) if plain and loop.target.isidentifier() else ""
        blank = indent(after)
        lines = (head, f'{blank}if hasattr({loader}.sampler, "set_epoch"):',
                 f"{blank}{blank[len(indent(head)) :]}{loader}.sampler.set_epoch({loop.target})")  # fmt: skip
        return edited(script, text, file, {loop.line: "\n".join(lines)} if loader else None)
    call = f"{_written(calls, sampler)}.set_epoch({loop.target})"
    return edited(script, text, file, {loop.line: f"{head}\n{indent(after)}{call}"})
