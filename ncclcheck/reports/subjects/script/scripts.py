"""Whose calls these are, which ranks make them, and a fix as a diff."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.script import Call, Guard, Script
from ncclcheck.reports.judgement.findings import Evidence, Finding, Remedy, State, Where, seen, you
from ncclcheck.reports.judgement.rule import Body, NothingToJudge, rule
from ncclcheck.reports.subjects.script.processes import INIT, SPAWNS, by_several, excludes, of_ranks, started_by
from ncclcheck.reports.subjects.script.progress import same_on_all

DIST = "torch.distributed."
# What every rank of a group must enter. A group's own ranks may be few, so calls with a group are not judged.
COLLECTIVES = {
    *(f"{DIST}{name}" for name in (
        "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all",
        "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object",
        "init_process_group", "monitored_barrier", "new_group", "reduce", "reduce_scatter",
        "reduce_scatter_tensor", "scatter", "scatter_object_list",
    )),
    *(f"detectron2.utils.comm.{name}" for name in ("synchronize", "all_gather", "gather", "reduce_dict")),
}  # fmt: skip
DDP = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel")
LOADER = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
SAMPLER = ("torch.utils.data.distributed.DistributedSampler", "torch.utils.data.DistributedSampler")
# An argument that is the rank in one node.
LOCAL_RANK = re.compile(
    r"^(?:int\()?(?:[\w.]*\.)?(?:local_rank|os\.(?:environ\[|getenv\(|environ\.get\()['\"]LOCAL_RANK['\"].*)\)?$",
    re.I,
)
MOST_PORT = 65535  # the largest number that a TCP port has
# What all ranks must call in libraries: method -> what it is called on, by name.
_OF_LIBRARIES = {
    ".wait_for_everyone": re.compile(r"accelerator$"),
    ".gather_for_metrics": re.compile(r"accelerator$"),
    ".gather": re.compile(r"accelerator$"),
    ".reduce": re.compile(r"accelerator$"),
    ".consolidate_state_dict": re.compile(r"optim"),
    ".all_gather": re.compile(r"fabric$"),
    ".barrier": re.compile(r"fabric$"),
    ".save": re.compile(r"fabric$"),
}
# Each rank writes, or reads, its part of a sharded state; and states are gathered from all.
_OF_CHECKPOINTS = re.compile(
    r"^torch\.distributed\.checkpoint\.(?:\w+\.)*(?:save|load|async_save|save_state_dict|load_state_dict)$"
)
_OF_STATES = re.compile(r"^torch\.distributed\.checkpoint\.(?:\w+\.)*[gs]et_(?:model_|optimizer_)?state_dict$")
# What all ranks of a Lightning job call; only these names tell, on a trainer, in a file that imports it.
_OF_LIGHTNING = (".fit", ".validate", ".test", ".predict")
_LIGHTNING = re.compile(r"(?:pytorch_)?lightning(?:\.|$)")
# Built by them, their state is gathered from all ranks.
SHARDED = re.compile(r"(?:^|\.|:)(?:FullyShardedDataParallel|FSDP)$")
# Libraries that start the group, wrap the model, shard the data and save by themselves.
_MANAGERS = re.compile(
    r"(?:pytorch_lightning|lightning|accelerate|deepspeed|horovod|ignite|composer|colossalai|megatron|fairseq|ray"
    r"|mmengine|mmcv|detectron2|torchtitan|torchtune|fairscale|apex\.parallel|catalyst|tensorflow|jax|determined)\b"
    r"|transformers\.(?:Seq2Seq)?Trainer$|trl\b|sentence_transformers\b"
)
# In a script that starts the group itself, what must be called so that a library does the rest; an import alone is
# not enough, for many use a part of one.
_MANAGES = re.compile(
    r"(?:accelerate\.|^)Accelerator$|^deepspeed\.initialize$|lightning.*\.(?:Trainer|Fabric)$"
    r"|^transformers\.(?:Seq2Seq)?Trainer$|^trl\.\w+Trainer$|^horovod\.|^colossalai\.|^composer\.Trainer$"
)
_TRAINERS = re.compile(r"^transformers\.(?:Seq2Seq)?Trainer$|^trl\.\w+Trainer$")
# Libraries of these that leave the loop over steps to the script.
_LEAVE_STEPS = ("accelerate", "deepspeed", "lightning", "pytorch_lightning")
_UNSURE = re.compile(
    r"rank|main|master|save|primary|chief|proc|leader|local|log|coord|root|zero|host|node|gpu|is_", re.I
)
_IS_GIVEN = re.compile(r"[\w.]+ is (not )?None")
_ZERO_3 = re.compile(r"\.(?:GatheredParameters|_zero3_consolidated_16bit_state_dict)$")
_LEADS = 4  # functions within functions that lead to a gathering: safe_save(), get_state(), maybe_zero_3()
_DEEP = 6  # calls within calls that are followed
_CUT = "\\ No newline at end of file"
_AROUND = 3  # lines that a diff shows around a change
_SPLITS = re.compile(
    r"(?:^|\.)(?:tensor_parallel|pipelining|pipeline_parallel)(?:\.|$)|\.tensor\.parallel(?:\.|$)"
)
_SPLIT_WORDS = ("PipelineStage", "parallelize_module", "tensor_parallel")


def script_rule(code: str, title: str, *, worst: State) -> Callable[[Callable[[Script], Iterator[Finding]]], Body]:
    """Make a body that wants a script a rule."""

    def register(body: Callable[[Script], Iterator[Finding]]) -> Body:
        @functools.wraps(body)
        def judged(cluster: Cluster) -> Iterator[Finding]:
            script = cluster.measurements.script
            if script is None or not script.files:
                raise NothingToJudge("no script was read")
            if code != "SCR001" and all(file.problem for file in script.files):
                raise NothingToJudge("no file of the script was read")
            yield from body(script)

        return rule(code, title, worst=worst, over="", commands=("script",))(judged)

    return register


def own_ways(script: Script) -> str:
    """The library that does for this script what it would otherwise do itself; empty where there is none."""
    if any(call.name == INIT for call in reached(script)):
        return next((call.name.partition(".")[0] for call in reached(script) if _MANAGES.search(call.name)), "")
    modules = [name for file in script.files for name in file.modules]
    modules += [call.name for call in script.calls if _TRAINERS.search(call.name)]
    return next((name.partition(".")[0] for name in modules if _MANAGERS.match(name)), "")


def of_many_ranks(script: Script) -> list[Call]:
    """What the ranks of a script do that starts torch's group itself. Raises NothingToJudge for all others.

    What a process does that only spawns them is not among it.
    """
    if library := own_ways(script):
        raise NothingToJudge(f"{library} does this for the script")
    return of_ranks(script, that_starts(script))


def of_own_steps(script: Script) -> list[Call]:
    """The same, and what ranks do in steps of their own where Accelerate, Fabric or DeepSpeed does the rest."""
    library = own_ways(script)
    looped = any(call.name == ".backward" and call.loops for call in script.trace)
    if library in _LEAVE_STEPS and looped:
        return of_ranks(script, reached(script))
    return of_many_ranks(script)


def of_any_start(script: Script) -> list[Call]:
    """What the ranks of a script do, whoever starts them."""
    return of_ranks(script, reached(script)) if own_ways(script) else that_starts(script)


def that_starts(script: Script) -> list[Call]:
    """The calls of a script that calls init_process_group, whatever a library does after it."""
    _must_start(script)
    return reached(script)


def reached(script: Script) -> list[Call]:
    """Calls of the named files, and those of imported files which these lead to, under whatever conditions.

    A package has a thousand functions beside those that a script uses; what they would do is not what it does.
    """
    calls: list[Call] | None = script.__dict__.get("reached")
    if calls is None:
        functions = _reached(script)
        calls = [call for call in by_several(script) if call.function in functions]
        script.__dict__["reached"] = calls
    return calls


def _reached(script: Script) -> set[str]:
    inside, parts = _by_function(script), _parts(script)
    named = {file.name for file in script.files if file.named} or {script.files[0].name}  # the first one always is
    functions = {function for function in inside if function.endswith(":") or function.partition(":")[0] in named}
    functions |= {
        call.function for call in script.calls if call.name == INIT and _is_called(script, call.function)
    }
    waiting = [*functions]
    while waiting:
        for call in inside.get(waiting.pop(), []):
            new = {call.name} & {*inside} | parts.get(call.name, set())
            for text in call.arguments.values():
                new |= parts.get(text.rpartition(".")[2], set())
            waiting += new - functions
            functions |= new
    return functions


def _parts(script: Script) -> dict[str, set[str]]:
    """Class -> its methods, any of which who builds one may call; name -> functions that may be handed on."""
    functions: dict[str, set[str]] = {}
    for function in _by_function(script):
        owner, dot, _ = function.rpartition(".")
        name = function.rpartition(":")[2]
        functions.setdefault(owner if dot and ":" in owner else name, set()).add(function)
    return functions


def _must_start(script: Script) -> None:
    """An imported file may have a function that starts a group, and nothing calls it. Raises NothingToJudge."""
    if not any(call.name == INIT for call in reached(script)):
        raise NothingToJudge("the script starts no process group")


def _is_called(script: Script, function: str) -> bool:
    """As far as names tell: `getattr(tools, "init_%s" % launcher)` calls init_slurm too."""
    name = function.rpartition(":")[2].rpartition(".")[2]
    begin = name.rpartition("_")[0]
    return not name or any(
        word == name or (begin and word.startswith(f"{begin}_") and re.search(r"%s|\{", word))
        for file in script.files
        for word in file.words
    )


def imports(script: Script, file: str, module: str) -> bool:
    """Does the file import it, under its own name? `from os import path` does not."""
    for source in script.files:
        if source.name == file:
            parts = any(name.startswith(f"{module}.") for name in source.modules)
            return module in source.words if parts else module in source.modules
    return False


def says(script: Script, *words: str) -> bool:
    """Does any of these names or strings stand in some file?"""
    return any(not {*words}.isdisjoint(file.words) for file in script.files)


def splits_model(script: Script) -> bool:
    """Whether ranks hold parts of one model, by tensor or pipeline parallelism: these see the same samples."""
    modules = (name for file in script.files for name in file.modules)
    return says(script, *_SPLIT_WORDS) or any(_SPLITS.search(name) for name in modules)


def by_rank(call: Call) -> Guard | None:
    """The outermost condition on the rank under which it stands."""
    return next((guard for guard in call.guards if guard.kind == "rank"), None)


def in_function(script: Script, function: str) -> list[Call]:
    """The calls that stand in it, as written."""
    return _by_function(script).get(function, [])


def _by_function(script: Script) -> dict[str, list[Call]]:
    """Made once: a repository has ten thousand functions."""
    calls: dict[str, list[Call]] = script.__dict__.setdefault("by_function", {})
    if not calls:
        for call in by_several(script):
            calls.setdefault(call.function, []).append(call)
    return calls


def on_all_ranks(script: Script) -> set[str]:
    """Functions that every rank runs, as far as can be followed from the first line."""
    inside = _by_function(script)
    functions = {f"{file.name}:" for file in script.files}
    waiting = [*functions]
    while waiting:
        for call in inside.get(waiting.pop(), []):
            if sure(call):
                new = {
                    function
                    for function in (call.name, f"{call.name}.__init__", *started_by(call))
                    if function in inside
                } - functions
                functions |= new
                waiting += new
    return functions


def spawns(script: Script) -> bool:
    """Does the script start its processes itself? Then no launcher sets variables for them."""
    return any(call.name in SPAWNS or call.name.endswith(".Process") for call in script.calls)


def sets_spawn(script: Script) -> bool:
    """Whether it asks for processes that begin anew, for all that it starts."""
    methods = ("'spawn'", "'forkserver'")
    return any(
        call.name.endswith("set_start_method") and call.arguments.get("0", call.arguments.get("method")) in methods
        for call in reached(script)
    )


def sure(call: Call) -> bool:
    """Whatever its conditions say, they say the same on all ranks, as far as their words tell."""
    return not any(guard.kind == "rank" or _may_differ(guard) for guard in call.guards)


def _may_differ(guard: Guard) -> bool:
    """Words in which a rank may hide. That an option is given is the same on all; with several ranks a GPU is."""
    given = _IS_GIVEN.fullmatch(guard.text)
    if given and ("gpu" not in guard.text or (guard.branch == "if") == bool(given.group(1))):
        return False
    return guard.kind == "other" and bool(_UNSURE.search(guard.text)) and not same_on_all(guard.text)


def collective(script: Script, call: Call) -> str:
    """What every rank must enter here, said by its name; empty where there is nothing, or it is not known."""
    if call.name in COLLECTIVES or call.name in DDP:
        return "" if _has_group(call) else call.name.rpartition(".")[2]
    if name := _of_libraries(script, call):
        return name
    if call.name in (".state_dict", ".save_checkpoint") and any(
        not excludes(call, wrap)
        and (call.name == ".save_checkpoint" or wrap.name != "deepspeed.initialize")  # its state is a rank's own
        for wrap in _sharded(script).get(call.on, ())
    ):
        return f"{call.name[1:]} of {call.on}"
    entered = _entered(script, call.name, _DEEP)
    return f"{entered} in {call.name.rpartition(':')[2]}()" if entered else ""


def _of_libraries(script: Script, call: Call) -> str:
    """What all ranks must enter in libraries, and in torch's own checkpoints."""
    if _OF_CHECKPOINTS.match(call.name) or (_OF_STATES.match(call.name) and "options" in call.arguments):
        return "" if _has_group(call) else ".".join(call.name.split(".")[-2:])
    if call.name in (".log", ".log_dict") and call.arguments.get("sync_dist") == "True":
        return f"{call.on}{call.name} with sync_dist"
    if (
        call.name in (".evaluate", ".predict")
        and call.on.endswith("trainer")
        and says(script, "transformers", "Trainer", "TrainingArguments")
    ):
        return f"{call.on}{call.name}"
    if (on := _OF_LIBRARIES.get(call.name)) and on.search(call.on):
        return call.name[1:]
    if call.name == ".all_gather" and call.on == "self" and _is_lightnings(script, call):
        return "self.all_gather"
    if call.name in _OF_LIGHTNING and _is_trainers(script, call):
        return f"{call.on}{call.name}"
    return ""


