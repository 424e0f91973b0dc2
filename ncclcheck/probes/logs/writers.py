"""Who wrote what: processes by host and pid, their ranks, and which of them a launcher's prefix stands for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from ncclcheck.probes.facts import LogProcess
from ncclcheck.probes.logs.files.prefixes import is_address
from ncclcheck.probes.logs.nccl_lines.records import Log, NcclProcess

# of one process: variables, MAX_IFS of NCCL, HCAs; chosen, lines from outside may repeat without end
_MOST_SETTINGS, _MOST_INTERFACES, _MOST_RAILS = 64, 16, 64
_PID = re.compile(r"\bpid=(\d{1,10})\b")  # of one process, as Ray and vLLM write it
Key = tuple[str, int]


class Writers:
    """The processes of all files. groups: (file, what the launcher calls it) -> processes that wrote under it.

    alone: the rank of such a group of which one rank alone is told.
    """

    def __init__(
        self, log: Log, groups: Mapping[tuple[str, str], set[Key]], alone: Mapping[tuple[str, str], int]
    ) -> None:
        self._processes, self._alone = log.processes.keys(), alone
        self._groups = {group: {key for key in keys if key in log.processes} for group, keys in groups.items()}
        world = max((process.largest.nranks for process in log.processes.values()), default=0)
        self.ranks: dict[Key, int] = {}
        self.several: dict[Key, list[int]] = {}  # of a process with several GPUs; which wrote a line is not told
        for key, process in log.processes.items():
            ranks = sorted(
                {
                    communicator.rank
                    for communicator in process.all
                    if communicator.rank >= 0 and communicator.nranks == world
                }
            )
            if len(ranks) == 1:
                self.ranks[key] = ranks[0]
            elif ranks:
                self.several[key] = ranks
        self._by_rank: dict[int, Key | None] = {}
        for key, rank in self.ranks.items():
            self._by_rank[rank] = None if rank in self._by_rank else key
        self._by_file: dict[str, set[Key]] = {}
        for (file, _), keys in self._groups.items():
            self._by_file.setdefault(file, set()).update(keys)

    def of(
        self, group: tuple[str, str], host: str, pid: int | None, rank: int | None
    ) -> tuple[str, int | None, int | None]:
        """Host, pid and rank of who wrote a line, as far as anything tells."""
        key = (host, pid) if pid is not None else self._found(group, host, rank)
        if key is not None:
            return key[0], key[1], self.ranks.get(key, rank)
        if pid is None and (named := _PID.search(group[1])):
            pid, rank = int(named[1]), self._alone.get(group, rank) if rank is None else rank
            same = [
                process
                for process in self._processes
                if process[1] == pid and (not host or is_address(host) or process[0] == host)
            ]
            if len(same) == 1:
                return *same[0], self.ranks.get(same[0], rank)
        hosts = {known for known, _ in self._groups.get(group, ())} if group[1] else set()
        only = next(iter(hosts)) if len(hosts) == 1 else ""
        return (only or host if is_address(host) else host or only), pid, rank

    def _found(self, group: tuple[str, str], host: str, rank: int | None) -> Key | None:
        if rank is not None:
            return self._by_rank.get(rank)
        keys = self._groups.get(group, set()) if group[1] else self._by_file.get(group[0], set())
        keys = {key for key in keys if not host or is_address(host) or key[0] == host}
        return next(iter(keys)) if len(keys) == 1 else None


def processes(log: Log, who: Writers, begins: Mapping[Key, tuple[str, int]]) -> list[LogProcess]:
    """What each process said of itself."""
    return [
        _process(process, who.ranks.get(key), who.several.get(key, []), *begins.get(key, ("", 0)))
        for key, process in log.processes.items()
    ]


def _process(process: NcclProcess, rank: int | None, several: list[int], file: str, line: int) -> LogProcess:
    world = process.largest
    known = [communicator for communicator in process.all if communicator.rank >= 0]
    return LogProcess(
        host=process.host,
        pid=max(1, process.pid),
        rank=rank,
        several=several,
        version=process.version,
        driver=process.driver,
        bootstrap=process.bootstrap,
        network=process.network,
        plugin=process.plugin,
        no_infiniband=process.no_infiniband,
        interfaces=process.interfaces[:_MOST_INTERFACES],
        devices=dict(process.devices.values()),
        direct=process.direct,
        settings=dict([*process.settings.items()][:_MOST_SETTINGS]),
        vias=_vias(process),
        rails=_rails(process),
        nranks=world.nranks or None,
        nnodes=world.nnodes or None,
        local_ranks=world.local_ranks or None,
        bus_id=world.bus_id,
        channels=world.channels,
        began=sum(communicator.began or communicator.complete for communicator in known),
        completed=sum(communicator.complete for communicator in known),
        ended=sum(communicator.ended for communicator in known),
        rings=process.rings,
        trees=process.trees,
        nvls=process.nvls,
        chunk=process.chunk,
        first_line=line,
        started_line=process.started_line,
        file=file,
    )


def _rails(process: NcclProcess) -> list[int]:
    devices = {
        device
        for communicator in process.all
        for (kind, device, *_) in communicator.seen
        if kind.startswith("NET/")
    }
    return sorted(device for device in devices if device is not None)[:_MOST_RAILS]


def _vias(process: NcclProcess) -> dict[str, int]:
    """All connections by kind."""
    counter: Counter[str] = Counter()
    for communicator in process.all:
        for (kind, *_), count in communicator.seen.items():
            counter[kind] += count
    return dict(counter)
