"""Ranks whose environment tells no rank: torch.multiprocessing.spawn, Ray's workers, processes of an own launcher.

A part of the streamed probe: standard library only, Python 3.6. They have one thing in common: each is connected
to torch's store, and the process that has it is connected to itself. That one is rank 0. The numbers of others are
told by a Flight Recorder's pipe that a rank holds open, or by the order in which one parent started them, where it
begins with rank 0; else by nothing. Ranks on another host than the store's are handed over as they are.
"""

import re
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from ncclcheck.probes.live.machine import connections
from ncclcheck.probes.live.machine.proc import Proc, fields

Raw = Dict[str, Any]
Tables = Dict[str, Dict[int, Raw]]

ADRIFT = "?"  # the job of a process whose store is on another host
_MOST_ADRIFT, _MOST_FAR = 64, 32  # processes without a known job, and far ends of each: chosen, those of one host
_PIPE = re.compile(r"_?(\d{1,6})\.pipe$")
_HANDLE = re.compile(r"\bpipe_handle=(\d{1,9})")  # of multiprocessing.spawn: it grows with each process started
# From one started process to the next: 2 or 3 with Python 3.8 to 3.13, as 6, 8, 11, 13; with one between 4 or 5.
_MOST_STEP = 3
_LOOPBACK = ("127.", "[::1]")
POOLS = ("raylet",)  # launchers that begin their processes before anybody has a rank


class _Tie(NamedTuple):
    """One connection of a process."""

    near: str
    far: str
    inode: int


class _Store:
    """A store: its address, its owner, local connections to it with their holders, the number of other hosts."""

    def __init__(self, end: str, owner: Raw, clients: Dict[int, List[Raw]], remote: int) -> None:
        self.end, self.owner, self.clients, self.remote = end, owner, clients, remote
        self.members = _tops(clients)


def join(proc: Proc, ranked: List[Raw], loose: List[Raw], make: Callable[[str], Raw]) -> None:
    """Add to the processes with a rank those of `loose`, which use torch and have none, where they are a job.

    make: what is known of any other process, such as one that a rank has started.
    """
    loose = [process for process in loose if not _is_agent(process, ranked)]
    using = [process for process in [*ranked, *loose] if process["libraries"]]
    if not loose and len({process["rank"] for process in using}) == len(using):
        return
    tables: Tables = {}
    ties = {process["pid"]: list(_ties(proc, process, tables)) for process in using}
    taken: Set[int] = set()
    for store in sorted(
        _stores(proc, using, ties), key=lambda store: (-len(store.members) - store.remote, store.end)
    ):
        pids = {member["pid"] for member in store.members}
        if pids & taken or len(pids) + store.remote < 2:
            continue
        taken |= pids
        if not _are_ranked(store.members):
            _add(proc, ranked, loose, store, make)
    known = {process["pid"] for process in ranked}
    adrift = [process for process in loose if process["pid"] not in known]
    for at, candidate in enumerate(_tops({at: [process] for at, process in enumerate(adrift)})):
        far = [
            tie.far for tie in sorted(ties[candidate["pid"]], key=lambda tie: tie.inode) if not _is_here(tie.far)
        ]
        if far and at < _MOST_ADRIFT:
            ranked.append(dict(candidate, job=ADRIFT, rank=at, rank_by="nothing", stores=far[:_MOST_FAR]))


def _is_agent(raw: Raw, ranks: List[Raw]) -> bool:
    """Whether it starts ranks, and has none: torchrun, or a program that uses torch's elastic agent."""
    if raw["agent"]:
        return True
    return not raw["elastic"] and any(child["parent"] == raw["pid"] and child["elastic"] for child in ranks)


def _is_here(end: str) -> bool:
    return end.startswith(_LOOPBACK)


def _ties(proc: Proc, raw: Raw, tables: Tables) -> Iterator[_Tie]:
    """Its connections."""
    for link in connections.established(proc, str(raw["pid"]), tables):
        if "ends" in link:
            family, near, far = link["ends"]
            yield _Tie(
                connections.address(family, near, link["from"]),
                connections.address(family, far, link["to"]),
                link["inode"],
            )


def _stores(proc: Proc, using: List[Raw], ties: Dict[int, List[_Tie]]) -> Iterator[_Store]:
    """Each end of a connection of a process to itself to which others are connected too."""
    spaces = {user["pid"]: proc.link(str(user["pid"]), "ns", "net") for user in using}
    seen: Set[Tuple[str, str]] = set()
    for owner in _tops({at: [user] for at, user in enumerate(using)}):
        own = {(tie.near, tie.far) for tie in ties[owner["pid"]]}
        for end in sorted({near for near, far in own if (far, near) in own}):
            space = spaces[owner["pid"]]
            if (space, end) in seen:
                continue
            seen.add((space, end))
            clients: Dict[int, List[Raw]] = {}
            for process in using:
                for tie in ties[process["pid"]]:
                    if tie.far == end and (spaces[process["pid"]] == space or not _is_here(end)):
                        clients.setdefault(tie.inode, []).append(process)
            here = {tie.near for all_ in ties.values() for tie in all_}
            remote = {far.rpartition(":")[0] for near, far in own if near == end and far not in here}
            yield _Store(end, owner, clients, len(remote))


def _tops(holders_of: Dict[int, List[Raw]]) -> List[Raw]:
    """Of those that hold the same connection, which a fork copies, the one that the others come from."""
    tops: Dict[int, Raw] = {}
    for holders in holders_of.values():
        pids = {holder["pid"] for holder in holders}
        top = min(holders, key=lambda holder: (holder["orphan"], holder["parent"] in pids, holder["pid"]))
        tops[top["pid"]] = top
    return [tops[pid] for pid in sorted(tops)]


