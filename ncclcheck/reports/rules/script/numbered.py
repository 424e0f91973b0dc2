"""SCR051, SCR052: ranks are counted from 0 to the size of the group; what each process is handed is small."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, fail, note, warn, you
from ncclcheck.reports.subjects.script.processes import INIT, SPAWNS
from ncclcheck.reports.subjects.script.scripts import (
    edited,
    here,
    line_of,
    reached,
    says,
    script_rule,
    spawns,
    that_starts,
    written,
)
from ncclcheck.reports.subjects.script.sides import comes, is_always, numbers
from ncclcheck.reports.subjects.script.traced import apart, tags

_NEAR = 3  # lines above a call that are kept
_AND_ONE = re.compile(r"[^-]+\*[^-]+\+\s*[\w.]+\s*\+\s*1")
_IS_SUM = re.compile(r"[\w.]+ \* [\w.]+(?:\(\))? \+ [\w.]+")
_OPTION = re.compile(r"is:options\.\w+")
_FROM_ONE = re.compile(r"[\[(]1(?:, [1-9]\d*)*[\])]|range\(1, .+\)")
_GPUS = 8  # of a node: any number of them tells two counts of processes apart (chosen)
_COUNT = re.compile(r"\d+|device_count\(\)|Add|Sub|Mult|FloorDiv|[(),]")
_SUMS: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "FloorDiv": operator.floordiv,
}  # fmt: skip
_OF_LAUNCHER = re.compile(r"is:(?:int\()?\$(?:LOCAL_)?RANK\)?")
_LARGE = re.compile(
    r"(?:^|_)(?:model|net|network|data|datasets?|loaders?|dataloaders?|train_?set|test_?set|val_?set|samples|features"
    r"|images|embeddings|tensors?|df)(?:_|$)|(?:model|dataset|dataloader|loader)$",
    re.IGNORECASE,
)
_SIZES = re.compile(r"dim|size|name|path|dir|root|cfg|config|args|type|kind|id$|file|len|num|fn$", re.IGNORECASE)


@script_rule("SCR051", "ranks are counted from 0 to the size of the group", worst=State.FAIL)
def counted(script: Script) -> Iterator[Finding]:
    """
    ## What
    `init_process_group` that is given ranks from 1, one rank for all processes, a number of ranks other than that
    of the processes which are started, or, in a spawned process, no rank at all; and RANK or WORLD_SIZE that the
    script sets anew under a launcher which has set them.

    ## Why it matters
    The group waits until each rank below `world_size` has come: with a rank missing, or one given twice, all wait
    until the timeout, or the store refuses the second one.

    ## Seen as
    hangs, dies

    ## How we know
    The rank and the number of ranks are followed through variables, sums and functions, for four ranks on two
    nodes; `nprocs` of `spawn` is compared with `world_size` where both are numbers or made of `device_count()`.
    Ranks begin at 1 where they are made as `node * gpus + gpu + 1`, or are an option whose `choices` have no 0. It
    is a note where the rank is counted over the nodes and `world_size` is not, and where a script for torchrun
    counts its rank itself. A number of ranks that is written into a script for torchrun is a note, for it may be
    right on the day; so is an option whose default is the rank of every process. What stands under a condition
    that other ranks do not meet is not judged.

    ## Fix
    - **you** leave both to torchrun: `init_process_group("nccl")`; under `spawn` give the number of the process,
      and `world_size` as many as `nprocs`.

    ## Source
    PyTorch documentation, torch.distributed, "Initialization"; torch.multiprocessing.spawn.
    """
    that_starts(script)
    started = [call for call in script.trace if call.name in SPAWNS]
    places: set[str] = set()
    for call in script.trace:
        finding = None
        if call.name == INIT and call.place not in places and "store" not in call.arguments:
            finding = (
                _from_one(script, call)
                or _counted_from_one(script, call)
                or _beside_torchrun(script, call)
                or _of_nodes(script, call, started)
                or _one_rank(script, call)
                or _other_number(script, call, started)
                or _without_rank(script, call)
                or _of_the_launcher(script, call)
            )
        elif call.name == "os.environ.set" and call.place not in places:
            finding = _set_anew(script, call)
        if finding:
            places.add(call.place)
            yield finding
            if call.name != INIT:
                return  # what is set beside it is of the same kind


def _ranks(call: Call) -> tuple[str, ...]:
    """The rank on each of four ranks; empty where it is not known, or where some of them do not come there."""
    ranks = tuple(rank.strip("'\"") for rank in numbers(call, "rank", "4"))
    return ranks if ranks and comes(call) == (0, 1, 2, 3) and all(re.fullmatch(r"-?\d+", r) for r in ranks) else ()


def _from_one(script: Script, call: Call) -> Finding | None:
    ranks = _ranks(call)
    if not ranks or len({*ranks}) == 1 or "0" in ranks:
        return None
    given = _given(call, "rank", "4")
    return fail(
        here(call),
        f"no process has rank 0: {given} is {', '.join(sorted({*ranks}, key=int))}, and so on",
        why="Rank 0 opens the store: all others wait for it until the timeout.",
        owner="job",
        evidence=[written(script, call)],
        fix=[_by_variable(script, call, "Count ranks from 0", "rank", given, "RANK")],
    )


def _counted_from_one(script: Script, call: Call) -> Finding | None:
    """Ranks that are made as `node * gpus + gpu + 1`, and an option for the rank that takes no 0."""
    given = _given(call, "rank", "4")
    made = _as_made(script, call, given)
    evidence, text = [written(script, call)], ""
    if given and _AND_ONE.fullmatch(made):
        text = f"no process has rank 0: the rank is {made}"
    option = next((tag[len("is:options.") :] for tag in _made(call, "rank", "4") if _OPTION.fullmatch(tag)), "")
    for added in script.calls:
        spelled = {value.strip("'\"").lstrip("-").replace("-", "_") for value in added.arguments.values()}
        choices = added.arguments.get("choices", "")
        if option and added.name.endswith(".add_argument") and option in spelled and _FROM_ONE.fullmatch(choices):
            text = f"no process has rank 0: {given} is one of {choices}"
            evidence.append(written(script, added))
    if not text:
        return None
    why = "Rank 0 opens the store: all others wait for it until the timeout."
    return fail(here(call), text, why=why, owner="job", evidence=evidence, fix=[you("Count ranks from 0.")])


def _as_made(script: Script, call: Call, given: str) -> str:
    """What it is given in a line above the call; itself where none gives it anything."""
    for at in range(call.line - 1, call.line - _NEAR - 1, -1):
        if sum_ := re.match(rf"\s*{re.escape(given)}\s*=\s*([^#]+)", line_of(script, call.file, at)):
            return sum_.group(1).strip()
    return given


def _made(call: Call, name: str, position: str) -> list[str]:
    return [tag for tag in sorted(tags(call, name) | tags(call, position)) if tag.startswith("is:")]


def _beside_torchrun(script: Script, call: Call) -> Finding | None:
    """A rank that the script counts of a node's number which torchrun does not give, and of LOCAL_RANK."""
    made = next((tag for tag in _made(call, "rank", "4") if "Mult(" in tag and "$LOCAL_RANK" in tag), "")
    if not made or "$GROUP_RANK" in made or spawns(script):
        return None
    return note(
        here(call),
        f"{_given(call, 'rank', '4')} is counted by the script, of $LOCAL_RANK and the number of the node",
        why="torchrun gives each process $RANK; it sets no NODE_RANK, and may number nodes otherwise.",
        evidence=[written(script, call)],
        fix=[you('Take int(os.environ["RANK"]) and int(os.environ["WORLD_SIZE"]).')],
    )


