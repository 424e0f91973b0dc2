"""SCR011 to SCR014: all meet where the launcher says, with settings that are made in time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, fail, note, warn, you
from ncclcheck.reports.subjects.script.processes import INIT, SPAWNS, of_ranks
from ncclcheck.reports.subjects.script.scripts import (
    COLLECTIVES,
    DDP,
    LOADER,
    LOCAL_RANK,
    MOST_PORT,
    by_rank,
    collective,
    edited,
    given_to,
    here,
    in_function,
    indent,
    known,
    line_of,
    of_many_ranks,
    on_all_ranks,
    reached,
    says,
    script_rule,
    sets_spawn,
    spawns,
    that_starts,
    with_argument,
    written,
)
from ncclcheck.reports.subjects.script.sides import numbers
from ncclcheck.reports.subjects.script.world import runs_for_certain, spans_nodes

_RUNS = re.compile(r"subprocess\.|os\.(?:system|popen)$")
_OLD_LAUNCHER = "torch.distributed.launch"
_ONE_ADDRESS = re.compile(r"^['\"](?:tcp://)?(\d+\.\d+\.\d+\.\d+)(?::\d+)?['\"]$")
_NO_COMMUNICATOR = ("init_process_group", "new_group", "_object", "_object_list", "monitored_barrier")
_IS_LOCAL = re.compile(r"\blocal_rank$")
_LOOPBACK = re.compile(r"^['\"](?:tcp://)?(localhost|127\.\d+\.\d+\.\d+|\[?::1\]?)(?::\d+)?['\"]$")


@script_rule("SCR011", "all nodes meet at an address that all can reach", worst=State.FAIL)
def meeting(script: Script) -> Iterator[Finding]:
    """
    ## What
    A meeting point written into the script: `tcp://localhost:...`, `os.environ["MASTER_ADDR"] = "127.0.0.1"`, an
    address, or a port.

    ## Why it matters
    On several nodes each would wait for the others at its own address until the timeout. A fixed port is taken
    when two jobs share a node.

    ## Seen as
    hangs

    ## How we know
    The value in `init_process_group` (or the option that it comes from) or in the assignment, which replaces what
    the launcher has set. It fails where the job is known to have several nodes (`--nodes`, or a Slurm allocation),
    the ranks are counted over all of them (by WORLD_SIZE, SLURM_NTASKS, or an option for the number of nodes), and
    the line is run whatever the options are. Else it is a note: a script that spawns one process for each GPU of
    its node waits for nobody else. So is a fixed address or port, and the default of an option where no arguments
    were given (after `--`). What the same function sets anew, mostly from the environment, is not judged.

    ## Fix
    - **you** leave MASTER_ADDR and MASTER_PORT to the launcher: `init_process_group("nccl")` reads them.

    ## Source
    PyTorch documentation, torch.distributed, "Initialization"; torchrun, "Environment Variables".
    """
    fixed = False
    for call in that_starts(script):
        value, name = "", call.arguments.get("0", "").strip("'\"")
        if call.name == INIT:
            value, name = given_to(script, call, "init_method", "1"), "init_method"
        elif call.name == "os.environ.set":
            value = call.arguments.get("1", "")
            value = value if re.match(r"['\"]", value) else known(script, call, "1") or value
        if name not in ("init_method", "MASTER_ADDR", "MASTER_PORT"):
            continue
        if any(guard.kind == "other" for guard in call.guards):
            continue  # what is set where nothing else is given
        if call.name == "os.environ.set" and _set_anew(script, call, name):
            continue
        drawn = name == "MASTER_PORT" and re.search(r"\brandint\(|random\.|free_port", value)
        if drawn and not spawns(script) and of_ranks(script, [call]) and not by_rank(call):
            yield warn(
                here(call),
                "each rank draws a port of its own to meet at",
                why="The ranks wait for each other at different ports, until the timeout.",
                owner="job",
                evidence=[written(script, call)],
                fix=[you("Leave MASTER_PORT to the launcher, or draw it once before the ranks start.")],
            )
            continue
        several = (script.nodes or 1) > 1 and call.function in runs_for_certain(script) and spans_nodes(script)
        is_option = value != call.arguments.get(name, call.arguments.get("1", ""))
        default = "by default " if is_option and not script.arguments else ""
        if _LOOPBACK.match(value) and several and not default:
            yield fail(
                here(call),
                f"the processes meet at {value[1:-1]}, which is each of the {script.nodes} nodes itself",
                why="Each node waits for the others at its own address until the timeout.",
                owner="job",
                evidence=[written(script, call)],
                fix=[_to_the_launcher(script, call)],
            )
        elif _LOOPBACK.match(value) and script.nodes != 1:
            text = f"{default}the processes meet at {value[1:-1]}: this works on one node only"
            fix = [] if default else [_to_the_launcher(script, call)]
            yield note(here(call), text, evidence=[written(script, call)], fix=fix)
        elif not default and (address := _ONE_ADDRESS.match(value)) and not _LOOPBACK.match(value):
            text = f"the processes meet at {address.group(1)}, whichever nodes the job is given"
            yield note(here(call), text, evidence=[written(script, call)], fix=[_to_the_launcher(script, call)])
        chosen = is_option and script.arguments  # by who starts the job
        if not chosen and (finding := _fixed_port(script, call, value, "by default" if default else "")):
            fixed = True
            yield finding
    if not fixed and not script.arguments:
        yield from _ports_by_default(script)


def _fixed_port(script: Script, call: Call, value: str, how: str) -> Finding | None:
    """A port that each job on a node would take."""
    port = re.fullmatch(r"['\"](?:tcp://[^'\"]*:)?(\d{1,5})['\"]|(\d{1,5})", value)
    number = next(filter(None, port.groups()), "") if port else ""
    if not number or int(number) > MOST_PORT:
        return None
    text = f"port {number} is fixed{' ' + how if how else ''}: a second job on the node finds it taken"
    return note(here(call), text, evidence=[written(script, call)], fix=[_port_of_the_launcher(script, call)])


def _ports_by_default(script: Script) -> Iterator[Finding]:
    """Options for an address, whose default names a port."""
    for call in reached(script):
        url = re.match(r"['\"]tcp://.*:(\d{1,5})['\"]$", call.arguments.get("default", ""))
        if call.name.endswith(".add_argument") and url:
            text = f"port {url.group(1)} is fixed by default: a second job on the node finds it taken"
            yield note(here(call), text, evidence=[written(script, call)],
                       fix=[you("Leave it to the launcher, or give each job one of its own.")])  # fmt: skip
            return


def _port_of_the_launcher(script: Script, call: Call) -> Remedy:
    line, value = line_of(script, call.file, call.line), call.arguments.get("1", "")
    plain = re.fullmatch(r"\s*os\.environ\[(['\"])MASTER_PORT\1\] = [^;#]*", line) and call.first == call.last
    new = f'{indent(line)}os.environ.setdefault("MASTER_PORT", {value})' if plain else None
    text = "Leave it to the launcher, or to an option of each job."
    return edited(script, text, call.file, {call.line: new} if new else None)


def _set_anew(script: Script, call: Call, name: str) -> bool:
    """Whether another value takes its place further down in the function."""
    return any(
        later.name == call.name
        and later.line > call.line
        and later.arguments.get("0", "").strip("'\"") == name
        and not re.match(r"['\"]", later.arguments.get("1", "''"))
        for later in in_function(script, call.function)
    )


def _to_the_launcher(script: Script, call: Call) -> Remedy:
    """An assignment becomes a default; where the script starts its processes, nobody else gives an address."""
    if spawns(script):
        return edited(script, "Take the address of the first node from an option of the script.", call.file, None)
    line, value, name = (
        line_of(script, call.file, call.line),
        call.arguments.get("1", ""),
        call.arguments.get("0", ""),
    )
    plain = (
        call.name == "os.environ.set"
        and call.first == call.last
        and re.fullmatch(r"\s*os\.environ\[[^=]*=[^;#]*", line)
    )
    new = f"{indent(line)}os.environ.setdefault({name}, {value})" if plain else None
    return edited(script, "Leave the address to the launcher.", call.file, {call.line: new} if new else None)


@script_rule("SCR012", "the local rank is read where torchrun gives it", worst=State.WARN)
def local_rank(script: Script) -> Iterator[Finding]:
    """
    ## What
    The option `--local_rank` (or `--local-rank`), while nothing reads the variable LOCAL_RANK. A script that
    starts `torch.distributed.launch` itself has a note.

    ## Why it matters
    torchrun gives no such option: every process keeps its default, and all use one GPU, or train alone. Only the
    deprecated `python -m torch.distributed.launch` gives it, since torch 2.0 as `--local-rank`.

    ## How we know
    The call of `add_argument`; something reads `local_rank`, and no file has the word LOCAL_RANK.
    DeepSpeed gives the option itself, and is not judged. It is a note where each process is given its rank by
    options of the script's own, such as the node's number: then the local rank may be given likewise; and where
    the option has a short name (`-l`), which a person types, beside an address of its own.

    ## Fix
    - **you** `default=int(os.environ.get("LOCAL_RANK", 0))`.

    ## Source
    PyTorch documentation, torchrun, "Transitioning from torch.distributed.launch to torchrun".
    """
    old: list[Call] = []
    for call in reached(script):
        if _RUNS.match(call.name) and _OLD_LAUNCHER in "".join(call.arguments.values()):
            old.append(call)
    if not old and any(_RUNS.search(call.name) or call.name.startswith("os.exec") for call in script.calls):
        old = [call for call in reached(script) if call.name == "text" and _OLD_LAUNCHER in call.arguments["0"]]
    for call in old[:1]:
        yield note(here(call), f"{_OLD_LAUNCHER} is deprecated; torchrun takes its place",
                   evidence=[written(script, call)])  # fmt: skip
    calls, everywhere = of_many_ranks(script), on_all_ranks(script)
    if says(script, "LOCAL_RANK") or spawns(script) or not says(script, ".local_rank"):
        return
    if any(call.name == "torch.cuda.set_device" and "%" in " ".join(call.arguments.values()) for call in calls):
        return  # by the rank of the job
    if any(call.name.endswith(".get_rank") and call.inner and _IS_LOCAL.search(call.target) for call in calls):
        return  # `local_rank = dist.get_rank() % per_node`
    for call in calls:
        if call.file != script.files[0].name and call.function not in everywhere:
            continue
        names = [text.strip("'\"") for at, text in call.arguments.items() if at.isdecimal()]
        option = next((name for name in names if name in ("--local_rank", "--local-rank")), "")
        if call.name.endswith(".add_argument") and option:
            what = f"{option} is not given by torchrun, and nothing reads $LOCAL_RANK"
            short = any(re.fullmatch(r"-[A-Za-z]", name) for name in names)  # no launcher writes that
            if any(_has_own_rank(script, init, by_hand=short) for init in calls):
                yield note(here(call), f"{what}: what starts the processes must give it",
                           evidence=[written(script, call)], fix=[_from_the_variable(script, call)])  # fmt: skip
                continue
            yield warn(
                here(call),
                what,
                why=_kept(call),
                owner="job",
                evidence=[written(script, call)],
                fix=[_from_the_variable(script, call)],
            )


def _from_the_variable(script: Script, call: Call) -> Remedy:
    default = call.arguments.get("default", "")
    for at in range(call.first, call.last + 1):
        line = line_of(script, call.file, at)
        if default and line.count(f"default={default}") == 1:
            new = line.replace(f"default={default}", f'default=int(os.environ.get("LOCAL_RANK", {default}))')
            return edited(script, "Let its default be the variable.", call.file, {at: new}, needs="os")
    value = 'int(os.environ.get("LOCAL_RANK", 0))'
    new = (
        ""
        if default
        else with_argument(line_of(script, call.file, call.line), ".add_argument(", f"default={value}")
    )
    change = {call.line: new} if new else None
    return edited(script, f"Let its default be {value}.", call.file, change, needs="os")


def _kept(option: Call) -> str:
    """What comes of the default, which every process keeps."""
    default = option.arguments.get("default", "None")
    if option.arguments.get("required") == "True":
        return 'Every process ends as it starts: "the following arguments are required".'
    if default in ("None", "-1"):
        return (
            f"Every process keeps {default}, the number of no GPU: by what the script does with it all use one "
            "GPU, each trains alone, or it raises."
        )
    return "Every process keeps the default: all use one GPU, or each trains alone."


def _has_own_rank(script: Script, init: Call, *, by_hand: bool = False) -> bool:
    """Whether the processes are told their ranks by options: an address, and a rank that is made of them.

    by_hand: a person types the option: the rank may be handed on under any name.
    """
    rank = init.arguments.get("rank", init.arguments.get("4", ""))
    method = given_to(script, init, "init_method", "1")
    is_local = LOCAL_RANK.match(rank) or not re.search(r"\b(?:args|opts?|FLAGS)\.|argv", rank)
    by_variable = "environ" in rank or says(script, "RANK", "SLURM_PROCID")
    given = (bool(rank) and by_hand) or not is_local
    return init.name == INIT and bool(method) and "env://" not in method and given and not by_variable


@script_rule("SCR013", "settings are made before they are read", worst=State.WARN)
def in_time(script: Script) -> Iterator[Finding]:
    """
    ## What
    `os.environ[...] = ...` after the call that reads the variable: MASTER_*, TORCH_NCCL_* and WORLD_SIZE after
    `init_process_group`, NCCL_* after the first collective or DistributedDataParallel, CUDA_VISIBLE_DEVICES after
    the first use of CUDA, OMP_NUM_THREADS after torch was imported, HF_HOME and the like after transformers or
    datasets were.

    ## Why it matters
    It changes nothing, in silence.

    ## How we know
    The order in one function; calls of the script's own functions are followed. NCCL reads its variables when the
    first communicator is made, in the first collective.

    ## Fix
    - **you** move it to the top of the script, or set it in the job script.

    ## Source
    PyTorch documentation, torch.distributed, "Environment variable initialization"; NCCL documentation,
    "Environment Variables".
    """
    everywhere = on_all_ranks(script)
    late = _late(script)
    for call, first in late:
        name = call.arguments.get("0", "").strip("'\"")
        yield _ineffective(script, call, first, name)
    places = {call.place for call, _ in late}
    for call in reached(script):
        name = call.arguments.get("0", "").strip("'\"")
        if call.name != "os.environ.set" or call.function not in everywhere or call.place in places:
            continue
        if re.match(r"MASTER_|TORCH_NCCL_|WORLD_SIZE$|RANK$", name):
            reader = _before(script, call, lambda operation: operation == "init_process_group")
            if reader and not _reads(reader, name):
                continue
        elif re.match(r"NCCL_", name):
            reader = _before(script, call, lambda operation: operation not in ("init_process_group", "new_group"))
        elif name in ("CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_LAUNCH_BLOCKING"):
            reader = _cuda_before(script, call, _BEGINS if name == "CUDA_VISIBLE_DEVICES" else _ALLOCATES)
        elif library := _read_by(name):
            reader = _import_before(script, call, library)
        else:
            continue
        if reader:
            yield _ineffective(script, call, reader, name)


def _ineffective(script: Script, call: Call, reader: Call, name: str) -> Finding:
    place = f"line {reader.line}" if reader.file == call.file else reader.place
    return warn(
        here(call),
        f"{name} is set after {place}, which read it",
        why="It changes nothing, in silence.",
        owner="job",
        evidence=[written(script, call), written(script, reader)],
        fix=[_before_it(script, call, reader)],
    )


def _late(script: Script) -> list[tuple[Call, Call]]:
    """Variables that are set once they were read, as a rank comes to both, in whatever functions: NCCL's once a
    communicator is there, the launcher's once the group is, CUDA_VISIBLE_DEVICES once CUDA is used.
    """
    reader: Call | None = None
    set_before: set[str] = set()  # a function that is called twice
    start: Call | None = None
    used: Call | None = None
    by_place: dict[str, tuple[Call, Call]] = {}
    for call in script.trace:
        plain = all(guard.kind in ("main", "group") for guard in call.guards)
        if (
            reader is None
            and plain
            and call.name in (*COLLECTIVES, *DDP)
            and not call.name.endswith(_NO_COMMUNICATOR)
        ):
            reader = call
        start = call if start is None and plain and call.name == INIT else start
        used = call if used is None and plain and _uses_cuda(call) else used
        name = call.arguments.get("0", "").strip("'\"")
        of_nccl = name.startswith("NCCL_")
        set_by_all = call.name == "os.environ.set" and not any(guard.kind == "rank" for guard in call.guards)
        if of_nccl and set_by_all and reader is not None:
            by_place.setdefault(call.place, (call, reader))
        early = (
            set_by_all and not any(guard.kind == "other" for guard in call.guards) and call.place not in set_before
        )
        set_before |= {call.place} if call.name == "os.environ.set" and used is None and start is None else set()
        if early and name == "CUDA_VISIBLE_DEVICES" and used is not None:
            by_place.setdefault(call.place, (call, used))
        of_launcher = re.match(r"MASTER_|TORCH_NCCL_|WORLD_SIZE$|RANK$", name)
        if early and of_launcher and start is not None and _reads(start, name):
            by_place.setdefault(call.place, (call, start))
    return [*by_place.values()]


def _uses_cuda(call: Call) -> bool:
    """Whether it begins to use CUDA for certain."""
    to_gpu = call.name == ".to" and {*numbers(call, "0", "device")} & {"'cuda'", "'cuda:0'"}
    return call.name in ("torch.cuda.set_device", "torch.cuda.current_device", ".cuda") or bool(to_gpu)


def _before(script: Script, call: Call, wanted: Callable[[str], bool]) -> Call | None:
    for earlier in in_function(script, call.function):
        if earlier.line >= call.line:
            return None
        name = (
            collective(script, earlier).partition(" ")[0]
            if earlier.guards == call.guards[: len(earlier.guards)]
            else ""
        )
        if name and wanted(name):
            return earlier
    return None


def _reads(init: Call, name: str) -> bool:
    """Whether it takes the variable: only with env://, and of rank and world size what it is not given."""
    method = init.arguments.get("init_method", init.arguments.get("1", "'env://'"))
    if name.startswith("TORCH_NCCL_"):
        return True
    given = {"WORLD_SIZE": ("world_size", "3"), "RANK": ("rank", "4")}.get(name, ())
    return "env://" in method and not {"*", "store", *given} & {*init.arguments}