def gathers(script: Script, call: Call) -> str:
    """What all ranks must enter if parameters are shared out, which the script need not say; else empty."""
    if call.name == ".save_state" and call.on.endswith("accelerator"):
        return f"{call.on}.save_state"
    if call.name == ".save_checkpoint" and _is_trainers(script, call):
        return f"{call.on}.save_checkpoint"
    if call.name == ".save_model" and call.on.endswith("trainer") and says(script, "deepspeed", "fsdp"):
        return f"{call.on}.save_model"
    waiting, seen_ = [call], {call.name}
    for _ in range(_LEADS):
        if name := next((call.name for call in waiting if _ZERO_3.search(call.name)), ""):
            return name.rpartition(".")[2]
        led = [inner for call in waiting if ":" in call.name for inner in in_function(script, call.name)]
        waiting = [call for call in led if call.name not in seen_]
        seen_ |= {call.name for call in waiting}
    return ""


def _is_lightnings(script: Script, call: Call) -> bool:
    modules = next((file.modules for file in script.files if file.name == call.file), [])
    return any(_LIGHTNING.match(name) for name in modules)


def _is_trainers(script: Script, call: Call) -> bool:
    """Whether it is called on a Lightning trainer of all ranks: none is made, and no group ended, nearby."""
    modules = next((file.modules for file in script.files if file.name == call.file), [])
    near = in_function(script, call.function)
    alone = any(call.name.endswith((".Trainer", "destroy_process_group")) and by_rank(call) for call in near)
    ended = any(
        near_call.name.endswith("destroy_process_group") and near_call.line < call.line for near_call in near
    )
    on_trainer = call.on in ("trainer", "self.trainer")
    return on_trainer and not alone and not ended and any(_LIGHTNING.match(name) for name in modules)