def _of_nodes(script: Script, call: Call, started: list[Call]) -> Finding | None:
    """A number of ranks that stays as it was given, where the rank is multiplied by the processes of a node."""
    ranks, sizes = _made(call, "rank", "4"), _made(call, "world_size", "3")
    summed = any(rank.startswith("is:Add(Mult(") for rank in ranks) or _IS_SUM.fullmatch(
        _as_made(script, call, _given(call, "rank", "4"))
    )
    if (
        not summed
        or len(started) != 1
        or len(sizes) != 1
        or not re.fullmatch(r"is:(?:options\.\w+|\$\w+)", sizes[0])
    ):
        return None
    size = _given(call, "world_size", "3")
    multiplied = re.compile(rf"\b{re.escape(size.rpartition('.')[2])}\s*(?:\*=|=.*\*)")
    if any(multiplied.search(line) for file in script.files for line in file.lines.values()):
        return None
    return note(
        here(call),
        f"the rank counts the processes of all nodes, and world_size={size} is taken as it is given",
        why="If it is the number of nodes, as the rank that is given is a node's, the group refuses larger ranks.",
        evidence=[written(script, call), written(script, started[0])],
        fix=[you("Multiply it by the processes of a node, as the rank is.")],
    )


def _by_variable(script: Script, call: Call, text: str, name: str, given: str, variable: str) -> Remedy:
    """The launcher's number in place of an argument as it is written; spawned processes have none."""
    if spawns(script):
        return you(f"{text}.")
    line = line_of(script, call.file, call.line)
    spelled = re.escape(given).replace("'", "['\"]")
    new = re.sub(rf"\b{name}\s*=\s*{spelled}(?=\s*[,)])", f'{name}=int(os.environ["{variable}"])', line)
    change = {call.line: new} if given and new != line else None
    return edited(script, f"{text}: take ${variable}.", call.file, change, needs="os")


