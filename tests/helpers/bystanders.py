"""What those ranks print that have no line in a test log: their start-up, and how they suffer from another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.helpers.logcases import Case, Line


class Place(NamedTuple):
    """Where a rank runs: its host, process, number on that host, and the number of the host."""

    host: str
    pid: int
    local: int
    node: int


def beginning(case: Case, rank: int, places: dict[int, Place]) -> Iterator[str]:
    """Start-up in the wording of the version, as far as the lines show that the ranks came."""
    version, place = _version(case), places[rank]
    near = sorted(case.lines, key=lambda line: _distance(case, rank, line[0], places))
    start = f"{place.host}:{place.pid}:{place.pid} [{place.local}] NCCL INFO"
    then = f"{place.host}:{place.pid}:{place.pid + 61} [{place.local}] NCCL INFO"
    bus = f"{0x1B + 0x22 * place.local % 0xE0:x}000"
    about = f"comm 0x{0x55D0A1B2C000 + 0x1340 * rank:x} rank {rank} nranks {case.world} cudaDev {place.local}"
    if version >= (2, 21):
        about = f"{f'[Rank {rank}] ncclCommInitRankConfig' if version >= (2, 29) else 'ncclCommInitRank'} {about}"
    if used := _told(near, r"Bootstrap ?: Using (\S+):(\d+\.\d+\.\d+)\.(\d+)<0>"):
        same = _distance(case, rank, next(owner for owner, text in near if used[0] in text), places) == 0
        last = used[3] if same else (int(used[3]) + 60 + place.node) % 254 + 1
        yield f"{start} Bootstrap{':' if version >= (2, 24) else ' :'} Using {used[1]}:{used[2]}.{last}<0>"
    if driver := _told(near, r"NCCL INFO (cudaDriverVersion \d+)"):
        yield f"{start} {driver[1]}"
    if network := _told(near, r"NCCL INFO Using network (.+)"):
        if network[1] in ("IB", "Socket"):
            yield f"{then} {_no_plugin(version)}"
        yield f"{then} Using network {network[1]}"
    if started := _told(near, r"rank \d+ nranks \d+ .*commId (0x\w+) - Init START"):
        yield f"{then} {about} nvmlDev {place.local} busId {bus} commId {started[1]} - Init START"
    if _told(near, r"Connected all rings"):
        yield f"{then} Connected all rings"
        yield f"{then} Connected all trees"
    if done := _told(near, r"rank \d+ nranks \d+ .*?( commId 0x\w+)? - Init COMPLETE"):
        yield f"{then} {about} busId {bus}{done[1] or ''} - Init COMPLETE"


def _version(case: Case) -> tuple[int, ...]:
    return tuple(int(part) for part in case.nccl.split(".")[:2])


def _distance(case: Case, rank: int, owner: int | None, places: dict[int, Place]) -> int:
    """How far the words of one rank are from true of another: not on one host, most for the rank at fault."""
    if owner is None:
        return 3
    return 0 if places[owner].node == places[rank].node else 1 + (owner == case.rank)


def _told(lines: list[Line], pattern: str) -> re.Match[str] | None:
    return next((match for _, text in lines if (match := re.search(pattern, text))), None)


def _no_plugin(version: tuple[int, ...]) -> str:
    cannot = "libnccl-net.so: cannot open shared object file: No such file or directory"
    if version < (2, 17):
        return "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation"
    if version < (2, 19):
        return f"NET/Plugin : Plugin load (libnccl-net.so) returned 2 : {cannot}"
    if version < (2, 21):
        return f"NET/Plugin : dlerror={cannot} No plugin found (libnccl-net.so), using internal implementation"
    return "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin."


def waited(case: Case, rank: int, chance: Random) -> Iterator[str]:
    """The time-out that a rank which waits in vain prints too, retold from one of the case."""
    waiting = [(owner, text) for owner, text in case.lines if owner not in (None, case.rank)]
    model = next((owner for owner, text in waiting if "operation timeout" in text), None)
    for owner, text in waiting:
        if owner == model is not None and re.search(rf"[Rr]ank ?{owner}\b", text) and "NCCL INFO" not in text:
            retold = re.sub(rf"([Rr]ank ?){owner}\b", rf"\g<1>{rank}", text)
            yield re.sub(r"ran for (\d+)", lambda ran: f"ran for {int(ran[1]) + chance.randint(0, 90)}", retold)


def suffered(case: Case, rank: int, places: dict[int, Place], chance: Random) -> Iterator[str]:
    """What a process prints whose peer is gone, and torch after it."""
    version, here = _version(case), places[rank]
    named = _told(list(case.lines), r"closed by remote peer ([^<]+)<")
    gone = case.host or (named[1] if named else places[case.rank or 0].host)
    peer = f"{gone}<{chance.randint(33000, 60999)}>"
    lost = f"{'socketProgress' if version >= (2, 16) else 'Net '}: Connection closed by remote peer {peer}"
    record = f"{here.host}:{here.pid}:{here.pid + 88} [{here.local}]"
    stamp = "[2026-03-04 07:21:16] " if version >= (2, 26) else ""
    code = 6 if version >= (2, 13) else 2
    if any("NCCL INFO" in text or "NCCL WARN" in text for _, text in case.lines):
        yield f"{stamp}{record} misc/socket.cc:{chance.randint(48, 70)} NCCL WARN {lost}"
        yield f"{record} NCCL INFO misc/socket.cc:{chance.randint(400, 820)} -> {code}"
        if chance.random() < 0.5 and version >= (2, 14):
            call = "Socket recv failed while polling for opId=0x7f30a4000b20"
            call = call if case.rank is None else f"Proxy Call to rank {case.rank} failed (Connect)"
            yield f"{stamp}{record} proxy.cc:{chance.randint(1400, 1600)} NCCL WARN {call}"
        yield f"{record} NCCL INFO init.cc:{chance.randint(1150, 1700)} -> {code}"
    if any("Backend" in text or "ProcessGroup" in text for _, text in case.lines):
        mark = f"[rank{rank}]: " if version >= (2, 20) else ""
        place = "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275"
        why = "remote process exited or there was a network error"
        yield f"{mark}torch.distributed.DistBackendError: NCCL error in: {place}, {why}, NCCL version {case.nccl}"
        call = "A call failed possibly due to a network error or a remote process exiting prematurely."
        yield from (f"{mark}ncclRemoteError: {call}", f"{mark}Last error:", f"{mark}{lost}")


def stopped(case: Case, places: dict[int, Place], chance: Random) -> Iterator[str]:
    """What torchrun prints when it ends the others, unless the case has it."""
    if any("SIGTERM" in text or "exitcode" in text for _, text in case.lines):
        return
    rank = chance.randrange(case.world) if case.rank is None else case.rank
    first = places[rank]
    api, agent = "torch/distributed/elastic/multiprocessing/api.py", first.pid - 90
    for other, place in places.items():
        if place.node == first.node and other != rank:
            yield f"W0304 07:21:18.402000 {agent} {api}:897] Sending process {place.pid} closing signal SIGTERM"
    which = f"local_rank: {first.local} (pid: {first.pid})"
    yield f"E0304 07:21:19.118000 {agent} {api}:869] failed (exitcode: 1) {which} of binary: /usr/bin/python3"
    yield "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    yield from ("=" * 60, "train.py FAILED", "-" * 60, "Failures:", "  <NO_OTHER_FAILURES>", "-" * 60)
    yield from ("Root Cause (first observed failure):", "[0]:", "  time      : 2026-03-04_07:21:18")
    yield from (f"  host      : {first.host}", f"  rank      : {rank} (local_rank: {first.local})")
    yield from (f"  exitcode  : 1 (pid: {first.pid})", "  error_file: <N/A>", "=" * 60)