# Library -> variables that it reads as it is imported, and not again.
_AT_IMPORT = {
    "torch": r"(?:OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS|KMP_\w+|GOMP_\w+|TORCH_CPP_LOG_LEVEL",
    "huggingface_hub": r"HF_(?:HOME|ENDPOINT|HUB_CACHE|HUB_OFFLINE|DATASETS_CACHE|DATASETS_OFFLINE"
    r"|HUB_ENABLE_HF_TRANSFER)|TRANSFORMERS_(?:CACHE|OFFLINE)|HUGGINGFACE_HUB_CACHE",
}
_BEGINS = re.compile(
    r"torch\.cuda\.(?:is_available|set_device|init|current_device|get_device_\w+|synchronize)$|\.cuda$"
)
_ALLOCATES = re.compile(r"\.cuda$")


def _cuda_before(script: Script, call: Call, begins: re.Pattern[str]) -> Call | None:
    """What begins to use CUDA before it, in the same function."""
    earlier = [
        before
        for before in in_function(script, call.function)
        if before.line < call.line and before.guards == call.guards[: len(before.guards)]
    ]
    return next((call for call in earlier if begins.search(call.name)), None)


def _read_by(name: str) -> str:
    """The library whose import reads the variable; empty where none is known."""
    return next((library for library, names in _AT_IMPORT.items() if re.fullmatch(names, name)), "")