def _sharded(script: Script) -> dict[str, list[Call]]:
    """Variables that hold a model whose parameters are shared out -> the calls that do it: FSDP, DeepSpeed."""
    models: dict[str, list[Call]] | None = script.__dict__.get("sharded")
    if models is None:
        models = script.__dict__["sharded"] = {}
        for call in script.calls:
            if call.target and (SHARDED.search(call.name) or call.name == "deepspeed.initialize"):
                name = call.target.strip("( ").partition(",")[0] if "deepspeed" in call.name else call.target
                models.setdefault(name, []).append(call)
    return models


def given_to(script: Script, call: Call, name: str, position: str) -> str:
    """An argument as written; for `args.dist_url` what the command line gives, or the option's default."""
    value = call.arguments.get(name, call.arguments.get(position, ""))
    option = re.fullmatch(
        r"(?:\w+\.)*(?:args|opts?|FLAGS|hparams|hps?|conf|config|cfg|params|options|arguments)\.(?:\w+\.)*(\w+)",
        value,
    )
    if not option:
        return known(script, call, name, position) or value
    spelled = {f"--{option.group(1)}", f"--{option.group(1).replace('_', '-')}"}
    for at, argument in enumerate(script.arguments):
        before, _, after = argument.partition("=")
        if before in spelled:
            return repr(after or "".join(script.arguments[at + 1 : at + 2]))
    for added in script.calls:
        names = {text.strip("'\"") for text in added.arguments.values()}
        if added.name.endswith(".add_argument") and names & spelled:
            return added.arguments.get("default", value)
    settings = [setting for setting in script.calls if setting.name == "given" and "." in setting.target]
    texts = {
        setting.arguments["0"] for setting in settings if setting.target.rpartition(".")[2] == option.group(1)
    }
    return texts.pop() if len(texts) == 1 else known(script, call, name, position) or value


