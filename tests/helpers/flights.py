"""Dumps of the Flight Recorder for tests, in torch's own forms: a job of ranks that call things in turn."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ncclcheck.probes.facts import Flight
from ncclcheck.probes.logs.flight import read

BEGIN = 1_760_000_000_000_000_000
Raw = dict[str, Any]


@dataclass
class Job:
    """groups: name -> description and ranks. Calls are written down rank by rank, in the order of the test.

    backend: gloo, as of torch 2.13, tells no group's name beside its ranks, and no end of a call,
    only that it is over.
    """

    groups: dict[str, tuple[str, list[int]]]
    version: str = "2.9"
    backend: str = "nccl"
    entries: dict[int, list[Raw]] = field(default_factory=dict)
    numbers: dict[tuple[int, str, bool], int] = field(default_factory=dict)
    clock: int = 0

    def __post_init__(self) -> None:
        self.entries = {rank: [] for _, ranks in self.groups.values() for rank in ranks}

    def call(
        self,
        group: str,
        op: str = "all_reduce",
        *,
        ranks: Iterable[int] | None = None,
        state: str = "completed",
        size: Sequence[int] = (1024,),
        out: Sequence[int] | None = None,
        dtype: str = "BFloat16",
        place: str = "",
    ) -> Job:
        """A collective that these ranks of a group enter, all of them where none are told."""
        for rank in self.groups[group][1] if ranks is None else ranks:
            self._add(
                rank,
                group,
                f"{self.backend}:{op}",
                size,
                size if out is None else out,
                dtype,
                state,
                place,
                pair=False,
            )
        return self

    def send(
        self, group: str, src: int, dst: int, *, state: str = "completed", size: Sequence[int] = (64,)
    ) -> Job:
        """A send that its rank calls; `receive` is the other side."""
        sender, receiver = (self.groups[group][1].index(rank) for rank in (src, dst))
        self._add(
            src, group, f"{self.backend}:send {sender}->{receiver}", size, size, "BFloat16", state, "", pair=True
        )
        return self

    def receive(
        self, group: str, dst: int, src: int, *, state: str = "completed", size: Sequence[int] = (64,)
    ) -> Job:
        """A receive of `dst` from `src`."""
        receiver, sender = (self.groups[group][1].index(rank) for rank in (dst, src))
        self._add(
            dst, group, f"{self.backend}:recv {receiver}<-{sender}", size, size, "BFloat16", state, "", pair=True
        )
        return self

    def _add(
        self, rank: int, group: str, name: str, size: Sequence[int], out: Sequence[int], dtype: str, state: str,
        place: str, *, pair: bool,
    ) -> None:  # fmt: skip
        self.clock += 1
        key = rank, group, pair
        number = self.numbers[key] = self.numbers.get(key, 0) + 1
        began = BEGIN + self.clock * 1000
        at = place.partition(":")
        frames = [{"name": "step", "filename": at[0], "line": int(at[2])}] if place else []
        timed = state == "completed" and self.backend == "nccl"
        self.entries[rank].append({
            "frames": frames, "record_id": len(self.entries[rank]), "pg_id": self._local(rank, group),
            "process_group": (group, self.groups[group][0]), "collective_seq_id": 0 if pair else number,
            "p2p_seq_id": number if pair else 0, "op_id": number, "profiling_name": name,
            "time_created_ns": began, "input_sizes": [list(size)], "input_dtypes": [dtype],
            "output_sizes": [list(out)], "output_dtypes": [dtype],
            "state": state if self.backend == "nccl" else "scheduled",
            "time_discovered_started_ns": None, "retired": state == "completed", "timeout_ms": 600000,
            "time_discovered_completed_ns": began + 500 if timed else None, "is_p2p": pair,
        })  # fmt: skip

    def _local(self, rank: int, group: str) -> int:
        return [name for name, (_, ranks) in self.groups.items() if rank in ranks].index(group)

    def dump(self, rank: int) -> Raw:
        """One rank's dump, as torch makes it."""
        own = {name: described for name, described in self.groups.items() if rank in described[1]}
        config = {name: {"name": name, "desc": about, "ranks": str(ranks)} for name, (about, ranks) in own.items()}
        if self.backend == "gloo":
            ranks = str(self.groups["0"][1]) if len(own) == 1 else "[]"
            config = {"": {"name": "", "desc": "", "ranks": ranks}}
        status = {str(self._local(rank, name)): self._status(rank, name) for name in own}
        return {"version": self.version, "pg_config": config, "pg_status": status, "entries": self.entries[rank]}

    def _status(self, rank: int, group: str) -> dict[str, int]:
        mine = [entry for entry in self.entries[rank] if entry["process_group"][0] == group]
        ended = [entry["op_id"] for entry in mine if entry["retired"]]
        entered = [entry["op_id"] for entry in mine]
        return {
            "last_enqueued_collective": max(entered, default=-1), "last_started_collective": -1,
            "last_completed_collective": max(ended, default=-1),
        }  # fmt: skip

    def write(self, folder: Path, *, without: Iterable[int] = (), protocol: int = 2) -> list[str]:
        """The dumps of all ranks but these, under torch's names."""
        paths = []
        for rank in sorted(set(self.entries) - {*without}):
            path = folder / f"nccl_trace_rank_{rank}"
            path.write_bytes(pickle.dumps(self.dump(rank), protocol))
            paths.append(str(path))
        return paths

    def flight(self, folder: Path, *, without: Iterable[int] = ()) -> Flight:
        """What is read of them."""
        return read(self.write(folder, without=without))


def as_json(dump: Raw) -> bytes:
    """The same dump as torch writes it as JSON: numbers of a status are texts, an unknown time is 0."""
    loaded = json.loads(json.dumps(dump))
    for status in loaded.get("pg_status", {}).values():
        status.update({key: str(value) for key, value in status.items()})
    for entry in loaded["entries"]:
        entry["time_discovered_completed_ns"] = entry["time_discovered_completed_ns"] or 0
        entry.pop("frames", None)
    return json.dumps(loaded, sort_keys=True).encode()
