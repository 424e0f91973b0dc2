"""Does a condition hold on some ranks only?"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection

from ncclcheck.probes.facts.script import GuardKind
from ncclcheck.probes.script.words import text

# rank, args.local_rank, ddp_rank, get_rank(), os.environ["RANK"], $SLURM_PROCID
_RANK = re.compile(
    r"(?:global|local|world|ddp|dist|node|machine|host|my|data_parallel|dp|g|l|mpi)?_?rank(?:_?id)?|get_(?:global_|local_|world_)?rank"
    r"|SLURM_PROCID|SLURM_LOCALID|process_index|local_process_index",
    re.IGNORECASE,
)
# is_main_process(), master_process, is_rank_zero, rank0
_FIRST = re.compile(
    r"_?(?:is|am)_?(?:the_)?(?:main|master|first|root|rank_?zero|rank_?0|global_zero|world_process_zero|primary|chief"
    r"|(?:local|global|ddp|dist)_(?:main|master|zero|rank_?zero))(?:_?(?:process|rank|proc|node|worker|worker_process))?"
    r"|(?:main|master|primary)_(?:process|proc|rank)|rank_?(?:zero|0)(?:_only)?",
    re.IGNORECASE,
)
# is_initialized(), args.distributed, world_size > 1, use_ddp
_GROUP = re.compile(
    r"(?:is_)?(?:dist|distributed|ddp|torch_distributed|multi_?gpu|multi_?process\w*|parallel)"
    r"|(?:is_|use_|using_|has_|enable_|run_)*(?:dist|distributed|ddp|multi_gpu)\w*|is_(?:initialized|available)"
    r"|get_world_size|(?:ddp_)?world_size|num_(?:gpus|processes|nodes)|n_?gpus?|ngpus_per_node|WORLD_SIZE|device_count",
    re.IGNORECASE,
)

# Options that say whether there are several processes; `multiprocessing_distributed` says only who starts them.
_SEVERAL = re.compile(
    r"(?:is_|use_)?(?:distributed|ddp|dist|parallel|multi_?gpu)(?:_run|_training)?|is_dist_avail_and_initialized"
)
# The number of the process's GPU, as the ImageNet example has it: one of several ranks has one.
_NO_GPU = re.compile(r"gpu(?:_?id)?")
_SIZE = re.compile(r"(?:get_|ddp_)?world_size|WORLD_SIZE")

_ONE_RANK = re.compile(
    r"(?:on_)?(?:rank_?zero|rank_?0|main_process|master|local_main_process)_?(?:only|process)?"
    r"|on_(?:local_)?main_process|master_only|main_only"
)


def kind(test: ast.expr, ranks: Collection[str], *, holds: bool = True) -> GuardKind:
    """What a condition depends on. ranks: variables that were given such a condition, or are a rank.

    holds: where it holds what stands under it is done; `a or rank != 0` tells ranks apart where it does not.
    """
    if isinstance(test, ast.Compare) and any(
        isinstance(side, ast.Name) and side.id == "__name__" for side in _sides(test)
    ):
        return "main"
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return kind(test.operand, ranks, holds=not holds)
    if isinstance(test, ast.BoolOp):
        every = isinstance(test.op, ast.And) or not holds
        return _of_several([kind(node, ranks, holds=holds) for node in test.values], every)
    if isinstance(test, ast.Compare):
        return _of_comparison(test, ranks)
    if isinstance(test, ast.Call):
        test = test.func
    name = _name(test)
    if name in ranks or _FIRST.fullmatch(name) or _RANK.fullmatch(name):
        return "rank"
    return "group" if _GROUP.fullmatch(name) else "other"


def _of_several(kinds: list[GuardKind], every: bool) -> GuardKind:
    """`rank == 0 and ready` differs by rank as soon as it holds anywhere; `rank == 0 or always` need not."""
    if "rank" in kinds and (every or "other" not in kinds):
        return "rank"
    return "group" if set(kinds) == {"group"} else "other"


def _of_comparison(test: ast.Compare, ranks: Collection[str]) -> GuardKind:
    """With -1 or None the rank says whether there is a group; `rank >= 0` holds on all of them."""
    names = [name for side in _sides(test) if (name := _named(side))]
    if any(name in ranks or _RANK.fullmatch(name) for name in names):
        values = [_value(side) for side in _sides(test)]
        if None in values or any(isinstance(value, int) and value < 0 for value in values):
            return "group"
        if isinstance(test.ops[0], ast.GtE) and values[-1] == 0:
            return "group"
        if isinstance(test.ops[0], ast.Lt | ast.LtE) and any(_GROUP.fullmatch(name) for name in names):
            return "group"
        return "rank"
    return "group" if any(_GROUP.fullmatch(name) for name in names) else "other"


_AGREED = re.compile(r"reduc|all_|mean|global|sync", re.IGNORECASE)


def says_agreed(test: str) -> bool:
    """Whether a condition's words tell of a number that ranks have made together."""
    return bool(_AGREED.search(test))


