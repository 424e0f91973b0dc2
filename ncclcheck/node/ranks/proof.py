"""Over what the ranks of one node really ran: NCCL's log, gloo's sockets, and what the cards moved meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from ncclcheck.base import wire
from ncclcheck.probes.facts import Endpoint, Logs, Measurements, RankState, Transport, Unread
from ncclcheck.probes.job.usage import interruptions, traffic
from ncclcheck.probes.logs.nccl_lines import place
from ncclcheck.probes.logs.nccl_lines.own import read_own
from ncclcheck.probes.logs.nccl_lines.transports import by_sockets, unseen
from ncclcheck.probes.machine.access import Machine

T = TypeVar("T")
_READ_S = 3.0  # for NCCL's log of a job: chosen, local files take milliseconds
Sockets = Counter[tuple[Endpoint, bool]]


class Proof:
    """Begun before torchrun is started, and asked when its ranks have ended, however they did."""

    def __init__(self, job: wire.StartJob, node: str, folder: str, env: Mapping[str, str]) -> None:
        self._job, self._node, self._folder = job, node, folder
        self._log = place.choose(env, folder) if job.backend == "nccl" else None
        self._counters = traffic.CounterReading.take(Machine())
        self._interruptions = interruptions.InterruptionWatch(Machine())
        self._sockets: dict[int, Sockets | Unread] = {}
        self._looks = 0

    @property
    def environment(self) -> Mapping[str, str]:
        """What NCCL needs to write its log; the user's own settings are not among it."""
        return self._log.added if self._log else {}

    def look(self, ranks: Sequence[RankState]) -> None:
        """Called again and again while the job runs; looks at sockets less and less often."""
        self._looks += 1
        if self._log is None and self._looks & (self._looks - 1) == 0:
            for state in ranks:
                self.joined(state)

    def joined(self, state: RankState) -> None:
        """See to whom a rank of gloo is connected now: it has joined, or some time has passed."""
        if self._log is None and state.pid is not None:
            counter = traffic.connections(state.pid, self._store_ports(state.pid))
            before = self._sockets.get(state.rank)
            if isinstance(before, Unread) or before is None:
                self._sockets[state.rank] = counter
            elif not isinstance(counter, Unread):
                self._sockets[state.rank] = before | counter

    def _store_ports(self, pid: int) -> set[int]:
        """Ranks hold connections to the stores of torchrun, too: the one that we named, and its own."""
        ports = {int(self._job.endpoint.rpartition(":")[2])}
        with suppress(OSError, ValueError, StopIteration), open(f"/proc/{pid}/environ", "rb") as file:
            values = (
                entry.partition(b"=")[2] for entry in file.read().split(b"\0") if entry.startswith(b"MASTER_PORT=")
            )
            ports.add(int(next(values)))
        return ports

    def measurements(self, ranks: Mapping[int, RankState], printed: str, *, died: bool) -> Measurements:
        """All of it. printed: the file that the ranks print to. died: what they printed is read for the cause."""
        return Measurements(
            transport=self._transports(ranks, printed),
            traffic=[self._counters.until_now(self._node)],
            interruptions=[self._interruptions.seen(self._node)],
            logs=self._logs(printed) if died else None,
        )

    def _logs(self, printed: str) -> Logs | None:
        return _in_time(lambda: read_own(self._node, printed, self._folder), None)

    def _transports(self, ranks: Mapping[int, RankState], printed: str) -> list[Transport]:
        chosen = self._log
        if chosen is None:
            gone = Unread("absent", "the rank was never seen alive")
            return [by_sockets(rank, self._node, self._sockets.get(rank, gone)) for rank in sorted(ranks)]
        pids = {rank: state.pid for rank, state in ranks.items() if state.pid is not None}
        why = Unread("timed_out", f"NCCL's log ({chosen.pattern}) could not be read within {_READ_S:g} s")
        transports = [unseen(rank, self._node, why) for rank in sorted(pids)]
        return _in_time(lambda: place.transports(chosen, pids, self._node, printed, ranks.keys()), transports)


def _in_time(read: Callable[[], T], otherwise: T) -> T:
    """A log of the user's own may stand on a file system that does not answer."""
    results = [otherwise]
    reader = threading.Thread(target=lambda: results.append(read()), daemon=True)
    reader.start()
    reader.join(_READ_S)
    return results[-1]
