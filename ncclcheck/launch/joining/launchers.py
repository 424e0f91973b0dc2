"""Launchers that start a task a rank, or a pod a node: the variables in which each says where a process is."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import psutil

from ncclcheck.base.errors import UsageError
from ncclcheck.launch.given import TORCHRUN_PORT, Env, GivenPlace, NumberReader, endpoint_of, host_of
from ncclcheck.run.plan.options import Options

_SEEN_S = 3.0  # s for which a task stays whose place is refused: the others on its node start within that; chosen


@dataclass(frozen=True)
class Tasks:
    """One launcher that starts a task a rank. Variables: rank, size, local_rank, and local_size or nodes.

    A row applies where rank, size and local_rank are set. in_blocks: what to type where ranks go round the nodes;
    address: where nothing says where node 0 is.
    """

    program: str
    rank: str
    size: str
    local_rank: str
    local_size: tuple[str, ...] = ()
    nodes: str = ""
    in_blocks: str = ""
    address: str = ""


OPEN_MPI = Tasks(
    "mpirun",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    in_blocks="mpirun --map-by slot",
    address="mpirun -x MASTER_ADDR=NODE0 -x MASTER_PORT=29500 ..., or give --hostfile FILE without mpirun",
)
# Flux may set PALS_* too, for Cray's MPI (flux-coral2, cray_pals.c), and PMI_*: it comes first.
# Sources: flux-environment(7); Slurm's mpi_cray_shasta.c, which has the names of PALS; MPICH's and Intel's hydra.
OTHERS = (
    Tasks(
        "flux run",
        "FLUX_TASK_RANK",
        "FLUX_JOB_SIZE",
        "FLUX_TASK_LOCAL_ID",
        nodes="FLUX_JOB_NNODES",
        in_blocks="flux run --taskmap=block",
        address="flux run --env=MASTER_ADDR=NODE0 --env=MASTER_PORT=29500 ..., or, in a script of flux batch and"
        ' without flux run, --hosts "$(flux hostlist -e -d, local)"',
    ),
    Tasks(
        "mpiexec of PALS",
        "PALS_RANKID",
        "PMI_SIZE",
        "PALS_LOCAL_RANKID",
        ("PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
        in_blocks="mpiexec --ppn N without --rankfile",
        address="mpiexec --env MASTER_ADDR=$(head -n 1 $PBS_NODEFILE) --env MASTER_PORT=29500 ..., or give"
        " --hostfile $PBS_NODEFILE without mpiexec",
    ),
    Tasks(
        "mpiexec of hydra",
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        ("MPI_LOCALNRANKS",),
        in_blocks="mpiexec -ppn N",
        address="mpiexec -genv MASTER_ADDR NODE0 -genv MASTER_PORT 29500 ..., or --hostfile FILE without mpiexec",
    ),
)


@dataclass(frozen=True)
class ProcessPlace:
    """What a launcher says of one process: its node, its place on it, and where node 0 is."""

    node_rank: int
    nodes: int
    where: GivenPlace
    chosen_by: str
    local_rank: int = 0
    local_size: int = 1


def of_tasks(rows: tuple[Tasks, ...], options: Options, env: Env) -> ProcessPlace | None:
    """Our place by the first launcher whose variables are set; None for a world of one. Raises UsageError.

    Launchers number by node unless told otherwise: the ranks of a node are neighbours.
    """
    row = next((row for row in rows if {row.rank, row.size, row.local_rank} <= env.keys()), None)
    if row is None:
        return None
    read = NumberReader(env, f"{row.rank} says {row.program}")
    world = read.number(row.size, 1)
    rank, size = read.number(row.rank, 0, world - 1), _on_a_node(row, read, env, world)
    local = read.number(row.local_rank, 0, size - 1)
    if world == 1:
        return None
    beside = _beside(row.rank) if 1 < size < world else []
    if rank % size != local:
        _refuse_rounds(row, f"{rank} is local rank {local} of {size}", beside)
    for peer, place in ((env.get(row.rank, ""), env.get(row.local_rank, "")) for env in beside):
        if peer.isdigit() and place.isdigit() and int(peer) - rank != int(place) - local:
            both = f"{rank} is local rank {local} and {int(peer)} is local rank {int(place)} of this node"
            _refuse_rounds(row, both, beside)
    nodes = read.shared(row.size, world, size)
    where = endpoint_of(options, env)
    if where is None:
        raise UsageError(
            f"MASTER_ADDR: is not set, and {row.program} does not say where node 0 is; type {row.address}"
        )
    words = f"{row.rank} ({row.program}; {world} processes, {size} on this node) and {where.source}"
    return ProcessPlace(rank // size, nodes, where, words, local, size)


def _refuse_rounds(row: Tasks, seen: str, beside: Sequence[Env]) -> NoReturn:
    """Not every task sees it by its numbers (rank 0 is local rank 0 either way): those must find us here."""
    time.sleep(_SEEN_S if beside else 0.0)
    raise UsageError(
        f"{row.rank}: {seen}, so ranks go round the nodes; allowed are ranks in blocks: {row.in_blocks},"
        " or one process a node"
    )


def _beside(rank_name: str) -> list[Env]:
    """The environments of the tasks here that have the same daemon of the launcher above them.

    A task may be a shell that runs us: it has our rank too. The daemon has none.
    """
    task = psutil.Process()
    if (own := _environment(task).get(rank_name)) is None:
        return []
    with suppress(psutil.Error):
        while (parent := task.parent()) is not None and _environment(parent).get(rank_name) == own:
            task = parent
        return [_environment(child) for child in parent.children() if child.pid != task.pid] if parent else []
    return []


def _environment(process: psutil.Process) -> Env:
    """As it was started; empty where it may not be read."""
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _on_a_node(row: Tasks, read: NumberReader, env: Env, world: int) -> int:
    """How many tasks a node has: by its own variable, or by that of all nodes."""
    if row.nodes:
        nodes = read.number(row.nodes, 1, world)
        if world % nodes:
            raise UsageError(f"{row.size}: {world} processes do not share out evenly over {nodes} nodes")
        return world // nodes
    return read.number(next((name for name in row.local_size if name in env), row.local_size[0]), 1, world)


def of_group(options: Options, env: Env) -> ProcessPlace | None:
    """A pod of a LeaderWorkerSet: the leader is worker 0 of its group, which has a name there and no port."""
    if not {"LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"} <= env.keys():
        return None
    read = NumberReader(env, "LWS_LEADER_ADDRESS says a LeaderWorkerSet")
    nodes = read.number("LWS_GROUP_SIZE", 1)
    rank = read.number("LWS_WORKER_INDEX", 0, nodes - 1)
    port = read.number("MASTER_PORT", 1, 65535) if "MASTER_PORT" in env else TORCHRUN_PORT
    leader = host_of(env["LWS_LEADER_ADDRESS"], "LWS_LEADER_ADDRESS")
    where = endpoint_of(options, env) or GivenPlace(leader, port, "LWS_LEADER_ADDRESS")
    return ProcessPlace(
        rank, nodes, where, f"LWS_WORKER_INDEX={rank} (LWS_GROUP_SIZE={nodes} counts pods) and {where.source}"
    )


def of_volcano(options: Options, env: Env, hostname: str) -> ProcessPlace | None:
    """A pod of a Volcano Job with the plugins env and svc, which list the hosts of each task.

    Which task a pod belongs to is in no variable: its own host name is in one of the lists. Tasks are numbered as
    Volcano's plugin for PyTorch does it: those of MASTER, then the others, by name.
    """
    if "VC_TASK_INDEX" not in env:
        return None
    listed = {
        match[1]: hosts.split(",")
        for name, hosts in env.items()
        if (match := re.fullmatch(r"VC_([A-Z0-9_]+)_HOSTS", name)) and hosts
    }
    if not listed:
        return None
    hosts = [
        host.strip() for task in sorted(listed, key=lambda task: (task != "MASTER", task)) for host in listed[task]
    ]
    own_name = hostname.split(".", maxsplit=1)[0]
    own = [place for place, host in enumerate(hosts) if host.split(".")[0] == own_name]
    if len(own) != 1:
        names = ", ".join(f"VC_{task}_HOSTS" for task in sorted(listed))
        raise UsageError(
            f"VC_TASK_INDEX: says a pod of Volcano, and its host name {hostname!r} is not in {names};"
            " give --nodes N, --node-rank R and --rdzv-endpoint HOST:PORT"
        )
    port = NumberReader(env, "").number("MASTER_PORT", 1, 65535) if "MASTER_PORT" in env else TORCHRUN_PORT
    where = endpoint_of(options, env) or GivenPlace(host_of(hosts[0], "VC_*_HOSTS"), port, "VC_*_HOSTS")
    return ProcessPlace(
        own[0], len(hosts), where, f"VC_TASK_INDEX (Volcano; {len(hosts)} pods) and {where.source}"
    )