def _import_before(script: Script, call: Call, library: str) -> Call | None:
    """The import that reads it, in the script itself."""
    if call.file != script.files[0].name or call.function != f"{call.file}:":
        return None
    libraries = ("transformers", "datasets", "huggingface_hub") if library == "huggingface_hub" else (library,)
    earlier = [
        before
        for before in in_function(script, call.function)
        if before.line < call.line and before.guards == call.guards[: len(before.guards)]
    ]
    return next((call for call in earlier if call.name == "import" and call.arguments.get("0") in libraries), None)


def _before_it(script: Script, call: Call, reader: Call) -> Remedy:
    text = f"Set it before line {reader.line}."
    line, first = line_of(script, call.file, call.line), line_of(script, reader.file, reader.first)
    near = all(line_of(script, call.file, at) or at == call.line for at in range(reader.first, call.line))
    if (
        call.file != reader.file
        or call.first != call.last
        or call.loops
        or reader.loops
        or not near
        or call.line - reader.first > 10
    ):
        return edited(script, text, call.file, None)
    if not re.search(r"=\s*(['\"])[^'\"]*\1\s*$", line):
        return edited(script, text, call.file, None)
    return edited(
        script, text, call.file, {reader.first: f"{indent(first)}{line.strip()}\n{first}", call.line: None}
    )


