"""Who we are in a join: read from options and variables; pure, and it says from where."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace

from ncclcheck.base.errors import UsageError
from ncclcheck.launch.given import (
    Env,
    GivenPlace,
    NumberReader,
    count,
    endpoint,
    endpoint_of,
    is_loopback,
    tasks_of,
)
from ncclcheck.launch.hosts import nodelist
from ncclcheck.launch.joining import launchers
from ncclcheck.launch.joining.launchers import Tasks
from ncclcheck.launch.joining.trust import secret as secrets
from ncclcheck.launch.joining.trust.secret import NO_SECRET, Secret
from ncclcheck.probes.facts import Launcher
from ncclcheck.run.plan.options import Options

_PORTS = 4  # ports from the given one on that node 0 may take where some are in use; chosen
_ONE_A_RANK = {"RANK", "LOCAL_RANK", "WORLD_SIZE"}  # one process a rank has all of them
_OF_SLURM = "slurm "  # begins the id of a step's run
_NO_REAL_STEP = 4_294_967_280  # ids from here on are salloc's own step, the batch script, and their like


@dataclass(frozen=True)
class JoinIdentity:
    """One process of a join. ports are tried in this order; local_rank 0 speaks for its node.

    ranks_per_node: what the job system started on each node; None where one process a node was started.
    """

    node_rank: int
    nodes: int
    host: str
    ports: tuple[int, ...]
    run_id: str
    name: str
    chosen_by: str
    launcher: Launcher = "join"
    local_rank: int = 0
    local_size: int = 1
    ranks_per_node: int | None = None
    secret: Secret = NO_SECRET

    @property
    def endpoint(self) -> str:
        """HOST:PORT of the meeting point, the first that is tried."""
        return endpoint(self.host, self.ports[0])

    @property
    def is_lead(self) -> bool:
        """Whether this process is to open the meeting point and to write the report."""
        return self.node_rank == 0 and self.local_rank == 0

    @property
    def on_loopback(self) -> bool:
        """Whether other machines cannot reach the meeting point under this name."""
        return is_loopback(self.host)


def identity(options: Options, env: Env, hostname: str = "") -> JoinIdentity | None:
    """Our place in a join, or None where nothing says that this is one. Raises UsageError for what contradicts."""
    if options.launch not in (None, "join") or options.hosts or options.hostfile:
        return None
    who = (
        _typed(options, env)
        or _in_torchrun(env)
        or _in_tasks((launchers.OPEN_MPI,), options, env)
        or _in_step(options, env)
        or _in_tasks(launchers.OTHERS, options, env)
        or _in_pods(options, env)
        or _in_group(options, env, hostname)
    )
    if who is None:
        if options.launch == "join":
            raise UsageError(
                "--launch join: nothing says which node this is; give --nodes N, --node-rank R and"
                " --rdzv-endpoint HOST:PORT, or set MASTER_ADDR, MASTER_PORT, NODE_RANK and PET_NNODES"
            )
        return None
    if options.nodes not in (None, who.nodes):
        raise UsageError(f"--nodes: {options.nodes} contradicts {who.nodes} nodes by {who.chosen_by}")
    name = env.get("SLURMD_NODENAME") or env.get("NODE_NAME") or hostname or f"node{who.node_rank}"
    return replace(who, name=name, run_id=options.rdzv_id or who.run_id, secret=_secret(who, options, env))


def _secret(who: JoinIdentity, options: Options, env: Env) -> Secret:
    """A node that is alone talks to nobody; of a node's ranks the first one talks."""
    if who.nodes == 1:
        return NO_SECRET
    in_slurm = who.run_id.startswith(_OF_SLURM) and who.local_rank == 0
    return secrets.read(env, options.secret_file, in_slurm=in_slurm)


def _typed(options: Options, env: Env) -> JoinIdentity | None:
    rank = options.node_rank
    if rank is None:
        return None
    nodes = options.nodes or count(env.get("PET_NNODES", ""), "PET_NNODES")
    if nodes is None:
        raise UsageError("--nodes: is missing; --node-rank needs --nodes N, the same on every node")
    if not 0 <= rank < nodes:
        raise UsageError(f"--node-rank: {rank} is out of range; allowed are 0 to {nodes - 1} with {nodes} nodes")
    where = endpoint_of(options, env)
    if where is None:
        raise UsageError("--rdzv-endpoint: is missing; --node-rank needs HOST:PORT, an address of node 0")
    return _make(rank, nodes, where, "--node-rank and " + where.source)


