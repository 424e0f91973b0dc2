"""SCR004 to SCR006: checkpoints: who writes them, where they are loaded to, and under which names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import structs

from ncclcheck.probes.facts.script import Call, Guard, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, fail, note, seen, warn, you
from ncclcheck.reports.subjects.script.processes import INIT, excludes
from ncclcheck.reports.subjects.script.scripts import (
    DDP,
    by_rank,
    collective,
    edited,
    here,
    in_function,
    indent,
    line_of,
    of_many_ranks,
    on_all_ranks,
    says,
    script_rule,
    sure,
    with_argument,
    written,
)
from ncclcheck.reports.subjects.script.traced import objects, tags

_MODELS = ("ddp", "module", "new", "object")  # kinds of things that may be one
_OF_ONE = re.compile(
    r"rank|main|master|primary|chief|proc|leader|coord|root|zero|host|node|writ|sav(?:er|ing)|log|local|gpu",
    re.IGNORECASE,
)
_TELLS = re.compile(r"(?:^|\.)(?:print|info|debug|warning|log)$")  # calls that only name the file
# An option that says where, or whether, something is saved: all ranks are started with the same ones.
_OPTION = re.compile(
    r"(?:args|opts?|FLAGS|hparams)\.(\w*(?:dir|path|folder|file|save|output|ckpt|checkpoint)\w*)(?: is not None)?",
    re.IGNORECASE,
)
# Whether a file that is loaded is there is the same on all ranks, whatever it is called.
_IS_FILE = re.compile(
    r"(?:not )?(?:(?:os\.)?path\.(?:exists|isfile|isdir)\(.*\)|.*\.(?:exists|is_file|is_dir)\(\))"
)
_OF_FILE = re.compile(r"exists|is_?file|is_?dir")  # one rank may make it, and the others find it
# Conditions on how far the training is, or how good; others may be those of one rank, under any name.
_OF_TIME = re.compile(r"epoch|step|iter|best|interval|freq|acc|loss|improve|batch|every", re.IGNORECASE)
# Such states hold numbers.
_WITHOUT_TENSORS = re.compile(
    r"sched|vocab|rng_|(?:train(?:ing|er)?|progress|recipe|(?:data)?loader|sampler|random)_(?:args|state)",
    re.IGNORECASE,
)
_IS_WRAPPED = re.compile(r"module|isinstance|hasattr|[pP]arallel|distributed|ddp", re.IGNORECASE)  # of a condition

# Weights of somebody else, which mostly lie on the CPU; and the state of a training, which does not.
_OF_OTHERS = re.compile(r"pretrain|backbone|imagenet|encoder|model_zoo|get_model_file|hub", re.IGNORECASE)
_RESUMES = re.compile(r"resume|ckpt|checkpoint|snapshot|latest|last|best", re.IGNORECASE)
_IS_A = re.compile(r"(?:not )?(?:isinstance|issubclass)\(")
_NEAR = 3  # lines above a call that are kept
_STATE = re.compile(r"ckpt|checkpoint|model|state|weights|resume|snapshot|\.bin\b|pretrained", re.IGNORECASE)


@script_rule("SCR004", "one rank writes a checkpoint", worst=State.WARN)
def one_writer(script: Script) -> Iterator[Finding]:
    """
    ## What
    `torch.save` to one path by all ranks.

    ## Why it matters
    Ranks write the same file at once: on a shared file system a checkpoint may be torn, and is found to be so when
    it is needed.

    ## How we know
    The call is reached from the first line under no condition but on the progress of the training, and no rank
    stands in its path. It is a note where the call was not come to as the script was followed, and where the
    condition is an option that the script declares, such as `args.output_dir`: some scripts empty it on other
    ranks. Scripts whose library saves (Lightning, Accelerate, Trainer, DeepSpeed) are not judged.

    ## Fix
    - **you** save on rank 0 only, with what copies or reads the file, and let the others wait in a barrier before
      they read it. A diff is printed where nothing else in the function uses the file.

    ## Source
    PyTorch tutorial "Getting Started with Distributed Data Parallel", "Save and Load Checkpoints".
    """
    calls, everywhere = of_many_ranks(script), on_all_ranks(script)
    if by_local := _of_each_node(script):
        yield note(
            here(by_local),
            "on several nodes one rank of each saves to this path",
            evidence=[written(script, by_local)],
            fix=[you("Ask for rank 0 of the job, not for local rank 0.")],
        )
    places: set[str] = set()
    for call in calls:
        if (
            call.name != "torch.save"
            or call.function not in everywhere
            or not _is_path(script, call)
            or _is_in_memory(script, call)
        ):
            continue
        ways = [way for way in script.trace if way.place == call.place and way.name == call.name]
        if ways and all(by_rank(way) or "rank" in way.values.get("path", "").split() for way in ways):
            continue  # whoever calls the function
        guards = [guard for guard in call.guards if guard.branch != "if" or not _is_option(script, guard)]
        plain = structs.replace(call, guards=guards)
        if not (sure(plain) or (ways and _names_no_rank(plain))) or not all(
            guard.kind != "other"
            or _is_alike(guard)
            or (_OF_TIME.search(guard.text) and not _OF_FILE.search(guard.text))
            for guard in guards
        ):
            continue
        places.add(call.place)
        if option := next((guard.text for guard in call.guards if guard not in guards), ""):
            yield note(
                here(call),
                f"all ranks save to one path, unless {option} is empty on all but one",
                evidence=[written(script, call)],
                fix=[_on_rank_0(script, call)],
            )
        elif not ways and script.trace:
            yield note(
                here(call),
                "all ranks save to one path, if they come here",
                evidence=[written(script, call)],
                fix=[_on_rank_0(script, call)],
            )
        else:
            yield warn(
                here(call),
                "all ranks save to one path",
                why="Files that several ranks write at once may be torn, which is seen when they are loaded.",
                owner="job",
                evidence=[written(script, call)],
                fix=[_on_rank_0(script, call)],
            )
    for call in [] if places else _by_all(script):
        guard = by_rank(call)
        yield warn(
            here(call),
            f"all ranks save to one path{f': {guard.text} is the same on all of them' if guard else ''}",
            why="Files that several ranks write at once may be torn, which is seen when they are loaded.",
            owner="job",
            evidence=[written(script, call)],
            fix=[_on_rank_0(script, call) if guard is None else you("Let it hold on rank 0 alone.")],
        )


def _by_all(script: Script) -> Iterator[Call]:
    """Saves that all ranks come to, whoever calls them: no condition on the way tells ranks apart.

    A word for one rank may be true on all of them, as `self.is_master = True` makes it.
    """
    starts = [call for call in script.trace if call.name == INIT]
    around = [guard for start in starts for guard in start.guards]
    static = {call.place: call for call in script.calls if call.name == "torch.save"}
    for way in script.trace:
        call = static.get(way.place) if way.name == "torch.save" else None
        if call is None or by_rank(way) or not starts or any(excludes(way, start) for start in starts):
            continue
        others = [guard for guard in way.guards if guard.kind == "other" and guard not in around]
        progress = all(_is_alike(guard) or (_OF_TIME.search(guard.text) and not _OF_FILE.search(guard.text))
                       for guard in others)  # fmt: skip
        one_path = not {"rank", "local", "byrank"} & {*way.values.get("path", "").split()}
        if (
            progress
            and one_path
            and _is_path(script, call)
            and not any(_OF_ONE.search(guard.text) for guard in others)
        ):
            yield call
            return


def _names_no_rank(call: Call) -> bool:
    """Whether no condition has a word of a rank, of one that a rank comes to and that tells no ranks apart."""
    return not any(guard.kind == "rank" or _OF_ONE.search(guard.text) for guard in call.guards)


def _of_each_node(script: Script) -> Call | None:
    """A checkpoint that is saved where the local rank is 0, in a script that knows the rank of the job."""
    if not says(script, "RANK", "get_rank", "SLURM_PROCID") or script.nodes == 1:
        return None
    for call in script.trace:
        guard = by_rank(call)
        asks = (
            guard
            and guard.branch == "if"
            and re.search(r"\blocal_rank(?:\(\))? == 0|is_local_main|'LOCAL_RANK'", guard.text)
        )
        more = [condition for condition in call.guards if condition.kind == "rank"]
        if (
            call.name == "torch.save"
            and asks
            and len(more) == 1
            and "rank" not in call.values.get("path", "").split()
        ):
            return call
    return None


def _is_alike(guard: Guard) -> bool:
    """What an option has ended, as `if args.eval: return`, and whether something was made at all."""
    ended = guard.branch == "rest" and re.fullmatch(r"(?:not )?(?:args|opts?|FLAGS)\.\w+", guard.text)
    return bool(ended or re.fullmatch(r"[\w.]+ is not None", guard.text))


def _is_option(script: Script, guard: Guard) -> bool:
    """Whether it asks for an option of the command line, as the script declares it."""
    option = _OPTION.fullmatch(guard.text) if guard.kind == "other" else None
    spelled = {f"--{option.group(1)}", f"--{option.group(1).replace('_', '-')}"} if option else set()
    return any(
        not spelled.isdisjoint(text.strip("'\"") for text in call.arguments.values())
        for call in script.calls
        if spelled and call.name.endswith(".add_argument")
    )


def _is_path(script: Script, call: Call) -> bool:
    """One path on all ranks; a buffer in memory is none."""
    named = re.search(r"mem|buf|bytes|stream", call.arguments.get("1", ""), re.I)
    return not {"1", "f"} & {*call.by_rank} and not named and not _is_in_memory(script, call)


def _is_in_memory(script: Script, call: Call) -> bool:
    """Whether a line above it makes what is saved to a buffer."""
    path = re.escape(call.arguments.get("1", call.arguments.get("f", "")))
    makes = re.compile(rf"\b{path} *=.*\bBytesIO\(|\bBytesIO\(.*\bas {path}\b")
    return bool(path) and any(
        makes.search(line_of(script, call.file, at)) for at in range(call.line - _NEAR, call.line + 1)
    )


def _on_rank_0(script: Script, call: Call) -> Remedy:
    inside = in_function(script, call.function)
    if later := next((inner for inner in inside if inner.line > call.last and _uses(inner, call)), None):
        text = (
            f"Save on rank 0 only, with what uses the file at line {later.line}; others wait before they read it."
        )
        return edited(script, text, call.file, None)
    if any(call.first <= inner.line <= call.last and collective(script, inner) for inner in inside):
        return edited(script, "Gather the state on all ranks, and save it on rank 0 only.", call.file, None)
    text = "Save on rank 0 only."
    if any(inner.name.endswith("destroy_process_group") and inner.line < call.line for inner in inside):
        text = "Save before the group is destroyed, on rank 0 only."
        return edited(script, text, call.file, None)
    line = line_of(script, call.file, call.line)
    name = next(
        (c.on for c in script.calls if c.file == call.file and c.name.startswith("torch.distributed.")), ""
    )
    if call.first != call.last or not line.strip().startswith("torch.save(") or not name:
        return edited(script, text, call.file, None)
    blank = indent(line)
    unit = "\t" if "\t" in blank else "    "
    first = f"{blank}if not {name}.is_initialized() or {name}.get_rank() == 0:"
    return edited(script, text, call.file, {call.line: f"{first}\n{blank}{unit}{line.strip()}"})


def _uses(call: Call, save: Call) -> bool:
    """Whether it takes the file that was saved, or copies some file."""
    path = save.arguments.get("1", save.arguments.get("f", ""))
    named = any(path in text for text in (call.on, *call.arguments.values()))
    return call.name.startswith("shutil.") or (named and call.name != save.name and not _TELLS.search(call.name))


@script_rule("SCR005", "checkpoints are loaded to each rank's own device", worst=State.WARN)
def mapped(script: Script) -> Iterator[Finding]:
    """
    ## What
    `torch.load` of a checkpoint by all ranks without `map_location`.

    ## Why it matters
    Tensors go back to the device that they were saved from, the GPU of rank 0: all ranks of a node allocate there,
    and it may run out of memory.

    ## Seen as
    out of memory

    ## How we know
    The call is reached by all ranks and has no `map_location`, and what it loads is called a model, a checkpoint
    or a state, or goes into `load_state_dict`. Only scripts that use GPUs are judged. It is a note where a
    condition asks of what class something is (`isinstance`): that branch may be for other models.

    ## Fix
    - **you** `torch.load(path, map_location="cpu")`; load_state_dict copies to where the model is.

    ## Source
    PyTorch documentation, torch.load; PyTorch tutorial "Getting Started with Distributed Data Parallel".
    """
    calls, everywhere = of_many_ranks(script), on_all_ranks(script)
    if not says(script, "cuda", "nccl"):
        return
    for call in calls:
        mapped_to = {"map_location", "1", "*"} & {*call.arguments}
        guards = [guard for guard in call.guards if not _asks_for_file(guard)]
        by_all = call.function in everywhere and sure(structs.replace(call, guards=guards))
        ways = _read_at(script, call) if call.name == "torch.load" else []
        by_all |= bool(ways) and all(_by_all_ranks(script, way) for way in ways)
        by_all &= not ways or not all(by_rank(way) for way in ways)  # by an option, as `quiet = rank > 0`
        if call.name == "torch.load" and by_all and call.arguments.get("map_location") == "'cuda:0'":
            yield note(
                here(call),
                "all ranks load a checkpoint to GPU 0",
                evidence=[written(script, call)],
                fix=[you('Give it map_location="cpu".')],
            )
        if call.name == "torch.load" and by_all and not mapped_to:
            line = line_of(script, call.file, call.line)
            paths = (way.values.get("path", "") for way in ways)
            named = " ".join([*call.arguments.values(), call.target, *paths])
            is_state = _STATE.search(named) or _is_loaded(script, call)
            if call.by_rank or _WITHOUT_TENSORS.search(f"{line} {named}") or not is_state:
                continue
            new = with_argument(line, "torch.load(", 'map_location="cpu"')
            theirs = _OF_OTHERS.search(f"{call.file} {named} {line}") and not _RESUMES.search(f"{named} {line}")
            if not theirs and _saves_of_cpu(script):
                yield note(
                    here(call),
                    "all ranks load a checkpoint without map_location: those that the script saves lie on the CPU",
                    evidence=[written(script, call)],
                    fix=[edited(script, 'Give it map_location="cpu".', call.file,
                                {call.line: new} if new else None)],
                )  # fmt: skip
                continue
            if theirs or any(_IS_A.match(guard.text) for guard in call.guards):
                text = "all ranks load a checkpoint without map_location, if they come here"
                if theirs:
                    text = "all ranks load weights without map_location: saved from a GPU, they go to that one"
                yield note(here(call), text, evidence=[written(script, call)],
                           fix=[edited(script, 'Give it map_location="cpu".', call.file,
                                       {call.line: new} if new else None)])  # fmt: skip
                continue
            yield warn(
                here(call),
                "all ranks load a checkpoint without map_location",
                why="Its tensors go to the GPU that they were saved from, that of rank 0, on every rank.",
                owner="job",
                evidence=[written(script, call)],
                fix=[edited(script, 'Give it map_location="cpu".', call.file, {call.line: new} if new else None)],
            )


def _saves_of_cpu(script: Script) -> bool:
    """Whether each state that it saves is brought to the CPU in the call of `torch.save`."""
    saves = [call for call in script.calls if call.name == "torch.save"]
    moves = [call for call in script.calls if call.name == ".cpu"]
    return bool(saves) and all(
        any(move.file == save.file and save.first <= move.line <= save.last for move in moves) for save in saves
    )


def _read_at(script: Script, load: Call) -> list[Call]:
    """The ways in which a rank comes to it."""
    return [call for call in script.trace if call.name == "read" and call.place == load.place]


def _by_all_ranks(script: Script, way: Call) -> bool:
    starts = [call for call in script.trace if call.name == INIT]
    if not starts or any(excludes(way, start) for start in starts) or "rank" in way.values.get("path", ""):
        return False
    return sure(structs.replace(way, guards=[guard for guard in way.guards if not _asks_for_file(guard)]))


def _is_loaded(script: Script, load: Call) -> bool:
    """Whether what it gives goes into load_state_dict: itself, by a key, or as what its function returns."""
    helper = load.function.rpartition(":")[2].rpartition(".")[2]
    if helper and any(
        call.name.endswith("load_state_dict") and f"{helper}(" in call.arguments.get("0", "")
        for call in script.calls
    ):
        return True
    return any(
        call.name.endswith("load_state_dict")
        and (load.target or "torch.load(") in call.arguments.get("0", "")
        and (load.target or load.first <= call.line <= load.last)
        for call in in_function(script, load.function)
    )


def _asks_for_file(guard: Guard) -> bool:
    return bool(_IS_FILE.fullmatch(guard.text)) and not re.search("rank|local", guard.text, re.IGNORECASE)


@script_rule("SCR006", "a checkpoint is saved and loaded under the same names", worst=State.FAIL)
def prefixes(script: Script) -> Iterator[Finding]:
    """
    ## What
    The state of a wrapped model is saved, its names begin with `module.`, and the bare model loads it.

    ## Why it matters
    `load_state_dict` raises "Missing key(s) in state_dict", hours later, when the job is to resume; with
    `strict=False` it loads nothing, in silence.

    ## How we know
    In one function the variable loads a state before it is wrapped in DistributedDataParallel and gives one to
    `torch.save` after it; no file speaks of `module.`. Or the state of a wrapped model stands under a key that
    another model loads in the same file, and nothing there takes `module.` away. It is a note where nothing in the
    script loads a state: whoever loads the file must take the prefix away.

    ## Fix
    - **you** save `model.module.state_dict()`.

    ## Source
    PyTorch documentation, DistributedDataParallel; torch.nn.modules.utils.consume_prefix_in_state_dict_if_present.
    """
    calls = of_many_ranks(script)
    if finding := _by_path(script):
        yield finding
        return
    under_keys = [*_under_keys(script, calls)]
    yield from under_keys
    if not under_keys and (found := _never_loaded(script)):
        yield found
    if says(script, "module.", "module", "consume_prefix_in_state_dict_if_present", "_orig_mod."):
        return
    for wrap in calls:
        if wrap.name not in DDP or not wrap.target or wrap.arguments.get("0") != wrap.target:
            continue
        same = [call for call in in_function(script, wrap.function) if call.on == wrap.target]
        loads = [call for call in same if call.name == ".load_state_dict" and call.line < wrap.line]
        saves = [call for call in same if call.name == ".state_dict" and call.line > wrap.line]
        if loads and saves and not wrap.guards and not loads[0].arguments.get("strict"):
            yield _prefixed(script, saves[0], loads[0])


def _by_path(script: Script) -> Finding | None:
    """The file of a wrapped model's state that a bare one loads, or the other way round."""
    if says(script, "module.", "consume_prefix_in_state_dict_if_present", "_orig_mod.", "hasattr"):
        return None  # which one it is may be asked there
    saves: dict[str, tuple[Call, bool]] = {}
    for call in script.trace:
        path = call.values.get("path", "")
        kinds = {tag.partition("@")[0].removeprefix("state:") for tag in tags(call, "0") if "state:" in tag}
        models = kinds & {*_MODELS}
        clear = models == {"ddp"} or (models and "ddp" not in models)
        if call.name == "torch.save" and path.startswith("path:") and clear and not _unwraps(script, call):
            saves[path.removeprefix("path:").replace(" ", "_")] = call, models == {"ddp"}
    for call in script.trace:
        loaded = [tag.removeprefix("loaded:") for tag in tags(call, "0") if tag.startswith("loaded:")]
        if call.name != ".load_state_dict" or len(loaded) != 1 or "strict" in call.arguments:
            continue
        on = {kind.partition("@")[0] for kind in objects(call, "on", *_MODELS, "optimizer")}
        save, wrapped = saves.get(loaded[0], (call, False))
        if save is call:
            continue
        if wrapped and on and not on & {"ddp", "optimizer"} and re.search("model|net", call.on, re.IGNORECASE):
            return _prefixed(script, save, call)
        if not wrapped and on == {"ddp"}:
            return fail(
                here(call),
                f"{call.on} is wrapped: its names begin with module., those saved at {save.place} do not",
                why="load_state_dict raises when the job is to resume: no name fits.",
                owner="job",
                evidence=[written(script, save), written(script, call)],
                fix=[you(f"Load it into {call.on}.module.")],
            )
    return None