def _one_rank(script: Script, call: Call) -> Finding | None:
    """One number for all processes, where there are several."""
    ranks, count = _ranks(call), {number.strip("'\"") for number in numbers(call, "world_size", "3")}
    given, size = _given(call, "rank", "4"), _given(call, "world_size", "3")
    if len({*ranks}) != 1 or count == {"1"} or size == "1" or ranks[0].startswith("-"):
        return None
    by_option = "default" in tags(call, "rank") | tags(call, "4")
    if not is_always(call) or (by_option and not _by_launcher(script)):
        return None
    text = f"every process is given rank {ranks[0]}" + (f", unless {given} is given by hand" if by_option else "")
    why = "The other ranks never come: all wait until the timeout."
    evidence, fix = [written(script, call)], [you('Leave it to the launcher, or take int(os.environ["RANK"]).')]
    return (note if by_option else fail)(here(call), text, why=why, owner="job", evidence=evidence, fix=fix)


def _by_launcher(script: Script) -> bool:
    """Whether the script reads what torchrun gives each process."""
    return says(script, "LOCAL_RANK", "RANK") and not spawns(script)


def _given(call: Call, name: str, position: str) -> str:
    return call.arguments.get(name, call.arguments.get(position, ""))


def _count(call: Call, name: str, position: str) -> str:
    """A number of processes as it was made: `8`, `Mult(device_count(),2)`; empty where it is not known."""
    given = tags(call, name) | tags(call, position)
    if "default" in given:
        return ""  # the command line may say another one
    return next((tag.removeprefix("is:") for tag in sorted(given) if tag.startswith("is:")), "")


def _worth(count: str) -> int | None:
    """With so many GPUs; None where something else stands in it."""
    if not count or "".join(_COUNT.findall(count)) != count:
        return None
    return _reckon(count)[0]


def _reckon(text: str) -> tuple[int | None, str]:
    """The number that begins the text, and what is left of it."""
    if match := re.match(r"\d+", text):
        return int(match.group()), text[match.end() :]
    if text.startswith("device_count()"):
        return _GPUS, text[len("device_count()") :]
    head, _, inner = text.partition("(")
    if head not in _SUMS:
        return None, ""
    left, rest = _reckon(inner)
    right, rest = _reckon(rest[1:]) if rest[:1] == "," else (None, "")
    if left is None or right is None or rest[:1] != ")" or (head == "FloorDiv" and not right):
        return None, ""
    return _SUMS[head](left, right), rest[1:]


def _other_number(script: Script, call: Call, started: list[Call]) -> Finding | None:
    """More or fewer processes than the group waits for."""
    size = _given(call, "world_size", "3")
    asked = _count(call, "world_size", "3")
    if len(started) == 1 and spawns(script) and not apart(started[0], call):
        made = _given(started[0], "nprocs", "2")
        many, wanted = _worth(_count(started[0], "nprocs", "2")), _worth(asked)
        if many is None or wanted is None or many == wanted:
            return None
        if wanted > many > 0 and wanted % many == 0 and not (asked.isdecimal() and made.isdecimal()):
            return None  # that of several nodes
        return fail(
            here(call),
            f"{made} processes are started at {started[0].place}, and the group waits for world_size={size}",
            why="The group waits for ranks that never come, or refuses those that are too many.",
            owner="job",
            evidence=[written(script, call), written(script, started[0])],
            fix=[you("Give nprocs and world_size one number.")],
        )
    fixed = asked.isdecimal() and int(asked) > 1 and not started and not spawns(script)
    if fixed and _by_launcher(script):
        text = f"the group waits for {asked} ranks, however many the launcher starts"
        fix = _by_variable(script, call, "Count them by the launcher", "world_size", size, "WORLD_SIZE")
        return note(here(call), text, evidence=[written(script, call)], fix=[fix])
    return None


