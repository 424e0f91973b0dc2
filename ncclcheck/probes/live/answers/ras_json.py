"""RAS's STATUS as JSON (2.28.7 and later) -> the same facts as of its text.

By the format as NVIDIA documents it, 2.28.7 to 2.32.3, and by answers of 2.28.9, built from its sources; the
wheels name a proprietary licence and were not run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from ncclcheck.probes.facts.live.ras import (
    RasCommunicator,
    RasGroup,
    RasLaunched,
    RasLook,
    RasRank,
    RasStatus,
)
from ncclcheck.probes.live.answers.ras_text import NoStatus

_Whole = Annotated[int, Meta(ge=0, le=2**60)]
_Number = Annotated[int, Meta(ge=-1, le=2**31)]
_Text = Annotated[str, Meta(max_length=253)]
_IN_PROGRESS = 7  # ncclInProgress. Source: nccl.h
# 2.28.9 leaves out a comma in `missing_ranks` (found by ray-project/ray#64928).
_LACKS_COMMA = re.compile(r'(\}|\d|"|true|false)(\s*\n\s*)("\w+"\s*:|\{)')


class _RasState(Struct, kw_only=True):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    unresponsive: bool | None = None
    considered_dead: bool = False


class _RasRankForm(Struct, kw_only=True):
    rank: Annotated[int, Meta(ge=0, le=1_000_000)]
    host: _Text = ""
    pid: _Number = -1
    cuda_dev: _Number = -1
    nvml_dev: _Number = -1
    status: _RasState = field(default_factory=_RasState)
    collective_counts: Annotated[dict[_Text, _Whole], Meta(max_length=64)] = field(default_factory=dict)


class _RasCommunicatorForm(Struct, kw_only=True):
    hash: _Text
    size: _Whole = 0
    ranks: list[_RasRankForm] = field(default_factory=list)
    missing_ranks: list[_RasRankForm] = field(default_factory=list)


class _Collection(Struct, kw_only=True):
    timeouts_count: _Whole = 0


class _RasAnswer(Struct, kw_only=True):
    nccl_version: _Text
    communicators: list[_RasCommunicatorForm] = field(default_factory=list)
    ras: _Collection = field(default_factory=_Collection)


def read(text: str) -> RasLook:
    """One answer. Raises NoStatus where it is none, or a field is not what it should be."""
    try:
        answer = msgspec.json.decode(text, type=_RasAnswer)
    except msgspec.MsgspecError:
        answer = _repaired(text)
    missing = [
        missing_rank
        for comm in answer.communicators
        for missing_rank in comm.missing_ranks
        if not _has_left(missing_rank)
    ]
    return RasLook(
        version=answer.nccl_version,
        form="json",
        groups=[_group(comm) for comm in answer.communicators],
        troubled=[made for comm in answer.communicators if (made := _troubled(comm))],
        processes=sorted({(rank.host, rank.pid) for rank in missing if rank.pid > 0}),
        dead=len({(rank.host, rank.pid) for rank in missing if rank.status.considered_dead}),
        timeouts=answer.ras.timeouts_count,
        launches=sum(sum(rank.collective_counts.values()) for comm in answer.communicators for rank in comm.ranks),
    )


def _repaired(text: str) -> _RasAnswer:
    try:
        return msgspec.json.decode(_LACKS_COMMA.sub(r"\1,\2\3", text), type=_RasAnswer)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NoStatus(f"no status of RAS: {str(error)[:120]}") from None


def _has_left(rank: _RasRankForm) -> bool:
    """Whether its process answers and is no member, which the text calls NOCOMM (src/ras/client_support.cc)."""
    return rank.status.unresponsive is False and not rank.status.considered_dead


def _states(comm: _RasCommunicatorForm) -> list[tuple[str | int, list[_RasRankForm]]]:
    """Status -> the ranks that have it, most ranks first."""
    gone = [(missing_rank, "NOCOMM") for missing_rank in comm.missing_ranks if _has_left(missing_rank)]
    return _alike([*((rank, _state(rank)) for rank in comm.ranks), *gone])


def _state(rank: _RasRankForm) -> str:
    state = rank.status
    if state.abort_flag:
        return "ABORT"
    if state.finalize_called or state.destroy_flag:
        return "FINALIZE"
    if state.init_state:
        return "INIT" if state.init_state == _IN_PROGRESS else f"error {state.init_state}"
    return f"error {state.async_error}" if state.async_error not in (0, _IN_PROGRESS) else "RUNNING"


def _named(rank: _RasRankForm) -> RasRank:
    gpu = "" if rank.cuda_dev < 0 else str(rank.cuda_dev)
    if gpu and rank.nvml_dev not in (-1, rank.cuda_dev):
        gpu += f" (NVML {rank.nvml_dev})"
    return RasRank(rank=rank.rank, host="" if rank.host == "unknown" else rank.host, pid=max(rank.pid, 0), gpu=gpu)


def _alike(ranks: Sequence[tuple[_RasRankForm, str | int]]) -> list[tuple[str | int, list[_RasRankForm]]]:
    """What they have -> who has it, most ranks first."""
    by_value: dict[str | int, list[_RasRankForm]] = defaultdict(list)
    for rank, value in ranks:
        by_value[value].append(rank)
    return sorted(by_value.items(), key=lambda item: -len(item[1]))


def _group(comm: _RasCommunicatorForm) -> RasGroup:
    states = _states(comm)
    differ = len(states) > 1 or any(len(shares) > 1 for _, shares in _counts(comm))
    errors = [
        *(["INCOMPLETE"] if any(not _has_left(missing_rank) for missing_rank in comm.missing_ranks) else []),
        *(["ERROR"] if any(str(state).startswith("error") for state, _ in states) else []),
        *(["MISMATCH"] if differ else []),
    ]
    return RasGroup(
        communicators=1,
        ranks=comm.size or len(comm.ranks) + len(comm.missing_ranks),
        answered=len(comm.ranks),
        status=str(states[0][0]) if states else "NOCOMM",
        errors=errors,
    )


def _counts(comm: _RasCommunicatorForm) -> list[tuple[str, list[tuple[str | int, list[_RasRankForm]]]]]:
    ops = sorted({op for rank in comm.ranks for op in rank.collective_counts})
    return [(op, _alike([(rank, rank.collective_counts.get(op, 0)) for rank in comm.ranks])) for op in ops]


def _troubled(comm: _RasCommunicatorForm) -> RasCommunicator | None:
    states = _states(comm)
    launched = [
        RasLaunched(op=op, launched=int(value), count=len(sharers), ranks=_few(sharers, len(comm.ranks)))
        for op, shares in _counts(comm)
        if len(shares) > 1
        for value, sharers in shares
    ]
    statuses = [
        RasStatus(
            status=str(state), count=len(sharers), ranks=_few(sharers, len(comm.ranks) + len(comm.missing_ranks))
        )
        for state, sharers in states
    ]
    missing = [_named(missing_rank) for missing_rank in comm.missing_ranks if not _has_left(missing_rank)]
    if (
        not launched
        and not missing
        and len(statuses) < 2
        and not any("error" in status.status for status in statuses)
    ):
        return None
    return RasCommunicator(
        hash=comm.hash.removeprefix("0x").rjust(16, "0")[-16:],
        launched=launched,
        statuses=statuses if len(statuses) > 1 or "error" in statuses[0].status else [],
        missing=missing,
    )


def _few(members: list[_RasRankForm], of: int) -> list[RasRank]:
    """Those that are fewer than half are named, as the text names them; the rest is the rule."""
    return [_named(rank) for rank in members] if 2 * len(members) < of else []