_DEEP = 6  # calls within calls that are followed
_PROCESSES = re.compile(r"(?:^|[.])(?:Process|Pool|ProcessPoolExecutor)$")


def _starts(script: Script, call: Call, deep: int) -> bool:
    """Whether it starts processes that import the main module again, itself or in the script's own functions."""
    if call.name in SPAWNS:
        return call.arguments.get("start_method", "'spawn'") != "'fork'"
    if sets_spawn(script) and (_PROCESSES.search(call.name) or _has_workers(call)):
        return True
    inside = in_function(script, call.name) if deep and ":" in call.name else []
    return any(_starts(script, call, deep - 1) for call in inside)


def _has_workers(call: Call) -> bool:
    number = call.arguments.get("num_workers", "0")
    return call.name in LOADER and bool(call.loops) and number.isdecimal() and int(number) > 0


@script_rule("SCR014", "processes are spawned by the main module only", worst=State.FAIL)
def guarded_spawn(script: Script) -> Iterator[Finding]:
    """
    ## What
    `torch.multiprocessing.spawn` at the top of a script, or a function called there that leads to it, outside of
    `if __name__ == "__main__":`. The same for `Process`, `Pool` and loaders with workers where the script sets the
    start method spawn or forkserver.

    ## Why it matters
    Every spawned process imports the script again and comes to the same line: "An attempt has been made to start a
    new process before the current process has finished its bootstrapping phase".

    ## How we know
    The call stands in no function and under no such condition; functions of the script's own are followed. So
    with a lambda, or a function within a function, that `spawn` is given: new processes import it by its name,
    and it has none ("Can't pickle local object").

    ## Fix
    - **you** put it under `if __name__ == "__main__":`; give it a function at the top of a file.

    ## Source
    Python documentation, multiprocessing, "Safe importing of main module".
    """
    for call in reached(script):
        given = call.arguments.get("0", call.arguments.get("fn", ""))
        local = given.isidentifier() and in_function(script, f"{call.function}.{given}") and ":" in call.function
        if call.name in SPAWNS and (given.startswith("lambda") or (local and not call.function.endswith(":"))):
            yield fail(
                here(call),
                f"spawn is given {given[:40]}, which new processes cannot import",
                why='It raises "Can\'t pickle local object": the job ends as it starts.',
                owner="job",
                evidence=[written(script, call)],
                fix=[you("Give it a function at the top of a file.")],
            )
        if call.function == f"{script.files[0].name}:" and not call.guards and _starts(script, call, _DEEP):
            line = line_of(script, call.file, call.line)
            text = f'if __name__ == "__main__":\n    {line}'
            plain = call.first == call.last and not call.loops and line[:1].strip()
            yield fail(
                here(call),
                'it spawns processes outside of if __name__ == "__main__"',
                why="Every spawned process imports the script again, comes to the same line, and raises.",
                owner="job",
                evidence=[written(script, call)],
                fix=[
                    edited(script, "Put it under that condition.", call.file, {call.line: text} if plain else None)
                ],
            )
