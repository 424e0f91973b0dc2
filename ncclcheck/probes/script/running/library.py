"""What calls of torch and other libraries give and do, as far as a rank's values go."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import structs

from ncclcheck.probes.facts.script import Call, Guard, Loop
from ncclcheck.probes.script.running import each, made, python, vocabulary
from ncclcheck.probes.script.running.values import (
    AGREED,
    BY_RANK,
    CHANCE,
    CLOCK,
    CPU,
    DRAWN,
    FIRST,
    LIVE,
    LOCAL,
    MAY_LACK,
    MEAN,
    NOTHING,
    ON_CPU,
    ORDERED,
    OWN,
    RANK,
    SHARE,
    SOME,
    SUMMED,
    WORLD,
    AbstractValue,
    CallFrame,
    carried,
    join,
    symbol,
)
from ncclcheck.probes.script.words import text

if TYPE_CHECKING:
    from ncclcheck.probes.script.running.calling import Calling as Run

_UNLIKE = (
    OWN,
    SOME,
    FIRST,
    RANK,
    LOCAL,
    BY_RANK,
    CHANCE,
    CLOCK,
    DRAWN,
    MAY_LACK,
)  # what a value is not any more when ranks have exchanged it
# Arguments by which processes are counted: how each was made is told too.
_COUNTED = {
    "torch.distributed.init_process_group": ("rank", "4", "world_size", "3"),
    "torch.multiprocessing.spawn": ("nprocs", "2"),
    "torch.multiprocessing.start_processes": ("nprocs", "2"),
}
_VARIABLES = {
    "RANK": RANK, "SLURM_PROCID": RANK, "OMPI_COMM_WORLD_RANK": RANK, "PMI_RANK": RANK,
    "LOCAL_RANK": LOCAL, "SLURM_LOCALID": LOCAL, "OMPI_COMM_WORLD_LOCAL_RANK": LOCAL,
    "WORLD_SIZE": WORLD, "SLURM_NTASKS": WORLD,
}  # fmt: skip


def is_environ(name: str) -> bool:
    """Whether it is the environment."""
    return name in ("os.environ", "environ")


def is_still(name: str) -> bool:
    """A block, or a decorator, under which no graph is kept."""
    return name.endswith(("no_grad", "inference_mode"))


def variable(name: str) -> AbstractValue:
    """A variable of the environment."""
    return AbstractValue(frozenset({_VARIABLES[name]}) if name in _VARIABLES else frozenset(), f"${name}")


def by_name(name: str) -> frozenset[str]:
    """What a name tells that was given nothing which is known."""
    lower = name.lower()
    for pattern, tag in (
        (vocabulary.LOCAL_NAMES, LOCAL),
        (vocabulary.RANK_NAMES, RANK),
        (vocabulary.WORLD_NAMES, WORLD),
    ):
        if pattern.match(lower):
            return frozenset({tag})
    return frozenset()


def other_branch(guard: Guard) -> Guard:
    """The condition where it does not hold."""
    return structs.replace(guard, branch="else")


def replaced(call: Call, guards: list[Guard], loops: list[Loop]) -> Call:
    """The call under other conditions and loops."""
    return structs.replace(call, guards=guards, loops=loops)


def kind_of(run: Run, cls: str) -> str:
    """What a class of the script is, by what it is made from."""
    waiting, seen = [cls], {cls}
    while waiting:
        derived = waiting.pop(0)
        for base in run.bases(derived):
            name = base.rpartition(".")[2].rpartition(":")[2]
            if name in ("Module", "LightningModule", "Sequential"):
                return "module"
            if name.endswith("DataLoader"):
                return "loader"
            if name.endswith("Dataset") or name in ("ImageFolder", "DatasetFolder"):
                return "dataset"
            if name.endswith("DistributedSampler"):
                return "sampler"
            if name.endswith(("Sampler", "BatchSampler")):
                return "sampled"
            if base not in seen:
                seen.add(base)
                waiting.append(base)
    return "object"


def call(
    run: Run,
    node: ast.Call,
    name: str,
    on: AbstractValue,
    given: list[AbstractValue],
    named: Mapping[str, AbstractValue],
    frame: CallFrame,
) -> AbstractValue:
    """A call of what is not the script's own."""
    last = name.rpartition(".")[2].rpartition(":")[2]
    every = [*given, *named.values()]
    python.updated(run, last, on, given, named)
    if name in (".eval", ".train") and not any(value.symbol == "False" for value in given[:1]):
        python.put_to_rest(run, on, rests=last == "eval")
    _tell(run, node, name, on, given, named)
    for pattern, act in made.KINDS:
        if pattern.search(name):
            return act(made.KnownCall(run, node, name, given, named))
    if vocabulary.SUMS.search(name) and node.args:
        _summed(run, node, name, given, frame)
        return join(given[:1]).agreed(*_UNLIKE)
    if last in ("div_", "mul_") and isinstance(node.func, ast.Attribute):
        _clear(node.func.value, frame, SUMMED)
        return on.but(SUMMED)
    if (number := _drawn(run, node, name, given, named, frame)) is not None:
        return number
    if (known := _of_jobs(run, node, name, on, given, named, frame)) is not None:
        return known
    if (moved := _on_cpu(run, node, name, on, given, named)) is not None:
        return moved
    if (of_python := python.called(run, node, name, on, given, named, frame)) is not None:
        return of_python
    _run_given(run, node, name, given, named)
    if is_environ(text(node.func.value)) if isinstance(node.func, ast.Attribute) else False:
        return _environ(run, node, last, given)
    if name in ("os.getenv", "getenv") and node.args:
        return variable(text(node.args[0]).strip("'\""))
    if last in ("device_count", "is_available"):
        return AbstractValue(symbol="device_count()") if last == "device_count" else NOTHING
    if vocabulary.TIMES.match(name):
        return AbstractValue(frozenset({CLOCK}))
    if vocabulary.SHAPE_OF.search(name):
        return AbstractValue(
            carried(on, *every) - {OWN, LIVE, BY_RANK}, symbol(last, on, *every) if on.symbol else ""
        )
    if (tags := by_name(last)) and not (last == "get_global_rank" and len(every) > 1):
        return AbstractValue(tags, last)
    if vocabulary.GATHERS.search(name) and not last.startswith("convert_"):
        return AbstractValue((carried(on, *every) - {*_UNLIKE}) | {AGREED})
    if vocabulary.DETACHES.search(name) or name in ("float", "int"):
        source = on if name.startswith(".") or not given else given[0]
        return source.but(LIVE)
    if (formed := _formed(node, name, on, given, named)) is not None:
        return formed
    if vocabulary.PASSES.search(name):
        source = given[0] if given and not (isinstance(node.func, ast.Attribute) and name.startswith(".")) else on
        return source if source.tags or source.symbol or source.items else AbstractValue(carried(on, *every))
    if last == "join" and name in ("os.path.join",):
        return AbstractValue(carried(*every), symbol("path", *every))
    if last == "joinpath":
        return AbstractValue(carried(on, *every), symbol("path", on, *every))
    if last in ("parameters", "named_parameters"):
        return _parameters(on)
    if (state := _state(name, last, on, given)) is not None:
        return state
    if last in ("filter", "map"):
        return AbstractValue(carried(*every))
    if last == "range":
        return python.numbers(given)
    if last in ("enumerate", "zip"):
        return python.several(last, given)
    if last == "next" and given:
        return run.element(given[0])
    puts = last in ("update", "append", "extend", "add") and not on.of("dict")
    if puts and isinstance(node.func, ast.Attribute):
        _put_in(node.func.value, frame, every)
        if last == "append" and node.args and given:
            run.keep(node.func.value, node.args[0], given[0], frame)
    tags = carried(on, *every)
    ways = run.forward_of(node, frame)
    if ways or on.of("ddp", "fsdp", "module", "engine") or _is_model(node, frame):
        tags |= {LIVE} if not run.still else frozenset()
        tags |= {*ways}
    if isinstance(node.func, ast.Attribute) and name.startswith("."):
        return AbstractValue(tags, symbol(f"{last}", on, *every) if on.symbol else "")
    settings = named if vocabulary.SETTINGS.search(last) else {}
    fresh: set[str] = (
        {run.make("new", node, fields={key: value for key, value in settings.items() if key})}
        if not name.startswith(("torch.nn.functional", "math.", "np.", "numpy."))
        else set()
    )
    return AbstractValue(tags | fresh, symbol(name, *every) if every else "")