def known(script: Script, call: Call, *keys: str) -> str:
    """An argument as it is on all ranks, whichever way they come to the call; empty where that is not known."""
    ways: dict[tuple[str, str], list[Call]] = script.__dict__.setdefault("ways", {})
    if not ways:
        for way in script.trace:
            ways.setdefault((way.place, way.name), []).append(way)
    found: set[str] = set()
    for way in ways.get((call.place, call.name), []):
        each = next((way.each[key] for key in keys if key in way.each), ())
        found |= {*each} or {""}
    return found.pop() if len(found) == 1 else ""


def spelled_out(script: Script, call: Call) -> Call:
    """The call with `**settings` as what they are, where a rank comes to it and they are known."""
    if "*" not in call.arguments:
        return call
    return next((way for way in script.trace if way.place == call.place and way.name == call.name
                 and "" not in way.arguments and len(way.arguments) >= len(call.arguments)), call)  # fmt: skip


def _entered(script: Script, function: str, deep: int) -> str:
    """A collective that a function of the script enters whoever calls it."""
    if ":" not in function or not deep:
        return ""
    entered: dict[str, str] = script.__dict__.setdefault("entered", {})
    if function not in entered:
        entered[function] = ""  # a function that calls itself
        entered[function] = _entered_in(script, function, deep)
    return entered[function]


