"""What a process said in its log -> `Transport`: counts by kind, within the node and between nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from ncclcheck.probes.facts import Connections, Endpoint, NetDevice, Transport, Unread
from ncclcheck.probes.logs.nccl_lines.records import Communicator, Log, NcclProcess

_MOST_DEVICES = 64  # of a rank in the result: chosen, a node has up to 16 HCAs with two ports
_SILENT = Unread("absent", "the log does not say it")
_WITHIN = ("SHM", "P2P/IPC", "P2P/CUMEM", "P2P/direct pointer", "P2P/indirect", "P2P/CE")


def transport(log: Log, pid: int, rank: int, node: str, local: Collection[int]) -> Transport:
    """How one rank was connected. local: the ranks of the world that are on its node."""
    speaker = next((process for (_, number), process in log.processes.items() if number == pid), None)
    if speaker is None:
        return unseen(rank, node, Unread("absent", "its log holds no line of NCCL"))
    world = speaker.largest
    return Transport(
        rank=rank,
        node=node,
        source="log",
        version=speaker.version or log.version or _SILENT,
        bootstrap=speaker.bootstrap or _SILENT,
        network=speaker.network or _SILENT,
        connections=_connections(speaker, rank, local),
        interfaces=speaker.interfaces[:_MOST_DEVICES],
        devices=_devices(speaker),
        plugin=speaker.plugin,
        tuner=speaker.tuner,
        no_infiniband=speaker.no_infiniband,
        nvls=speaker.nvls,
        channels=world.channels,
        rings=speaker.rings,
        trees=speaker.trees,
        nranks=world.nranks or None,
        nnodes=world.nnodes or None,
        bus_id=world.bus_id,
        communicators=len(speaker.communicators),
        completed=sum(communicator.complete for communicator in speaker.communicators.values()),
        warnings=list(speaker.warnings),
        lines=speaker.lines,
        unknown_lines=speaker.unknown,
        unknown_samples=speaker.samples,
    )


def unseen(rank: int, node: str, why: Unread) -> Transport:
    """A rank of which nothing could be read, and why."""
    return Transport(rank=rank, node=node, source="log", version=why, bootstrap=why, network=why, connections=why)


def by_sockets(rank: int, node: str, counter: Counter[tuple[Endpoint, bool]] | Unread) -> Transport:
    """A rank of gloo by its open connections: (the endpoint here, whether the peer is on this machine)."""
    if isinstance(counter, Unread):
        none = Unread("absent", "gloo writes no log")
        return Transport(rank=rank, node=node, source="sockets", version=none, bootstrap=none, network=counter,
                         connections=counter)  # fmt: skip
    counts = {within: sum(n for (_, here), n in counter.items() if here is within) for within in (True, False)}
    endpoints = list(dict.fromkeys(endpoint for endpoint, _ in counter))
    none = Unread("absent", "gloo has no bootstrap of its own")
    return Transport(
        rank=rank,
        node=node,
        source="sockets",
        version=none,
        bootstrap=none,
        network="TCP",
        connections=[
            Connections(kind="TCP", peers="intra" if within else "inter", count=count)
            for within, count in counts.items()
            if count
        ],
        interfaces=endpoints[:_MOST_DEVICES],
    )


def _connections(process: NcclProcess, rank: int, local: Collection[int]) -> list[Connections]:
    counts: Counter[tuple[str, str]] = Counter()
    devices: dict[tuple[str, str], set[int]] = {}
    several = len(process.communicators) > 1
    alone = len(local) > 1 and process.largest.local_ranks == 1
    for communicator in process.all:
        for (kind, device, source, target), count in communicator.seen.items():
            peer = target if source == communicator.rank else source if target == communicator.rank else -1
            key = (
                kind,
                _where(communicator, kind, peer, rank, () if several and not communicator.began else local, alone),
            )
            counts[key] += count
            if device is not None and len(devices.setdefault(key, set())) < _MOST_DEVICES:
                devices[key].add(device)
    return [
        Connections(kind=kind, peers=peers, count=count, devices=sorted(devices.get((kind, peers), ())))  # type: ignore[arg-type]
        for (kind, peers), count in sorted(counts.items())
    ]


def _where(
    communicator: Communicator, kind: str, peer: int, rank: int, local: Collection[int], alone: bool
) -> str:
    """Ranks of a smaller communicator have other numbers than those of the world; no local ranks: not known.

    alone: NCCL counts each rank of this host as a node of its own, as it does where ranks of one host reach each
    other neither by P2P nor by SHM; how many "local ranks" it then says is nothing of the host.
    """
    if communicator.nnodes == 1 or kind in _WITHIN:
        return "intra"
    if kind.startswith("COLLNET") or (communicator.local_ranks == 1 and not alone):
        return "inter"
    if peer < 0 or communicator.rank != rank or max(local, default=communicator.nranks) >= communicator.nranks:
        return "unknown"
    return "intra" if peer in local else "inter"


def _devices(process: NcclProcess) -> list[NetDevice]:
    devices = []
    for index, (name, link) in sorted(process.devices.items())[:_MOST_DEVICES]:
        first = name.partition("+")[0]
        devices.append(
            NetDevice(
                name=name,
                index=index,
                link=link,
                speed_mbit=process.speeds.get(name, process.speeds.get(first)),
                gpudirect=process.direct.get(name, process.direct.get(first.partition(":")[0])),
            )
        )
    return devices
