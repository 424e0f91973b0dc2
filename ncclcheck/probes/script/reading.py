"""Syntax trees -> calls, each with its conditions and loops, in the order in which they are written."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from ncclcheck.probes.facts.guard.collection import without_collection
from ncclcheck.probes.facts.script import Call, Script, ScriptFile
from ncclcheck.probes.script import classes, conditions, devices, factories, living, names, sources, words
from ncclcheck.probes.script.names import ScriptNames
from ncclcheck.probes.script.running import following
from ncclcheck.probes.script.sources import ParsedFile
from ncclcheck.probes.script.walking import LOOKED_AT, Walk, stands_in, wraps
from ncclcheck.probes.script.words import text

_MOST_CALLS = 200_000  # of all files: chosen, bounds time and memory
_AROUND = 3  # lines that a diff shows around a change
_GPU = re.compile(r"(?:local_)?(?:gpu|device|proc(?:ess)?)(?:_?(?:id|idx|index|no|num))?")
_SPELLED = re.compile(
    r"(?:\S*python\S* .*)?-?m? ?torch\.distributed\.launch\b.*"
    r"|(?:ddp|deepspeed|fsdp)\w*find_unused_parameters_true"
)


def read(given: Sequence[str], arguments: Sequence[str], nodes: int | None = None) -> Script:
    """The script and what it imports from its folder. nodes: of the job, where known. Raises sources.NotRead."""
    with without_collection():
        return _read(sources.read(given), arguments, nodes)


def _read(files_read: Sequence[ParsedFile], arguments: Sequence[str], nodes: int | None) -> Script:
    every = {source.name: names.of_source(source) for source in files_read}
    ranks = {name for source in files_read for name in _of_rank(source)} | {*_of_spawned(files_read)}
    files, calls = [], []
    dead = living.dead(files_read, every)
    trace = following.follow(files_read, every, ranks)
    for source in files_read:
        wrapped = _wrapped(source, every)
        made = _made_of_rank(source)
        of_rank = _with_rank(source, made) if _speaks_of_rank(source) else set()
        walk = Walk(every[source.name], every, ranks, made, wrapped, source, of_rank)
        if source.tree is not None:
            walk.devices = devices.of_source(source)
            walk.block(source.tree.body)
        walk.calls += _spelled(source)
        gone = {name for node in dead.get(source.name, []) if (name := getattr(node, "name", ""))}
        calls += [call for call in walk.calls if not _is_gone(call, gone)] if gone else walk.calls
        unused = living.counted(dead.get(source.name, []))
        files.append(_file(source, walk.calls, [call for call in trace if call.file == source.name], unused))
    files += _not_there(files_read)
    return Script(files=files, calls=calls[:_MOST_CALLS], arguments=[*arguments], nodes=nodes, trace=trace)


def _is_gone(call: Call, gone: set[str]) -> bool:
    """Whether it stands in a function that nothing leads to; that which would end the group is told of."""
    inside = call.function.partition(":")[2].partition(".")[0]
    return inside in gone and not call.name.endswith("destroy_process_group")


def _of_rank(source: ParsedFile) -> Iterator[str]:
    """Variables and functions that are such a condition: `master = rank == 0`, `def first(): return rank == 0`."""
    for given in source.of(ast.Assign):
        a_test = isinstance(given.value, ast.Compare | ast.BoolOp | ast.UnaryOp)
        if a_test and conditions.kind(given.value, ()) == "rank":
            yield from (text(target).rpartition(".")[2] for target in given.targets)
    for function in source.of(ast.FunctionDef):
        if isinstance(last := function.body[-1], ast.Return):
            value = last.value
            if isinstance(value, ast.Compare | ast.BoolOp) and conditions.kind(value, ()) == "rank":
                yield function.name


def _of_spawned(files: Sequence[ParsedFile]) -> Iterator[str]:
    """The first parameter of functions that mp.spawn runs, where it is called after a GPU: it is the rank."""
    started = {
        text(call.args[0]).rpartition(".")[2]
        for source in files
        for call in source.of(ast.Call)
        if call.args and text(call.func).endswith("spawn")
    }
    for source in files:
        for function in source.of(ast.FunctionDef):
            given = [parameter.arg for parameter in function.args.args if parameter.arg != "self"]
            if function.name in started and given and _GPU.fullmatch(given[0]):
                yield given[0]


def _spelled(source: ParsedFile) -> Iterator[Call]:
    """Texts that a launcher or a trainer is given: an old launcher, a strategy that looks for unused ones."""
    docstrings = {id(node.value) for node in source.of(ast.Expr) if isinstance(node.value, ast.Constant)}
    for node in source.of(ast.Constant):
        if isinstance(node.value, str) and id(node) not in docstrings and _SPELLED.fullmatch(node.value):
            line = node.lineno
            yield Call(name="text", file=source.name, line=line, first=line, last=line,
                       function=f"{source.name}:", arguments={"0": node.value})  # fmt: skip


def _speaks_of_rank(source: ParsedFile) -> bool:
    return any("rank" in line.lower() or "PROCID" in line for line in source.lines)


def _made_of_rank(source: ParsedFile) -> set[str]:
    """Variables that hold something else on each rank: `path = f"state-{rank}.pt"`."""
    made: set[str] = set()
    if not _speaks_of_rank(source):
        return made
    given = [
        (assign.targets, assign.value)
        for assign in source.of(ast.Assign)
        if not isinstance(assign.value, ast.Constant)
    ]
    for _ in range(2):  # of what was made of a rank, something else is made
        lines = _with_rank(source, made)
        for targets, value in given:
            if stands_in(value, lines) and conditions.by_rank(value, made):
                made |= {text(target) for target in targets}
    return made


def _with_rank(source: ParsedFile, made: Collection[str]) -> set[int]:
    """Numbers of the lines in which a rank, or what was made of one, may stand: most others need no walk."""
    named = "|".join(map(re.escape, sorted({name.rpartition(".")[2] for name in made} - {""})))
    words = re.compile(rf"rank|PROCID|LOCALID|process_index{'|' if named else ''}{named}", re.IGNORECASE)
    return {at for at, line in enumerate(source.lines, 1) if words.search(line)}


def _wrapped(source: ParsedFile, every: Mapping[str, ScriptNames]) -> set[str]:
    """Variables that hold a model inside DistributedDataParallel, somewhere in the file."""
    calls = [
        (assign.targets, assign.value) for assign in source.of(ast.Assign) if isinstance(assign.value, ast.Call)
    ]
    return {
        text(target)
        for targets, value in calls
        for target in targets
        if isinstance(value, ast.Call) and wraps(text(value.func), every[source.name], every)
    }


def _file(source: ParsedFile, calls: Sequence[Call], trace: Sequence[Call], unused: Counter[str]) -> ScriptFile:
    if source.tree is None:
        return ScriptFile(name=source.name, named=source.named, problem=source.problem)
    samplers = {call.target for call in calls if call.name.endswith("DistributedSampler") and not call.inner}
    speaks = source.named or any(call.name == "torch.distributed.init_process_group" for call in calls)
    ends = words.ends(source.tree) if speaks else {}
    return ScriptFile(
        name=source.name,
        named=source.named,
        lines=_lines(source.lines, calls, trace, ends),
        words=words.of_source(source, unused),
        modules=words.modules(source),
        unread=words.never_read(source, samplers - {""}) if samplers else [],
        factories=factories.of_source(source) if source.named else [],
        branching=classes.branching(source),
        in_memory=classes.in_memory(source),
        ends=ends,
        cut=len(source.lines) if source.cut else 0,
    )


def _not_there(read: Sequence[ParsedFile]) -> list[ScriptFile]:
    """Files of the repository's own that are imported, and are not in it."""
    places: dict[str, str] = {}
    for source in read:
        for name, line in source.missing.items():
            places.setdefault(name, f"{source.name}:{line}")
    return [
        ScriptFile(name=name, problem=f"{by} imports it, and there is no such file") for name, by in places.items()
    ]


def _lines(
    lines: Sequence[str], calls: Sequence[Call], trace: Sequence[Call], ends: Mapping[str, tuple[int, int]]
) -> dict[str, str]:
    kept = {at for end, _ in ends.values() for at in range(end - _AROUND, end + _AROUND + 1)}
    kept |= {at for call in trace for at in range(call.line - _AROUND, call.line + _AROUND + 1)}
    kept |= {guard.line for call in trace for guard in call.guards}
    for call in calls:
        if LOOKED_AT.search(call.name) or call.wrapped:
            kept |= {*range(call.first - _AROUND, call.last + _AROUND + 1)}
            kept |= {at for loop in call.loops for at in range(loop.line - _AROUND, loop.line + _AROUND + 2)}
            kept |= {guard.line for guard in call.guards}
    return {str(at): lines[at - 1] for at in sorted(kept) if 1 <= at <= len(lines)}