def _entered_in(script: Script, function: str, deep: int) -> str:
    for call in in_function(script, function):
        if any(guard.kind not in ("main", "group") for guard in call.guards) or _has_group(call):
            continue
        if call.name in COLLECTIVES or call.name in DDP:
            return call.name.rpartition(".")[2]
        if inner := _entered(script, call.name, deep - 1):
            return inner
    return ""


def _has_group(call: Call) -> bool:
    given = {name: call.arguments.get(name, "None") for name in ("group", "process_group")}
    local = call.arguments.get("use_local_synchronization") == "True"
    return local or "*" in call.arguments or any(not re.search(r"None$|WORLD$", text) for text in given.values())


def here(call: Call) -> Where:
    """FILE:LINE, as a place of the report."""
    return Where(device=call.place)


def written(script: Script, call: Call) -> Evidence:
    """The line itself."""
    return seen(call.place, (line_of(script, call.file, call.line) or call.name).strip()[:200])


def edited(
    script: Script, text: str, file: str, change: Mapping[int, str | None] | None, *, needs: str = ""
) -> Remedy:
    """A fix as a diff where one is possible. change: number of a line -> what stands there instead.

    needs: a module that the fix uses; where the file does not import it, the fix does.
    """
    if needs and not imports(script, file, needs):
        text = f"{text.removesuffix('.')}, and `import {needs}`."
        change = _with_import(script, file, change or {}, needs)
    diff = _diff(script, file, change or MappingProxyType({}))
    return you(f"{text} The diff applies with patch -p0:" if diff else text, *([diff] if diff else []))