def _formed(
    node: ast.Call, name: str, on: AbstractValue, given: list[AbstractValue], named: Mapping[str, AbstractValue]
) -> AbstractValue | None:
    """A device, a number or a text that is made of others; None for all else."""
    every = [*given, *named.values()]
    if name == "torch.device" and len(every) > 1:
        return each.with_each(AbstractValue(carried(*every)), each.device_of(every))
    if name in ("int", "str", "bool") and len(given) == 1 and (cast := each.as_(vocabulary.KINDS[name], given[0])):
        return each.with_each(given[0]._replace(symbol=symbol(name, given[0])), cast)
    if name.endswith("format") and isinstance(node.func, ast.Attribute):
        return each.with_each(
            AbstractValue(carried(on, *every), symbol("format", on, *every)), each.formatted(on, given)
        )
    return None


def _of_jobs(
    run: Run,
    node: ast.Call,
    name: str,
    on: AbstractValue,
    given: list[AbstractValue],
    named: Mapping[str, AbstractValue],
    frame: CallFrame,
) -> AbstractValue | None:
    """What starts a group, prepares models and loaders, or draws by chance; None for all else."""
    if vocabulary.GROUPS.search(name):
        _is_rank(run, node, frame)
        return NOTHING
    if name == "deepspeed.initialize":
        return _engine(run, node, given, named)
    if name.rpartition(".")[2] in vocabulary.PREPARES:
        _prepared(run, given)
        return given[0] if len(given) == 1 else AbstractValue(items=tuple(given))
    if name.endswith(".shard") and carried(*given, *named.values()) & {BY_RANK, SHARE}:
        return AbstractValue((carried(on) - {BY_RANK}) | {SHARE, OWN})
    if vocabulary.CHANCES.match(name):
        unseeded = name.endswith(("default_rng", ".Random", "RandomState")) and not (given or named)
        return AbstractValue(frozenset({CHANCE, DRAWN} if unseeded else {CHANCE}))
    return None