def _are_ranked(members: List[Raw]) -> bool:
    """Whether the environment tells each of them apart; an agent without a rank may have the store."""
    ranks = [member["rank"] for member in members if member["rank"] is not None]
    parents = {member["parent"] for member in members if member["rank"] is not None}
    without = [member for member in members if member["rank"] is None and member["pid"] not in parents]
    return bool(ranks) and len(set(ranks)) == len(ranks) and not without


def _add(proc: Proc, processes: List[Raw], loose: List[Raw], store: _Store, make: Callable[[str], Raw]) -> None:
    """The job of one store: its ranks, and all that these have started, which may have had a rank of its own."""
    for process in store.members:  # a worker of a loader that spawn has started has no connection to a store
        process["orphan"] = process["orphan"] and "spawn_main" not in process["command"]
    members = [*store.members, *_ended(proc, store.members, make)]
    numbers = _numbers(proc, store.owner, members)
    world = max([len(members) + store.remote, *(rank + 1 for rank, _ in numbers.values())])
    free = (rank for rank in range(world) if rank not in {taken for taken, _ in numbers.values()})
    here, owner = _is_here(store.end), store.owner
    job = {
        "job": store.end,
        "scope": " ".join(filter(None, [owner["slurm"], owner["place"] if here else ""])),
        "world": world,
        "expected": [] if store.remote else [0, world],
        "port": int(store.end.rpartition(":")[2]),
        "stores": [store.end],
    }
    ranks = {}
    for process in members:
        rank, by = numbers.get(process["pid"]) or (next(free), "nothing")
        ranks[process["pid"]] = dict(job, rank=rank, rank_by=by)
    known = {member["pid"]: member for member in [*members, *loose, *processes]}
    there = {member["pid"] for member in processes}
    for pid, numbered in _with_children(proc, ranks).items():
        process = known.get(pid) or make(str(pid))
        process.update(numbered)
        if pid not in there:
            processes.append(process)


def _with_children(proc: Proc, ranks: Dict[int, Raw]) -> Dict[int, Raw]:
    """The same for all that these processes have started."""
    parents = {pid: _parent(proc, pid) for pid in (int(name) for name in proc.names() if name.isdigit())}
    placed = dict(ranks)
    for pid in parents:
        above = pid
        for _ in range(16):
            if above in ranks:
                placed[pid] = ranks[above]
                break
            above = parents.get(above, 0)
    return placed


def _parent(proc: Proc, pid: int) -> int:
    parent = fields(proc.text(str(pid), "stat"))[1]
    return int(parent) if parent else 0


def _ended(proc: Proc, members: List[Raw], make: Callable[[str], Raw]) -> List[Raw]:
    """Processes of the same parent that have ended, and that it has not asked after yet."""
    names = {
        member["parent"]: _name(proc, str(member["pid"])) for member in members if member["launcher"] not in POOLS
    }
    children = []
    for name in proc.names():
        stat = proc.text(name, "stat") if name.isdigit() else ""
        if fields(stat)[0] != "Z" or int(fields(stat)[1]) <= 1:
            continue
        if names.get(int(fields(stat)[1])) == _name(proc, name):
            children.append(dict(make(name), libraries=["torch"]))
    return children


def _name(proc: Proc, pid: str) -> str:
    """The name of its main thread: torch renames that to pt_main_thread."""
    return proc.text(pid, "stat").partition("(")[2].rpartition(")")[0]


def _numbers(proc: Proc, owner: Raw, members: List[Raw]) -> Dict[int, Tuple[int, str]]:
    """pid -> the rank, and by what it is known."""
    ranks = [member["rank"] for member in members]
    numbers = {member["pid"]: (member["rank"], "environment") for member in members
               if member["rank"] is not None and ranks.count(member["rank"]) == 1}  # fmt: skip
    marks = [(_by_pipe(proc, member["pid"]), member["pid"], "pipe") for member in members]
    marks += [(0, owner["pid"], "store"), *_by_order(proc, owner, members)]
    for rank, pid, by in marks:
        if rank is not None and pid not in numbers and rank not in {number for number, _ in numbers.values()}:
            numbers[pid] = (rank, by)
    return numbers


def _by_pipe(proc: Proc, pid: int) -> Optional[int]:
    """By the pipe of its Flight Recorder, which has the rank in its name, and which it holds open."""
    matches = [_PIPE.search(proc.link(str(pid), "fd", name)) for name in proc.names(str(pid), "fd")]
    sizes = {int(match.group(1)) for match in matches if match}
    return sizes.pop() if len(sizes) == 1 else None


def _by_order(proc: Proc, owner: Raw, members: List[Raw]) -> List[Tuple[Optional[int], int, str]]:
    """By the order in which one parent started them, which begins with the owner of the store, or is after it.

    One that has ended and was asked after leaves a gap that may not be seen. Where multiprocessing.spawn started
    them, its numbers show it.
    """
    if owner["launcher"] in POOLS:
        return []
    started = [member for member in members if member["parent"] == owner["parent"] and not member["orphan"]]
    first = 0
    if len(started) == 1:
        started, first = [member for member in members if member["parent"] == owner["pid"]], 1
    started.sort(
        key=lambda process: (int(fields(proc.text(str(process["pid"]), "stat"))[19] or 0), process["pid"])
    )
    if not started or (first == 0 and started[0] is not owner):
        return []
    handles = [_HANDLE.search(process["command"]) for process in started]
    numbers = [(at, int(match.group(1))) for at, match in enumerate(handles) if match]
    for (here, before), (there, after) in zip(numbers, numbers[1:]):  # noqa: B905, RUF007 - Python 3.6
        if (after - before) / (there - here) > _MOST_STEP:
            return []
    return [(first + at, process["pid"], "order") for at, process in enumerate(started)]