def _with_import(
    script: Script, file: str, change: Mapping[int, str | None], module: str
) -> Mapping[int, str | None] | None:
    """The change, and the import before the file's first one of torch or numpy; None where there is none such."""
    calls = (call for call in in_function(script, f"{file}:") if call.name == "import" and not call.guards)
    at = next((call.first for call in calls), 0)
    line = line_of(script, file, at)
    if not change or at in change or not re.match(r"import |from ", line):
        return None
    return {at: f"import {module}\n{line}", **change}


def _diff(script: Script, file: str, change: Mapping[int, str | None]) -> str:
    """A unified diff; empty where a line is not known, or could not be pasted as it is."""
    kept, cut = next(((source.lines, source.cut) for source in script.files if source.name == file), ({}, 0))
    lines = {int(at): line for at, line in kept.items() if at.isdecimal()}
    if not change or any(at not in lines for at in change):
        return ""
    parts: list[dict[int, str | None]] = []
    for at in sorted(change):
        if not parts or at - max(parts[-1]) > 2 * _AROUND:
            parts.append({})
        parts[-1][at] = change[at]
    hunks: list[str] = []
    shift = 0
    for part in parts:
        hunk, more = _hunk(lines, part, shift, cut)
        hunks, shift = [*hunks, hunk], shift + more
    return "\n".join([f"--- {file}", f"+++ {file}", *hunks]) if all(hunks) else ""


def _hunk(lines: Mapping[int, str], change: Mapping[int, str | None], shift: int, cut: int) -> tuple[str, int]:
    """Changes near each other, and how many lines they add. shift: what the hunks before it have added.

    cut: the last line of the file, if no newline ends it.
    """
    first, last = min(change), max(change)
    begin, end = ((change[at] or "").split("\n") for at in (first, last))
    lead, trail = _AROUND - (begin[0] == lines[first]), _AROUND - (end[-1] == lines[last])  # as many on both sides
    while first - 1 in lines and min(change) - first < lead:
        first -= 1
    while last + 1 in lines and last - max(change) < trail:
        last += 1
    body, added, taken = [], 0, 0
    for at in range(first, last + 1):
        if at not in lines:
            return "", 0
        if at not in change:
            body += [f" {lines[at]}", *([_CUT] if at == cut else [])]
            continue
        new = change[at]
        whole = [] if new is None else new.split("\n")
        stays = whole.index(lines[at]) if lines[at] in whole and at != cut else -1
        body += [] if stays >= 0 else [f"-{lines[at]}", *([_CUT] if at == cut else [])]
        body += [f"{' ' if place == stays else '+'}{line}" for place, line in enumerate(whole)]
        added, taken = added + len(whole), taken + 1
    if not all(line.isprintable() for line in body):
        return "", 0
    count = last - first + 1
    head = f"@@ -{first},{count} +{first + shift},{count - taken + added} @@"
    return "\n".join([head, *body]), added - taken


def line_of(script: Script, file: str, at: int) -> str:
    """A line as written; empty where it was not kept."""
    return next((source.lines.get(str(at), "") for source in script.files if source.name == file), "")


def indent(line: str) -> str:
    """The blanks before it."""
    return line[: len(line) - len(line.lstrip())]


def with_argument(line: str, head: str, argument: str) -> str:
    """The line with one more argument in the call that begins with head; empty where that is not plain."""
    if line.count(head) != 1:
        return ""
    start, depth = line.index(head) + len(head), 1
    for at in range(start, len(line)):
        depth += (line[at] in "([{") - (line[at] in ")]}")
        if line[at] in "'\"#\\" and line[at] in "#\\":
            return ""
        if not depth:
            inner = line[start:at].rstrip().rstrip(",")
            return f"{line[:start]}{inner}, {argument}{line[at:]}" if inner else ""
    return ""