def single(test: ast.expr, holds: bool) -> bool:
    """Whether a branch is taken in one process only, or never. holds: the branch where the condition does."""
    if isinstance(test, ast.Constant):
        return bool(test.value) != holds  # `if 0:`
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return single(test.operand, not holds)
    if isinstance(test, ast.BoolOp):
        each = [single(node, holds) for node in test.values]
        return any(each) if isinstance(test.op, ast.And) == holds else all(each)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        if _NO_GPU.fullmatch(_name(test.left)) and _value(test.comparators[0]) is None:
            return isinstance(test.ops[0], ast.Is | ast.Eq) == holds
        return _single_by_number(_named(test.left), test.ops[0], _value(test.comparators[0]), holds)
    name = _name(test.func) if isinstance(test, ast.Call) else _name(test)
    return not holds and bool(_SEVERAL.fullmatch(name))


def _single_by_number(name: str, operator: ast.cmpop, number: object, holds: bool) -> bool:
    """`local_rank == -1`: there is no group; `world_size > 1` does not hold: it has one process."""
    least = -1 if _is_rank(name) else 1 if _SIZE.fullmatch(name) else None
    if least is None or number not in (least, least + 1):
        return False
    if number == least:
        return isinstance(operator, ast.Eq | ast.LtE) if holds else isinstance(operator, ast.NotEq | ast.Gt)
    return isinstance(operator, ast.Lt) if holds else isinstance(operator, ast.GtE)


def _sides(test: ast.Compare) -> list[ast.expr]:
    return [test.left, *test.comparators]


def _value(side: ast.expr) -> object:
    """A constant; a name where it is none. A list that holds 0 beside -1 is as good as 0."""
    if isinstance(side, ast.UnaryOp) and isinstance(side.op, ast.USub) and isinstance(side.operand, ast.Constant):
        number = side.operand.value
        return -number if isinstance(number, int) else "?"
    return side.value if isinstance(side, ast.Constant) else "?"


def _named(side: ast.expr) -> str:
    """The name in `rank`, `args.rank`, `get_rank()`, `int(os.environ["RANK"])`, `rank % 8`."""
    if isinstance(side, ast.BinOp):
        return _named(side.left)
    if isinstance(side, ast.Subscript) and isinstance(side.slice, ast.Constant):
        return str(side.slice.value)
    if isinstance(side, ast.Call):
        if _name(side.func) in ("int", "str", "get", "getenv") and side.args:
            first = side.args[0]
            return str(first.value) if isinstance(first, ast.Constant) else _named(first)
        return _name(side.func)
    return _name(side)


def _name(node: ast.expr) -> str:
    """The last name of a chain."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def of_one_rank(name: str) -> bool:
    """A decorator by which a function does its work on one rank only."""
    return bool(_ONE_RANK.fullmatch(name))


def by_rank(node: ast.AST, known: Collection[str]) -> bool:
    """An expression in which a rank stands, or a variable that was made of one."""
    waiting = [node]
    while waiting:
        inner = waiting.pop()
        kind = type(inner)
        if kind is ast.Name or kind is ast.Attribute:
            if _is_rank(_name(inner)) or (known and text(inner) in known):  # type: ignore[arg-type]
                return True
        elif kind is ast.Constant and getattr(inner, "value", None) in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
            return True
        for value in vars(inner).values():
            if type(value) is list:
                waiting += [part for part in value if isinstance(part, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)
    return False


@functools.cache
def _is_rank(name: str) -> bool:
    return bool(_RANK.fullmatch(name))
