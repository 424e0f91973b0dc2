"""SCR010, SCR022: each process takes a GPU of its own, before it uses CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, fail, note, warn, you
from ncclcheck.reports.subjects.script.processes import INIT, SPAWNS
from ncclcheck.reports.subjects.script.scripts import (
    COLLECTIVES,
    DDP,
    DIST,
    edited,
    given_to,
    here,
    in_function,
    indent,
    line_of,
    of_many_ranks,
    on_all_ranks,
    says,
    script_rule,
    sure,
    written,
)
from ncclcheck.reports.subjects.script.sides import RANKS, gpus, is_always, starts_by_itself
from ncclcheck.reports.subjects.script.traced import objects, tags

_OWN_DEVICE = (
    "set_device", "CUDA_VISIBLE_DEVICES", "device_ids", "device_id", "local_rank", "gpu", "LOCAL_RANK",
)  # fmt: skip
_RANK_ITSELF = re.compile(
    r"(?:torch\.)?(?:dist|distributed)\.get_rank\(\)|int\(os\.(?:environ\[|getenv\(|environ\.get\()'RANK'.*"
)
# Call -> the argument that names a GPU.
_GIVES_GPU = {
    "torch.cuda.set_device": ("0", "device"), ".to": ("0", "device"), ".cuda": ("0", "device"),
    "torch.distributed.fsdp.FullyShardedDataParallel": ("device_id",), "torch.device": ("0",),
}  # fmt: skip
_BARE_DEVICE = ("cuda", "cuda:0")
_AS_NUMBER = r"\{{{0}\}}|format\({0}\)|\+ (?:str\()?{0}\b"  # within a text
# What gives a process its GPU for all that it does.
_TAKES_GPU = ("set_device_index", "set_default_device", "_cuda_setDevice", "CUDA_VISIBLE_DEVICES", "device_id")
_SETS_GPU = "set_device"  # where a reached call ends in it: an imported file may set one in a main of its own


@script_rule("SCR010", "every rank has a GPU of its own", worst=State.FAIL)
def own_gpu(script: Script) -> Iterator[Finding]:
    """
    ## What
    A job over NCCL whose processes all use GPU 0, or take the rank of the whole job for the number of a GPU.

    ## Why it matters
    NCCL ends with "Duplicate GPU detected", or hangs. With the rank as the GPU's number the job works on one node,
    and raises "invalid device ordinal" on the second one.

    ## Seen as
    hangs, dies

    ## How we know
    `init_process_group("nccl")` and `.cuda()` or `.to("cuda")` that name no GPU, while no file speaks of
    `set_device`, `device_ids`, a local rank or CUDA_VISIBLE_DEVICES. Or `set_device(rank)` where the rank is that
    of `get_rank()` or `$RANK`, in a script that does not spawn its processes itself. Where nothing sets a device
    for the process, a model that goes to GPU 0 and into DistributedDataParallel with a GPU of its own in
    `device_ids` is a warning. Where each call names its GPU, that is a note: what names none, such as
    `all_gather_object` or `torch.cuda.empty_cache()`, uses GPU 0. The number is followed through variables, texts
    and functions, for four ranks on two nodes: where each takes that of its rank in the whole job, in a script
    that neither counts GPUs nor starts its processes, that is a warning; so is FSDP with a `device_id` of 0.

    ## Fix
    - **you** `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before anything else of CUDA.

    ## Source
    PyTorch documentation, torch.nn.parallel.DistributedDataParallel and torchrun, "Environment Variables".
    """
    calls, everywhere = of_many_ranks(script), on_all_ranks(script)
    init = next((call for call in calls if call.name == INIT), None)
    if init is None:
        return
    over_nccl = "nccl" in "".join(init.arguments.values())
    if over_nccl and not says(script, *_OWN_DEVICE):
        for call in calls:
            if _names_no_gpu(call) and call.function in everywhere and sure(call):
                yield _all_on_one(script, call, init)
                return
    yield from _never_taken(script, calls, everywhere, init)
    yield from _one_for_all(script, calls, everywhere)
    by_words = [*_by_words(script, calls)]
    yield from by_words
    if not by_words:
        yield from _by_numbers(script)


def _by_words(script: Script, calls: list[Call]) -> Iterator[Finding]:
    """`get_rank()` or $RANK that is given as the number of a GPU where it is read."""
    if any(call.name in SPAWNS for call in calls):
        return
    ranks = {(call.function, call.target) for call in calls if call.target.isidentifier() and _is_rank(call)}
    for call in calls:
        given = call.arguments.get("0", call.arguments.get("device", ""))
        whole = re.search(r"cuda:", given) and any(
            re.search(_AS_NUMBER.format(rank), given) for function, rank in ranks if function == call.function
        )
        if call.name == "torch.device" and whole:
            yield note(
                here(call),
                f"the rank in the whole job is taken for the number of a GPU: {given}",
                evidence=[written(script, call)],
                fix=[you("Take $LOCAL_RANK, which begins at 0 on each node.")],
            )
        named = (call.function, given) in ranks or _RANK_ITSELF.fullmatch(given)
        if call.name == "torch.cuda.set_device" and named:
            yield warn(
                here(call),
                "the rank in the whole job is taken for the number of a GPU",
                why="On the second node ranks begin at the number of GPUs, and no GPU has that number.",
                owner="job",
                evidence=[written(script, call)],
                fix=[_by_local_rank(script, call)],
            )


def _one_for_all(script: Script, calls: list[Call], everywhere: set[str]) -> Iterator[Finding]:
    """`set_device(0)` or `device_ids=[0]` on all ranks, where no variable hides the other GPUs."""
    if says(script, "CUDA_VISIBLE_DEVICES"):
        return
    for call in calls:
        taken = call.name == "torch.cuda.set_device" and call.arguments.get("0") in ("0", "'cuda:0'")
        given = call.name in DDP and call.arguments.get("device_ids") in ("[0]", "['cuda:0']")
        if (taken or given) and call.function in everywhere and sure(call) and not any(
            guard.kind == "group" and guard.branch != "if" for guard in call.guards
        ):  # fmt: skip
            yield warn(
                here(call),
                "all ranks of a node take GPU 0",
                why="NCCL refuses two ranks on one GPU, or DistributedDataParallel finds the model elsewhere.",
                owner="job",
                evidence=[written(script, call)],
                fix=[you('Take int(os.environ["LOCAL_RANK"]).')],
            )
            return


def _by_numbers(script: Script) -> Iterator[Finding]:
    """The GPU that each rank takes, where that is known: two of one node take the same one, or a rank of the
    second node one that no node has.
    """
    one_node = (
        says(script, "CUDA_VISIBLE_DEVICES", "device_count") or script.nodes == 1 or starts_by_itself(script)
    )
    whole: Call | None = None
    for call in script.trace:
        keys = _GIVES_GPU.get(call.name, ())
        taken = gpus(call, *keys) if keys and is_always(call) and not call.loops else ()
        if call.name.endswith("FullyShardedDataParallel") and taken and taken[0] == taken[1]:
            yield warn(
                here(call),
                f"{call.arguments.get('device_id', 'device_id')} is GPU {taken[0]} on every rank",
                why="No process has taken a GPU of its own before: NCCL refuses two ranks on one GPU.",
                owner="job",
                evidence=[written(script, call)],
                fix=[you('Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) first.')],
            )
            return
        if taken == RANKS and not one_node and whole is None:
            whole = call
    if whole is not None:
        yield warn(
            here(whole),
            "the rank in the whole job is taken for the number of a GPU",
            why="On the second node ranks begin at the number of GPUs, and no GPU has that number.",
            owner="job",
            evidence=[written(script, whole)],
            fix=[you('Take int(os.environ["LOCAL_RANK"]).')],
        )


def _never_taken(script: Script, calls: list[Call], everywhere: set[str], init: Call) -> Iterator[Finding]:
    """Models that are given a GPU by its number, in processes that take none for all that they do."""
    named = "".join(init.arguments.values())
    over_gloo = re.search(r"gloo|mpi|ucc", named) or (says(script, "gloo") and "nccl" not in named)
    taken = says(script, *_TAKES_GPU) or any(
        call.name == "torch.cuda.device" or call.name.endswith(_SETS_GPU) for call in calls
    )
    if over_gloo or taken or "device_id" in init.arguments:
        return
    for wrap in calls:
        number = re.fullmatch(r"\[([^\W\d][\w.]*),?\]", wrap.arguments.get("device_ids", ""))
        if wrap.name not in DDP or not number or wrap.function not in everywhere:
            continue
        followed = _followed(script, wrap)
        placed = followed or _placed(script, wrap)
        if placed and (followed or _names_no_gpu(placed)):
            yield warn(
                here(placed),
                f"the model goes to GPU 0 on every rank, and DistributedDataParallel is given [{number.group(1)}]",
                why="torch.cuda.set_device is never called: all ranks of a node use GPU 0, which NCCL refuses.",
                owner="job",
                evidence=[written(script, placed), written(script, wrap)],
                fix=[you(f"Call torch.cuda.set_device({number.group(1)}) before anything else of CUDA.")],
            )
        else:
            yield note(
                here(init),
                "no process calls torch.cuda.set_device: what names no GPU, as all_gather_object, uses GPU 0",
                evidence=[written(script, init), written(script, wrap)],
                fix=[you("Call it in each process before anything else of CUDA, with the number in device_ids.")],
            )
        return


def _followed(script: Script, wrap: Call) -> Call | None:
    """The last call before it that puts its model on a GPU without a number, as a rank comes to them."""
    last: Call | None = None
    for call in script.trace:
        if call.place == wrap.place and call.name == wrap.name:
            models = objects(call, "0", "module", "new", "object") | objects(
                call, "module", "module", "new", "object"
            )
            return last if last and objects(last, "on", "module", "new", "object") & models else None
        if call.name in (".cuda", ".to") and objects(call, "on", "module", "new", "object"):
            device = tags(call, "0") | tags(call, "device")
            bare = not call.arguments if call.name == ".cuda" else device - {"cpu"} == {"gpu0"}
            last = call if bare else None
    return None


def _placed(script: Script, wrap: Call) -> Call | None:
    """The last call before it that says where its model lies, if that is reached whenever it is."""
    model = wrap.arguments.get("0", wrap.arguments.get("module", ""))
    before = [
        call
        for call in in_function(script, wrap.function)
        if call.name in (".cuda", ".to") and call.line <= wrap.line and model in (call.on, call.target)
    ]
    last = before[-1] if before else None
    return last if last and all(guard in wrap.guards for guard in last.guards) else None


def _names_no_gpu(call: Call) -> bool:
    """`.cuda()`, `.to("cuda")`, and `.to(device)` where that is the same one on all ranks."""
    return (call.name == ".cuda" and not call.arguments) or (call.name == ".to" and _device(call) in _BARE_DEVICE)


def _device(call: Call) -> str:
    return call.device or call.arguments.get("device", call.arguments.get("0", "")).strip("'\"")


def _is_rank(call: Call) -> bool:
    read = call.name in ("os.environ.get", "os.getenv") and call.arguments.get("0", "").strip("'\"") == "RANK"
    return read or (call.name == f"{DIST}get_rank" and not call.arguments and not call.inner)


def _by_local_rank(script: Script, call: Call) -> Remedy:
    """$LOCAL_RANK in its place, and wherever else the same name stands for a GPU."""
    rank, new = call.arguments.get("0", ""), 'int(os.environ["LOCAL_RANK"])'
    change: dict[int, str | None] = {}
    text = "Take $LOCAL_RANK"
    if others := [
        other for other in script.calls if other is not call and rank.isidentifier() and _is_gpu_of(other, rank)
    ]:
        text += f", and at {', '.join(dict.fromkeys(call.place for call in others[:5]))} too"
    for use in (call, *others):
        line = str(change.get(use.line) or line_of(script, call.file, use.line))
        spelled = re.escape(rank).replace("'", "['\"]")  # quotes as it is written
        pattern = re.compile(rf"(?<![\w.]){spelled}(?![\w.(])" if rank.isidentifier() else spelled)
        if use.file != call.file or use.first != use.last or len(pattern.findall(line)) != 1 or "f'" in line:
            return edited(script, f"{text}.", call.file, None, needs="os")
        change[use.line] = pattern.sub(new.replace('"', "'") if 'f"' in line else new, line)
    return edited(script, f"{text}.", call.file, change, needs="os")


def _is_gpu_of(call: Call, rank: str) -> bool:
    """Whether the call takes that name for the number of a GPU."""
    named = {
        "0": call.name in (".to", ".cuda", "torch.device", "torch.cuda.set_device")
        and call.arguments.get("0", ""),
        "1": call.name == "torch.device" and call.arguments.get("1", ""),
        **{key: call.arguments.get(key, "") for key in ("device_ids", "output_device", "device", "map_location")},
    }
    return any(re.search(rf"(?<![\w.]){re.escape(rank)}\b", value) for value in named.values() if value)


def _all_on_one(script: Script, call: Call, init: Call) -> Finding:
    line = line_of(script, init.file, init.first)
    set_device = f'{indent(line)}torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
    spawned = any(call.name in SPAWNS for call in script.calls)
    fixed = any(_names_no_gpu(call) and _device(call) == "cuda:0" for call in script.calls)
    simple = line and not spawned and not fixed
    return fail(
        here(call),
        "all ranks of a node use GPU 0",
        why='NCCL ends with "Duplicate GPU detected", or hangs.',
        owner="job",
        evidence=[written(script, call), written(script, init)],
        fix=[
            edited(
                script,
                "Give each process its GPU before anything else of CUDA"
                + (', and write "cuda" where "cuda:0" stands.' if fixed else "."),
                init.file,
                {init.first: f"{set_device}\n{line}"} if simple else None,
                needs="os",
            )
        ],
    )


@script_rule("SCR022", "each process takes its GPU before it uses CUDA", worst=State.WARN)
def device_in_time(script: Script) -> Iterator[Finding]:
    """
    ## What
    `torch.cuda.set_device` after `.cuda()` or `.to("cuda")` in the same function.

    ## Why it matters
    What came before it went to GPU 0, on every rank of the node: each keeps a context there, some 500 MB, and the
    model may lie on another GPU than its samples.

    ## How we know
    The order of the lines in one function, both under no condition; or, of a model, the order in which a rank
    comes to both, in whatever functions. Where the model was wrapped before, that is a note. Or a collective comes
    before set_device, as a rank comes to both; a barrier alone is a note, for NCCL guesses its GPU by the rank.

    ## Fix
    - **you** move set_device before the first use of CUDA.

    ## Source
    PyTorch documentation, torch.nn.parallel.DistributedDataParallel and torch.cuda.set_device.
    """
    calls = of_many_ranks(script)
    if (late := _exchanged_before(script)) and "nccl" in _backends(script):
        first, taken = late
        guessed = first.name.endswith("barrier")
        text = f"{first.name.rpartition('.')[2]} is entered before the process takes its GPU, at {taken.place}"
        evidence = [written(script, first), written(script, taken)]
        fix = [you("Call torch.cuda.set_device before the first collective, or give device_id= to the group.")]
        why = "NCCL makes its communicator on GPU 0 for all ranks of the node, and refuses, or hangs."
        if guessed:
            yield note(here(first), f"{text}: NCCL guesses which one it is", evidence=evidence, fix=fix)
        else:
            yield warn(here(first), text, why=why, owner="job", evidence=evidence, fix=fix)
    if found := _used_before(script, {call.place for call in calls if call.name == "torch.cuda.set_device"}):
        yield found
        return
    for call in calls:
        if call.name != "torch.cuda.set_device" or not _is_always_made(call) or call.loops:
            continue
        before = [
            earlier
            for earlier in in_function(script, call.function)
            if earlier.line < call.line and _to_gpu_0(earlier)
        ]
        if before and call.arguments.get("0") not in ("0", "'cuda:0'"):
            yield warn(
                here(call),
                f"CUDA is used before, at line {before[0].line}, on GPU 0",
                why="On every rank of the node that part lies on GPU 0.",
                owner="job",
                evidence=[written(script, before[0]), written(script, call)],
                fix=[_moved(script, call, before[0])],
            )


def _backends(script: Script) -> str:
    given = (given_to(script, call, "backend", "0") for call in script.trace if call.name == INIT)
    return " ".join(backend or "nccl" for backend in given)


def _exchanged_before(script: Script) -> tuple[Call, Call] | None:
    """A collective over NCCL that ranks come to before they take a GPU, and where they do."""
    first: Call | None = None
    for call in script.trace:
        if call.name == INIT and ("device_id" in call.arguments or "gloo" in "".join(call.arguments.values())):
            return None
        if call.name == "torch.cuda.device" or (
            call.name in (".cuda", ".to") and not {"cpu"} >= tags(call, "0") and first is None
        ):
            return None
        if call.name == "torch.cuda.set_device":
            is_own = "local" in tags(call, "0") | tags(call, "device")
            return (first, call) if first and is_always(call) and is_own else None
        works = call.name in COLLECTIVES and call.name not in (INIT, f"{DIST}new_group")
        if works and first is None and is_always(call) and "device_ids" not in call.arguments and not call.loops:
            first = call
    return None


def _used_before(script: Script, places: set[str]) -> Finding | None:
    """What puts something on GPU 0, or wraps the model, before a rank takes its GPU, in whatever functions."""
    bare: Call | None = None
    wrap: Call | None = None
    for call in script.trace:
        if call.name == "torch.cuda.device" or (call.name == INIT and "device_id" in call.arguments):
            return None
        if call.name == "torch.cuda.set_device":
            own = "local" in tags(call, "0") | tags(call, "device") or len({*gpus(call, "0", "device")}) > 1
            first = bare or wrap
            if not own or call.loops or not is_always(call) or first is None or call.place not in places:
                return None
            evidence = [written(script, first), written(script, call)]
            if bare is None:
                text = f"the process takes its GPU after the model was wrapped, at {first.place}"
                return note(here(call), text, evidence=evidence, fix=[you(f"Move it before {first.place}.")])
            if bare.function == call.function:
                return None  # told with a diff
            return warn(
                here(call),
                f"CUDA is used before, at {bare.place}, on GPU 0",
                why="On every rank of the node that part lies on GPU 0.",
                owner="job",
                evidence=evidence,
                fix=[you(f"Move it before {bare.place}.")],
            )
        if bare is None and is_always(call) and call.name in (".cuda", ".to"):
            named = {number.strip("'\"") for key in ("0", "device") for number in call.each.get(key, ())}
            is_bare = not call.arguments if call.name == ".cuda" else bool(named) and named <= {*_BARE_DEVICE}
            bare = call if is_bare and objects(call, "on", "module", "new", "object", "ddp") else None
        if wrap is None and call.name in DDP and is_always(call):
            wrap = call
    return None


def _to_gpu_0(call: Call) -> bool:
    return _is_always_made(call) and _names_no_gpu(call)


def _is_always_made(call: Call) -> bool:
    return all(guard.kind == "main" for guard in call.guards)


def _moved(script: Script, call: Call, first: Call) -> Remedy:
    text = f"Move it before line {first.line}."
    line, target = line_of(script, call.file, call.line), line_of(script, first.file, first.first)
    safe = "LOCAL_RANK" in call.arguments.get("0", "") and call.first == call.last and not first.loops
    near = all(line_of(script, call.file, at) or at == call.line for at in range(first.first, call.line))
    if not (safe and near and call.line - first.first <= 10):
        return edited(script, text, call.file, None)
    return edited(
        script, text, call.file, {first.first: f"{indent(target)}{line.strip()}\n{target}", call.line: None}
    )