def _in_torchrun(env: Env) -> JoinIdentity | None:
    if "TORCHELASTIC_RUN_ID" not in env:
        return None
    read = NumberReader(env, "TORCHELASTIC_RUN_ID says torchrun")
    world, size = read.number("WORLD_SIZE", 1), read.number("LOCAL_WORLD_SIZE", 1)
    read.number("RANK", 0, world - 1)
    local = read.number("LOCAL_RANK", 0, size - 1)
    nodes = (
        read.number("GROUP_WORLD_SIZE", 1) if "GROUP_WORLD_SIZE" in env else read.shared("WORLD_SIZE", world, size)
    )
    port = read.number("MASTER_PORT", 1, 65535)
    # torchrun's own store has MASTER_PORT, so that the ports after it are tried.
    where = GivenPlace(read.text("MASTER_ADDR"), min(port + 1, 65535 - _PORTS), "MASTER_ADDR")
    words = f"TORCHELASTIC_RUN_ID (inside torchrun; WORLD_SIZE={world} counts processes, {size} on this node)"
    who = _make(read.number("GROUP_RANK", 0, nodes - 1), nodes, where, words, run_id=env["TORCHELASTIC_RUN_ID"])
    return replace(who, launcher="torchrun", local_rank=local, local_size=size, ranks_per_node=size)


def _in_tasks(rows: tuple[Tasks, ...], options: Options, env: Env) -> JoinIdentity | None:
    place = launchers.of_tasks(rows, options, env)
    return None if place is None else _at(place, place.local_size if place.local_size > 1 else None)


def _at(place: launchers.ProcessPlace, each: int | None = None) -> JoinIdentity:
    made = _make(place.node_rank, place.nodes, place.where, place.chosen_by)
    return replace(made, local_rank=place.local_rank, local_size=place.local_size, ranks_per_node=each)