def _never_loaded(script: Script) -> Finding | None:
    """The state of a wrapped model that is saved for others: nothing here loads one."""
    if says(script, "module", "module.", "consume_prefix_in_state_dict_if_present") or any(
        call.name.endswith("load_state_dict") for call in script.calls
    ):
        return None
    for call in script.trace:
        states = {tag.partition("@")[0] for tag in tags(call, "0") if tag.startswith("state:")}
        if call.name == "torch.save" and states & {"state:ddp"} and states <= {"state:ddp", "state:optimizer"}:
            return note(
                here(call),
                "the state is that of the wrapper: its names begin with module., which a bare model does not know",
                evidence=[written(script, call)],
                fix=[you("Save model.module.state_dict().")],
            )
    return None


def _unwraps(script: Script, save: Call) -> bool:
    """Whether its function takes the state of the model inside under a condition, which knows what is wrapped."""
    return any(
        call.name == ".state_dict" and call.on.endswith(".module") and call.guards
        for call in in_function(script, save.function)
    )


def _under_keys(script: Script, calls: list[Call]) -> Iterator[Finding]:
    """States of wrapped models that a bare one loads by the same key."""
    if says(script, "module.", "consume_prefix_in_state_dict_if_present", "_orig_mod."):
        return
    parallel = {
        call.target for call in script.calls if call.name.endswith("DataParallel") and call.name not in DDP
    }
    for save in calls:
        key = re.search(r"\[(['\"]\w+['\"])\]$", save.target) if save.name == ".state_dict" else None
        if not key or save.on not in save.shared or any(_IS_WRAPPED.search(guard.text) for guard in save.guards):
            continue
        loads = [
            call
            for call in calls
            if call.name.endswith(".load_state_dict") and call.file == save.file
            and call.arguments.get("0", "").endswith((f"[{key.group(1)}]", f".get({key.group(1)})"))
        ]  # fmt: skip
        bare = [load for load in loads if load.on not in load.shared and load.on not in parallel]
        unclear = any(_IS_WRAPPED.search(guard.text) for load in loads for guard in load.guards)
        if not bare or len(bare) < len(loads) or unclear or bare[0].arguments.get("strict"):
            continue
        yield _prefixed(script, save, bare[0])


def _prefixed(script: Script, save: Call, load: Call) -> Finding:
    line = line_of(script, save.file, save.line)
    on = save.on if save.name == ".state_dict" else load.on
    old = f"{on}.state_dict("
    new = line.replace(old, f"{on}.module.state_dict(") if line.count(old) == 1 else ""
    return fail(
        here(save),
        f"{on} is saved with the prefix module. and loaded without it, at line {load.line}",
        why="load_state_dict raises when the job is to resume: no name fits.",
        owner="job",
        evidence=[written(script, save), seen(load.place, written(script, load).value)],
        fix=[edited(script, "Save the model inside.", save.file, {save.line: new} if new else None)],
    )