def _without_rank(script: Script, call: Call) -> Finding | None:
    """env:// in processes that the script spawns, while nothing gives them a rank."""
    url = _given(call, "init_method", "1").strip("'\"")
    spawned = any(other.name in SPAWNS for other in reached(script))
    if not spawned or {"rank", "4", "*"} & {*call.arguments} or (url and not url.startswith("env")):
        return None
    if says(script, "RANK"):
        return None
    return warn(
        here(call),
        "the script spawns its processes, and gives the group no rank",
        why='It raises "environment variable RANK expected, but not set".',
        owner="job",
        evidence=[written(script, call)],
        fix=[you("Give it rank= the number of the process, and world_size=.")],
    )


def _of_the_launcher(script: Script, call: Call) -> Finding | None:
    """A spawned process that takes its rank from a variable, which all of them inherit from the parent."""
    rank = _given(call, "rank", "4")
    starts = [other for other in script.trace if other.name in SPAWNS]
    if not starts or not rank or any(
        other.name == "os.environ.set" and other.arguments.get("0", "").strip("'\"") in ("RANK", "LOCAL_RANK")
        for other in script.calls
    ):  # fmt: skip
        return None
    given = tags(call, "rank") | tags(call, "4")
    if not any(_OF_LAUNCHER.fullmatch(tag) for tag in given):
        return None
    return warn(
        here(call),
        f"{rank} is read from a variable that all spawned processes have alike",
        why="All have one rank, and the group waits until the timeout; or none is set: KeyError.",
        owner="job",
        evidence=[written(script, call), written(script, starts[0])],
        fix=[you("Take the number that spawn gives each process.")],
    )


def _set_anew(script: Script, call: Call) -> Finding | None:
    """RANK, LOCAL_RANK or WORLD_SIZE that is set to a constant, or to another of the launcher's numbers."""
    name = call.arguments.get("0", "").strip("'\"")
    value = call.arguments.get("1", "")
    if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK") or spawns(script) or not _by_launcher(script):
        return None
    if not is_always(call) or "setdefault" in line_of(script, call.file, call.line):
        return None
    given = tags(call, "1")
    if name == "RANK" and "local" in given:
        text = "RANK is set to the rank in one node: on several nodes each is there twice"
    elif re.fullmatch(r"'\d+'|str\(\d+\)", value):
        text = f"{name} is set to {value}, whatever the launcher has given"
    else:
        return None
    return note(here(call), text, evidence=[written(script, call)], fix=[you(f"Leave {name} to the launcher.")])


@script_rule("SCR052", "spawned processes are handed little", worst=State.NOTE)
def handed(script: Script) -> Iterator[Finding]:
    """
    ## What
    A model, a dataset or a loader among `args` of `mp.spawn` or `Process`.

    ## Why it matters
    It is pickled once and unpickled in each process before that begins: the start takes as much longer, and the
    memory of the node holds it once for each rank; more than 4 GB is refused by older protocols of pickle.
    A tensor on a GPU keeps the parent on that GPU.

    ## How we know
    What is given there was built in the parent, or is called a model, a dataset or a loader. How large it is is
    not seen in the script: `ncclcheck bench --start spawn` measures a start.

    ## Fix
    - **you** build it in the function that each process runs, or let the tensors share memory
      (`tensor.share_memory_()`). There is no diff: where it is built, and of what, is a decision, and small things
      may well be handed on.

    ## Source
    Python documentation, multiprocessing, "Programming guidelines"; PyTorch documentation, "Multiprocessing best
    practices".
    """
    for call in reached(script):
        if call.name not in SPAWNS and not call.name.endswith(".Process"):
            continue
        texts = call.arguments.get("args", call.arguments.get("1", "") if call.name in SPAWNS else "")
        names = re.findall(r"(?<![\w.'\"])([A-Za-z_][\w.]*)(?=\s*[,)])", texts)
        traced = next((way for way in script.trace if way.place == call.place and way.name == call.name), None)
        large = [name for name in names if _LARGE.search(name.rpartition(".")[2]) and not _SIZES.search(name)]
        built = bool(traced) and any(
            tag.startswith(("module@", "dataset@", "loader@", "ddp@")) for tag in tags(traced or call, "args")
        )
        if large or (built and names):
            what = ", ".join(large) or texts
            yield note(
                here(call),
                f"{what} is pickled, and unpickled in each process that is started here",
                evidence=[written(script, call)],
                fix=[you("Build it in the function that each process runs.")],
            )
            return