_SEEDED_BY = (
    (re.compile(r"^torch\.(?:cuda\.|random\.)?manual_seed(?:_all)?$"), ("torch",)),
    (re.compile(r"^random\.seed$"), ("random",)),
    (re.compile(r"^(?:np|numpy)\.random\.seed$"), ("numpy",)),
    (re.compile(r"(?:^|\.)(?:seed_everything|set_seed)$"), ("torch", "random", "numpy")),
)
_SHUFFLES = re.compile(r"^(?P<by>random|np\.random|numpy\.random)\.(?P<how>shuffle|sample|permutation)$")


def _drawn(
    run: Run,
    node: ast.Call,
    name: str,
    given: list[AbstractValue],
    named: Mapping[str, AbstractValue],
    frame: CallFrame,
) -> AbstractValue | None:
    """Seeds, what is put in an order that is drawn from one, and the current GPU; None for all else."""
    for pattern, libraries in _SEEDED_BY:
        if pattern.search(name) and (seeds := [*given, *named.values()]):
            differs = each.differs(each.of(seeds[0])) or seeds[0].tags & {RANK, LOCAL, BY_RANK}
            run.unlike = run.unlike | {*libraries} if differs else run.unlike - {*libraries}
            return NOTHING
    if (number := _current(run, name, given, named)) is not None:
        return number
    how = _SHUFFLES.match(name)
    by = how.group("by").replace("np.", "numpy.").partition(".")[0] if how else ""
    if not how or by not in run.unlike or not given:
        return None
    target = node.args[0] if node.args else None
    if how.group("how") != "shuffle":
        return given[0].with_(ORDERED)
    if isinstance(target, ast.Name):
        frame.variables[target.id] = (frame.look(target.id) or NOTHING).with_(ORDERED)
    elif isinstance(target, ast.Attribute):
        for thing in run.value(target.value, frame).objects:
            fields = run.things[thing].fields
            fields[target.attr] = fields.get(target.attr, NOTHING).with_(ORDERED)
    return NOTHING


def _current(
    run: Run, name: str, given: list[AbstractValue], named: Mapping[str, AbstractValue]
) -> AbstractValue | None:
    """The GPU that a rank has taken for all that it does; None for all else."""
    if name == "torch.cuda.set_device":
        asked = [*given, *named.values()]
        run.device = each.of(asked[0]) if asked else None
        return NOTHING
    if name == "torch.cuda.current_device":
        known = run.device if run.device is not None else each.LOCALS
        return each.with_each(AbstractValue(frozenset({LOCAL} if each.differs(known) else ())), known)
    return None