def _in_step(options: Options, env: Env) -> JoinIdentity | None:
    """A real Slurm step with a task on every node that is asked for. A batch script has SLURM_PROCID=0 too.

    A shell of `srun --pty` is one task in which a person types: nobody types the same on the other nodes.
    """
    step = env.get("SLURM_STEP_ID", "")
    if not re.fullmatch(r"\d{1,10}", step) or int(step) >= _NO_REAL_STEP or "SLURM_PTY_PORT" in env:
        return None
    read = NumberReader(env, "SLURM_STEP_ID says a job step")
    nodes = read.number("SLURM_STEP_NUM_NODES" if "SLURM_STEP_NUM_NODES" in env else "SLURM_NNODES", 1)
    asked = options.nodes or (read.number("SLURM_JOB_NUM_NODES", 1) if "SLURM_JOB_NUM_NODES" in env else nodes)
    if asked != nodes:
        return None
    tasks = read.number("SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS", nodes)
    node = read.number("SLURM_NODEID", 0, nodes - 1)
    local = read.number("SLURM_LOCALID", 0, tasks - 1)
    size = tasks_of(env.get("SLURM_STEP_TASKS_PER_NODE", ""), node) or max(local + 1, tasks // nodes)
    where = endpoint_of(options, env) or _first_of_step(env, step)
    words = f"SLURM_STEP_ID (a step of {tasks} tasks on {nodes} nodes) and {where.source}"
    who = _make(node, nodes, where, words, run_id=f"{_OF_SLURM}{env.get('SLURM_JOB_ID', '')}.{step}")
    even = size > 1 and tasks == size * nodes
    return replace(who, local_rank=local, local_size=size, ranks_per_node=size if even else None)


def _in_pods(options: Options, env: Env) -> JoinIdentity | None:
    """Kubeflow, indexed Jobs and their like. In a Slurm job these are for the tasks of a step, which this is not.

    Ray Train gives NODE_RANK beside the numbers of one process a rank: WORLD_SIZE counts processes there.
    """
    names = ("PET_NODE_RANK", "NODE_RANK", "RANK", "JOB_COMPLETION_INDEX")
    rank_name = next((name for name in names if name in env), None)
    if rank_name is None or "SLURM_JOB_ID" in env or (where := endpoint_of(options, env)) is None:
        return None
    if rank_name != "PET_NODE_RANK" and env.keys() >= _ONE_A_RANK | {"LOCAL_WORLD_SIZE"}:
        return _by_processes(env, where)
    if rank_name == "RANK" and "LOCAL_RANK" in env:
        return _by_processes(env, where)
    counted = _pods(options, env)
    if counted is None:
        return None
    nodes, each, words = counted
    rank = NumberReader(env, "").number(rank_name, 0, nodes - 1)
    chosen_by = f"{rank_name}={rank} ({words}) and {where.source}"
    return replace(_make(rank, nodes, where, chosen_by, run_id=env.get("PET_RDZV_ID", "")), ranks_per_node=each)


def _in_group(options: Options, env: Env, hostname: str) -> JoinIdentity | None:
    """LeaderWorkerSet and Volcano: each has its own variables, and none of torch's."""
    place = launchers.of_group(options, env) or launchers.of_volcano(options, env, hostname)
    return None if place is None else _at(place)


def _by_processes(env: Env, where: GivenPlace) -> JoinIdentity | None:
    """Each rank is a process of its own, and its place on its node is told."""
    if "WORLD_SIZE" not in env:
        return None
    read = NumberReader(env, "RANK with LOCAL_RANK says one process a rank")
    world, size = read.number("WORLD_SIZE", 1), read.number("LOCAL_WORLD_SIZE", 1)
    rank, local = read.number("RANK", 0, world - 1), read.number("LOCAL_RANK", 0, size - 1)
    if rank % size != local:
        raise UsageError(f"LOCAL_RANK: {local} contradicts RANK={rank} with {size} ranks on each node")
    nodes = read.shared("WORLD_SIZE", world, size)
    words = f"RANK and LOCAL_RANK (WORLD_SIZE={world} counts processes, {size} on this node) and {where.source}"
    who = _make(rank // size, nodes, where, words)
    return replace(who, local_rank=local, local_size=size, ranks_per_node=size)


def _pods(options: Options, env: Env) -> tuple[int, int | None, str] | None:
    """How many nodes, how many ranks on each where that is told, and how it was read.

    Kubeflow's WORLD_SIZE counts pods in older versions, pods times nprocPerNode in newer ones.
    """
    given = env.get("PET_NPROC_PER_NODE", "")
    each = int(given) if re.fullmatch(r"[1-9]\d{0,5}", given, re.ASCII) else None
    if (nodes := count(env.get("PET_NNODES", ""), "PET_NNODES")) is not None:
        _agree(env, nodes, each)
        return nodes, each, f"PET_NNODES={nodes} counts pods"
    if "WORLD_SIZE" not in env:
        return None if options.nodes is None else (options.nodes, each, f"--nodes {options.nodes} counts pods")
    world = NumberReader(env, "").number("WORLD_SIZE", 1)
    if options.nodes not in (None, world) and world % options.nodes == 0:
        share = world // options.nodes
        return options.nodes, share, f"WORLD_SIZE={world} was read as processes, {share} in each pod, by --nodes"
    if options.nodes is None and each and each > 1 and world % each == 0:
        return (
            world // each,
            each,
            f"WORLD_SIZE={world} was read as processes, PET_NPROC_PER_NODE={each} in each pod",
        )
    return world, each, f"WORLD_SIZE={world} was read as pods: there is no LOCAL_RANK"


def _agree(env: Env, nodes: int, each: int | None) -> None:
    """WORLD_SIZE beside PET_NNODES may count pods or processes, and nothing else."""
    if "WORLD_SIZE" not in env:
        return
    world = NumberReader(env, "").number("WORLD_SIZE", 1)
    if world != nodes and (world % nodes or world // nodes != (each or world // nodes)):
        processes = f" or {nodes * each} (processes)" if each else ""
        raise UsageError(
            f"WORLD_SIZE: {world} contradicts PET_NNODES={nodes}; allowed are {nodes} (pods){processes}"
        )


def _make(rank: int, nodes: int, where: GivenPlace, chosen_by: str, run_id: str = "") -> JoinIdentity:
    ports = tuple(range(where.port, min(where.port + _PORTS, 65536)))
    return JoinIdentity(rank, nodes, where.host, ports, run_id, "", chosen_by)


def _first_of_step(env: Env, step: str) -> GivenPlace:
    """The step's first node, and a port that follows from job and step, below the kernel's own range."""
    name = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in env else "SLURM_JOB_NODELIST"
    if not env.get(name):
        raise UsageError(f"{name}: is not set; give --rdzv-endpoint HOST:PORT, an address of node 0")
    digest = hashlib.sha256(f"{env.get('SLURM_JOB_ID', '')}.{step}".encode()).digest()
    return GivenPlace(
        nodelist.expand(env[name], name)[0], 20_000 + int.from_bytes(digest[:4], "big") % 12_000, name
    )
