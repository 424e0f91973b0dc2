"""What a training script says, read as text: its calls, and under which conditions they stand."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Count

# rank: holds on some ranks only. group: asks whether there are several ranks at all. main: `__name__`.
# own: asks for what was made of one rank's samples (in the trace only).
GuardKind = Literal["rank", "group", "main", "own", "other"]
# rest: what follows an `if` that leaves (return, continue, break, exit); it stands there where the `if` does not
# hold.
Branch = Literal["if", "else", "rest"]


class Guard(Struct, frozen=True, kw_only=True):
    """A condition under which a call stands. line: where it is written; two guards of one line are one `if`.

    file: in the trace, where a condition may be that of a caller. holds, fails: there, of four ranks on two nodes,
    those on which it may hold and those on which it may not; empty where it is not known to tell ranks apart.
    """

    kind: GuardKind
    branch: Branch
    text: str
    line: Count
    file: str = ""
    holds: tuple[int, ...] = ()
    fails: tuple[int, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of four ranks on two nodes those that may come to what stands under it; empty where it is not known."""
        return self.holds if self.branch == "if" else self.fails

    @property
    def tells_apart(self) -> bool:
        """Whether it is known on which of the four ranks it holds."""
        return bool(self.holds) and not {*self.holds} & {*self.fails}


class Loop(Struct, frozen=True, kw_only=True):
    """A loop around a call: `for TARGET in OVER`; a `while` has only `over`.

    of: in the trace, what is known of OVER. file: there, where a loop may be that of a caller.
    """

    line: Count
    target: str = ""
    over: str = ""
    of: str = ""
    file: str = ""


class Call(Struct, frozen=True, kw_only=True):
    """A call, or `os.environ[...]` (`os.environ.get`, `os.environ.set`).

    name: by what it was imported as ("torch.distributed.barrier"), FILE:FUNCTION of the script's own, ".item" for
    a method of what is not known. on: what a method is called on. target: the variable that holds the result.
    arguments: as written, by position ("0") or keyword; "*" where more are given in a list. by_rank: arguments
    that are others on each rank. wrapped: what is called is a model inside DistributedDataParallel,
    and stands in `on`. shared: arguments that are such models. inner: it is an argument of another call, or a part
    of a sum. device: of `.to(device)`, where that variable holds one device only. first, last: lines of the
    statement. `yield` stands for one in two loops, `break` and `continue` for one where a number is none.
    values: in the trace, what is known of an argument, of "on" and of a "path": tags, with a blank between.
    each: there, what an argument is on each of four ranks, two on each of two nodes, as Python writes it.
    """

    name: str
    file: str
    line: Count
    first: Count = 0
    last: Count = 0
    on: str = ""
    target: str = ""
    function: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    by_rank: list[str] = field(default_factory=list)
    wrapped: bool = False
    shared: list[str] = field(default_factory=list)
    inner: bool = False
    device: str = ""
    values: dict[str, str] = field(default_factory=dict)
    each: dict[str, tuple[str, ...]] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)

    @property
    def place(self) -> str:
        """FILE:LINE."""
        return f"{self.file}:{self.line}"


class ScriptFile(Struct, frozen=True, kw_only=True):
    """One file. named: on the command line, not only imported. problem: why it was not read.

    lines: those around calls that are looked at, by number. words: names and short strings in it. modules: what it
    imports. unread: samplers that nothing is given. factories: functions that make its dataset, without arguments.
    branching: models whose forward leaves layers out under a condition. in_memory: datasets with all samples.
    ends: of its own lines ("") and of functions the last line and the indentation, where more could follow.
    cut: the last line, where no newline ends it; else 0.
    """

    name: str
    named: bool = False
    problem: str = ""
    lines: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    factories: list[str] = field(default_factory=list)
    branching: list[str] = field(default_factory=list)
    in_memory: list[str] = field(default_factory=list)
    ends: dict[str, tuple[Count, Count]] = field(default_factory=dict)
    cut: Count = 0


class Script(Struct, frozen=True, kw_only=True, dict=True):  # its __dict__: what reports derive from it
    """A script, what it imports from its own folder, and the arguments that it is started with.

    nodes: of the job that it is for; None where this is not known. trace: what one rank does, in order, from the
    first line of the named files, with the conditions and loops of all callers.
    """

    files: list[ScriptFile] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    nodes: Count | None = None
    trace: list[Call] = field(default_factory=list)