def _is_model(node: ast.Call, frame: CallFrame) -> bool:
    """Whether what is called is a model."""
    if not isinstance(node.func, ast.Name):
        return False
    called = frame.look(node.func.id)
    return bool(called and called.of("ddp", "fsdp", "module", "engine"))


def _tell(
    run: Run,
    node: ast.Call,
    name: str,
    on: AbstractValue,
    given: list[AbstractValue],
    named: Mapping[str, AbstractValue],
) -> None:
    reports = vocabulary.REPORTS.search(name) and any(
        {OWN, SUMMED} & value.all_tags for value in [*given, *named.values()]
    )
    writes = _path_written(node, name, on, given, named)
    reads = _path_read(node, name, on, given)
    if not (
        vocabulary.RECORDED.search(name)
        or vocabulary.GATHERS.search(name)
        or reports
        or writes
        or reads
        or vocabulary.DRAWS.search(name)
        or vocabulary.SEEDS.search(name)
        or made.OPTIMIZERS.search(name)
        or made.LOADERS.search(name)
        or made.ANY_SAMPLER.search(name)
    ):
        return  # fmt: skip
    arguments = {str(at): node for at, node in enumerate(node.args) if not isinstance(node, ast.Starred)}
    arguments |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    values = {str(at): value for at, value in enumerate(given)} | {
        key: value for key, value in named.items() if key
    }
    values = {
        key: value.with_(value.symbol) if value.symbol in ("True", "False", "None") else value
        for key, value in values.items()
    }
    for key in _COUNTED.get(name, ()):
        if key in values and values[key].symbol and values[key].symbol.isprintable():
            values[key] = values[key].with_("is:" + values[key].symbol.replace(" ", ""))
    if on.all_tags:
        values["on"] = on
    if writes is not None or reads is not None:
        values["path"] = _as_path(writes or reads or NOTHING, _named_here(run, node, name))
    written = text(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    kind = "write" if writes and not name.endswith("torch.save") else name
    run.add("read" if reads else kind, node.lineno, arguments, more=values, on=written)


def _named_here(run: Run, node: ast.Call, name: str) -> str:
    """A variable of the function that holds a path of which nothing else is known."""
    at = 1 if name == "torch.save" or name.endswith("dump") else 0
    given = node.args[at] if len(node.args) > at else None
    return f"{run.stack[-1]}.{given.id}" if isinstance(given, ast.Name) else ""


def _as_path(value: AbstractValue, otherwise: str = "") -> AbstractValue:
    """Its symbol as a tag, by which two places are known to be one file."""
    value = value if value.symbol else value._replace(symbol=otherwise)
    return AbstractValue(
        frozenset(
            {*(value.all_tags & {RANK, LOCAL, BY_RANK}), *([f"path:{value.symbol}"] if value.symbol else [])}
        )
    )


def _path_written(
    node: ast.Call, name: str, on: AbstractValue, given: list[AbstractValue], named: Mapping[str, AbstractValue]
) -> AbstractValue | None:
    if name in ("open", "io.open") or name.endswith(".open"):
        mode = text(node.args[1]) if len(node.args) > 1 else text(named_node(node, "mode"))
        path = given[0] if given and not name.startswith(".") else on
        return path if mode.strip("'\"")[:1] in ("w", "a", "x") and mode else None
    if not vocabulary.WRITES.search(name):
        return None
    if name.startswith(".") and name.endswith(("write_text", "write_bytes")):
        return on
    if name == "torch.save" or name.startswith("shutil.") or name.endswith(("dump", "urlretrieve")):
        return given[1] if len(given) > 1 else named.get("f", NOTHING)
    return given[0] if given else NOTHING


def _path_read(node: ast.Call, name: str, on: AbstractValue, given: list[AbstractValue]) -> AbstractValue | None:
    if name in ("open", "io.open") or name.endswith(".open"):
        mode = text(node.args[1]) if len(node.args) > 1 else text(named_node(node, "mode"))
        path = given[0] if given and not name.startswith(".") else on
        return path if mode.strip("'\"")[:1] in ("r", "") else None
    if not vocabulary.READS.search(name):
        return None
    return on if name.startswith(".") else given[0] if given else NOTHING


def named_node(node: ast.Call, name: str) -> ast.expr:
    """An argument by its name."""
    return next((keyword.value for keyword in node.keywords if keyword.arg == name), ast.Constant(""))


def sum_in_place(node: ast.expr, frame: CallFrame, run: Run) -> None:
    """The tensor is the same on all ranks from here on, wherever its name is known."""
    while isinstance(node, ast.Subscript | ast.Starred):
        node = node.value
    if isinstance(node, ast.Name):
        if node.id in frame.variables:
            for new in frame.variables[node.id].of("new"):  # a tensor whose parts were given numbers
                fields = run.things[new].fields
                run.things[new].fields = {key: value.agreed(*_UNLIKE) for key, value in fields.items()}
            for table in frame.variables[node.id].of("dict"):
                fields = run.things[table].fields
                run.things[table].fields = {key: value.agreed(*_UNLIKE) for key, value in fields.items()}
            frame.variables[node.id] = frame.variables[node.id].agreed(*_UNLIKE)
        frame.reduced.add(node.id)
        for loop in run.loops:  # `for m in metrics: all_reduce(m)`
            if loop.target == node.id and loop.over in frame.variables:
                frame.variables[loop.over] = frame.variables[loop.over].agreed(*_UNLIKE)
                frame.reduced.add(loop.over)
    elif isinstance(node, ast.Attribute):
        on = run.value(node.value, frame)
        for thing in on.objects:
            fields = run.things[thing].fields
            if node.attr in fields:
                fields[node.attr] = fields[node.attr].agreed(*_UNLIKE)
        frame.variables.pop(text(node), None)
    elif isinstance(node, ast.List | ast.Tuple):
        for inner in node.elts:
            sum_in_place(inner, frame, run)


def _summed(run: Run, node: ast.Call, name: str, given: list[AbstractValue], frame: CallFrame) -> None:
    """A sum over ranks of what is an average of each."""
    sum_in_place(node.args[0], frame, run)
    op = text(named_node(node, "op")) if named_node(node, "op") else ""
    at = 1 if name.endswith("all_reduce") else 2
    op = op or (text(node.args[at]) if len(node.args) > at else "")
    adds = name.endswith("reduce") and (op in ("", "''") or op.endswith("SUM"))
    if adds and OWN in given[0].tags and given[0].tags & {MEAN, LIVE} and isinstance(node.args[0], ast.Name):
        frame.variables[node.args[0].id] = given[0].but(OWN).with_(SUMMED)


def _clear(node: ast.expr, frame: CallFrame, tag: str) -> None:
    if isinstance(node, ast.Name) and node.id in frame.variables:
        frame.variables[node.id] = frame.variables[node.id].but(tag)


def _is_rank(run: Run, node: ast.Call, frame: CallFrame) -> None:
    """What is given as the rank of the process is it from here on, whatever it is called."""
    given = node.args[4] if len(node.args) > 4 else named_node(node, "rank")
    if isinstance(given, ast.Name) and given.id in frame.variables:
        frame.variables[given.id] = frame.variables[given.id].with_(RANK)
    elif isinstance(given, ast.Attribute):
        for thing in run.value(given.value, frame).objects:
            fields = run.things[thing].fields
            fields[given.attr] = fields.get(given.attr, NOTHING).with_(RANK)


def _on_cpu(
    run: Run,
    node: ast.Call,
    name: str,
    on: AbstractValue,
    given: list[AbstractValue],
    named: Mapping[str, AbstractValue],
) -> AbstractValue | None:
    """A tensor that is made in the CPU's memory, or goes there or from there; None for all else."""
    if name == ".cpu":
        return on.with_(ON_CPU)
    if name in (".cuda", ".to") and ON_CPU in on.tags:
        stays = name == ".to" and all(CPU in value.tags for value in given[:1])
        return on if stays else on.but(ON_CPU)
    if vocabulary.ON_CPU.search(name) and "device" not in named:
        return AbstractValue(carried(*given, *named.values()) | {ON_CPU, run.make("new", node)})
    return None


def _prepared(run: Run, given: list[AbstractValue]) -> None:
    """Loaders that Accelerate or Fabric has shared out."""
    for value in given:
        for loader in value.of("loader"):
            run.things[loader].fields["prepared"] = NOTHING


def _engine(
    run: Run, node: ast.Call, given: list[AbstractValue], named: Mapping[str, AbstractValue]
) -> AbstractValue:
    """DeepSpeed's engine, optimizer, loader and schedule."""
    model = named.get("model", given[1] if len(given) > 1 else NOTHING)
    engine = AbstractValue(frozenset({run.make("engine", node, fields={"module": model})}))
    optimizer = named.get("optimizer", NOTHING)
    loader = AbstractValue(frozenset({OWN}))
    return AbstractValue(
        items=(engine, optimizer.with_(f"of:{engine.objects[0]}"), loader, named.get("lr_scheduler", NOTHING))
    )


def _put_in(node: ast.expr, frame: CallFrame, values: list[AbstractValue]) -> None:
    """What a list or a table is given, it holds."""
    if isinstance(node, ast.Name) and node.id in frame.variables:
        old = frame.variables[node.id]
        frame.variables[node.id] = AbstractValue(
            old.all_tags | carried(*values) | {t for v in values for t in v.tags if "@" in t}
        )


def _environ(run: Run, node: ast.Call, last: str, given: list[AbstractValue]) -> AbstractValue:
    if last in ("get", "pop", "setdefault") and node.args:
        if last == "setdefault":
            run.add("os.environ.set", node.lineno, {str(at): node for at, node in enumerate(node.args)}, given)
        return variable(text(node.args[0]).strip("'\""))
    if last == "update" and node.args and isinstance(node.args[0], ast.Dict):
        for key, value in zip(node.args[0].keys, node.args[0].values, strict=True):
            if key is not None:
                run.add("os.environ.set", node.lineno, {"0": key, "1": value}, given)
    return NOTHING


def _state(name: str, last: str, on: AbstractValue, given: list[AbstractValue]) -> AbstractValue | None:
    """What a model is saved as, and what a file of such states gives."""
    if last == "state_dict" and (models := on.of("ddp", "module", "new", "object", "optimizer")):
        return AbstractValue(frozenset(f"state:{model}" for model in models))
    if name == "torch.load" and given:
        path = {f"loaded:{given[0].symbol.replace(' ', '_')}"} if given[0].symbol else set()
        return AbstractValue(carried(given[0]) | path)
    return None


def _run_given(
    run: Run, node: ast.Call, name: str, given: list[AbstractValue], named: Mapping[str, AbstractValue]
) -> None:
    """Functions that are handed to something else to be run: `mp.spawn(work, ...)`, `launch(main, ...)`."""
    if name in ("map", "filter", "sorted", "DataLoader", "partial", "functools.partial") or made.LOADERS.search(
        name
    ):
        return
    for cls in [tag for target in given[:1] for tag in sorted(target.tags) if tag.startswith("class:")]:
        if vocabulary.SPAWNS.search(name):  # `mp.spawn(Trainer, args=(...))` builds one in each process
            more = named.get("args", given[1] if len(given) > 1 else NOTHING)
            run.build(cls[6:], node, [AbstractValue(frozenset({RANK, LOCAL})), *(more.items or ())], {})
    for at, value in enumerate([*given, *named.values()]):
        for tag in sorted(value.tags):
            full = tag.removeprefix("fn:")
            if (
                full == tag
                or full not in run.functions
                or (at and not vocabulary.SPAWNS.search(name) and "target" not in named)
            ):
                continue
            rest: list[AbstractValue] = []
            if vocabulary.SPAWNS.search(name):
                more = named.get("args", given[1] if len(given) > 1 else NOTHING)
                rest = [AbstractValue(frozenset({RANK, LOCAL})), *(more.items or ())]
            elif "args" in named:
                rest = [*(named["args"].items or ())]
            statement = run.statement
            run.call(full, rest, {})
            run.statement = statement


def _parameters(on: AbstractValue) -> AbstractValue:
    """Those of a model, or of all models that it may be."""
    objects = [thing for thing in on.objects if not thing.startswith("options")]
    tags = {f"params:{thing}" for thing in objects}
    inner = {f"params:{tag.removeprefix('in:')}" for tag in on.tags if tag.startswith("in:")}
    tags |= inner | ({"part"} if inner else set())
    return AbstractValue(frozenset(tags) | {t for t in on.tags if t.startswith("params:")})
