"""What a part of the job is given: who it is, what to do, until when, and whom to tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from ncclcheck.probes.facts import Measurements

if TYPE_CHECKING:
    import torch

    from ncclcheck.probes.job.usage.memory import MemoryWatch

Op = Literal[
    "broadcast",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "reduce",
    "gather",
    "scatter",
    "sendrecv",
    "barrier",
    "broadcast_object_list",
]
ReduceOp = Literal["sum", "product", "min", "max", "avg", "band", "bor", "bxor", "premul_sum"]
Dtype = Literal["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]

TrainingFault = Literal[
    "rank-init",
    "no-set-epoch",
    "skip-step",
    "no-sync",
    "unused",
    "uneven",
    "leak",
    "stray",
    "slow-data",
    "one-file",
]


class Row(Struct, frozen=True, kw_only=True):
    """One line of the table: an operation at a size (bytes as nccl-tests counts them; 0 for barrier)."""

    op: Op
    bytes: int


class CollectivePlan(Struct, frozen=True, kw_only=True):
    """What to measure. budget_s: measuring time of all rows together; memory: bytes that a rank may allocate."""

    rows: list[Row]
    dtype: Dtype = "float32"
    reduce_op: ReduceOp = "sum"
    budget_s: float = 20.0
    memory: int = 2**30
    least_iterations: int = 5
    most_iterations: int = 400


class SpeedPlan(Struct, frozen=True, kw_only=True):
    """What each rank and node measures alone. budget_s: for all of it together."""

    budget_s: float = 1.0


class PairPlan(Struct, frozen=True, kw_only=True):
    """Exchanges between nodes, two by two. quick: two passes; full: every pair, once a rail.

    limit_s: after so long an exchange has failed; budget_s: no round is started after it.
    """

    level: Literal["quick", "full"] = "quick"
    bytes: int = 2**22
    limit_s: float = 5.0
    budget_s: float = 4.0


class GroupPlan(Struct, frozen=True, kw_only=True):
    """Groups of nodes that grow, where the whole fails and every pair is sound.

    always: the whole has failed before, in a job of its own; else only where its collectives are far below what
    pairs carry. bytes_a_rank: of a group's buffer, for each of its ranks, so that the pieces of a ring have the
    same size in all groups. limit_s: after so long, and a little for each rank, a group has failed; budget_s: no
    round is started after it.
    """

    always: bool = False
    bytes_a_rank: int = 2**19
    most_bytes: int = 2**28
    limit_s: float = 5.0
    budget_s: float = 60.0


class SoakPlan(Struct, frozen=True, kw_only=True):
    """Checked collectives, round after round, for so long. longest_s: a row that takes longer is left out."""

    seconds: float
    longest_s: float = 2.0


class Injection(Struct, frozen=True, kw_only=True):
    """A fault that the user wants to see. seconds: by how much later, of a link for each MiB that is sent over it;
    iteration: the first that it hits.

    corrupt: in the results of `op`. nodes: of a slow link.
    """

    kind: Literal["slow-rank", "slow-link", "corrupt", "hang", "crash"] | TrainingFault
    rank: int = -1
    nodes: list[str] = []
    seconds: float = 0.0
    iteration: int = 1
    op: Op = "all_reduce"


class TrainingPlan(Struct, frozen=True, kw_only=True):
    """A small DDP training run. model, data: a built-in name, or MODULE:FACTORY of the user; loss, step, save and
    load: the user's functions.

    directory: where the user's modules are looked for, and where checkpoints go unless checkpoints says so; batch:
    samples per rank and micro-batch; accumulate: micro-batches a step. save_bytes: how much the sharded save may
    write; parameters: of the model that a save is forecast for; timeout_s: of the process group there.
    spawned: model and data are weighed as arguments of mp.spawn would be.
    resume: this job goes on from the checkpoint that the one before left in `run_folder`.
    """

    model: str = "transformer"
    model_kwargs: dict[str, Any] = {}
    data: str = ""
    data_kwargs: dict[str, Any] = {}
    loss: str = ""
    step: str = ""
    save: str = ""
    load: str = ""
    directory: str = "."
    checkpoints: str = ""
    run_folder: str = ""
    steps: int = 20
    batch: int = 8
    accumulate: int = 1
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    strategy: Literal["ddp", "fsdp", "zero3"] = "ddp"
    find_unused: bool = False
    budget_s: float = 20.0
    save_bytes: int = 64 * 2**20
    parameters: float = 0.0
    timeout_s: float = 600.0
    kill: bool = True
    spawned: bool = False
    resume: bool = False


class DataPlan(Struct, frozen=True, kw_only=True):
    """What one node's examiner does with the user's dataset. factory: MODULE:NAME or path/to/file.py:NAME.

    directory: on sys.path of the children that run the user's code, and only there. budget_s: for everything after
    the factory; factory_s: limit of the factory itself. ranks: world size to emulate; first_rank: of this node.
    workers: processes at once; need: samples a second that the GPU takes; seed: of every reseeding.
    scratch: each node's own folder of this run, where it writes meanwhile; none: the temporary directory.
    """

    factory: str
    kwargs: dict[str, Any] = {}
    directory: str = "."
    node: str = ""
    node_index: int = 0
    nodes: int = 1
    ranks: int = 2
    ranks_per_node: int = 1
    budget_s: float = 30.0
    factory_s: float = 300.0
    workers: int = 4
    need: float = 0.0
    seed: int = 11
    scratch: str = ""


class JobPlan(Struct, frozen=True, kw_only=True):
    """The parts of the job, in the order in which they run; None: not asked for.

    diagnostics_s: limit of NCCL's own diagnostics, which come before all; 0: this NCCL has none.
    apart: no world is formed; only what needs none is measured: pairs and groups.
    """

    diagnostics_s: float = 0.0
    speed: SpeedPlan | None = None
    collectives: CollectivePlan = CollectivePlan(rows=[])
    soak: SoakPlan | None = None
    pairs: PairPlan | None = None
    groups: GroupPlan | None = None
    apart: bool = False
    training: TrainingPlan | None = None
    injected: list[Injection] = []


@dataclass(frozen=True)
class Context:
    """Handed to a part by worker.py; a part imports nothing above `probes`.

    node_of: the node of each rank of the world, by rank (c10d numbers nodes as it likes).
    deadline: time.monotonic() at which the job is ended from outside. step announces what is about to begin
    (before it begins), tick counts progress within it, emit hands over finished measurements (rank 0 hands
    over what is one for all, every rank what is its own). memory watches over this rank's own. done tells that
    this rank has nothing left to tell: however it ends afterwards is no fault. store: where the ranks leave notes
    for each other; None: that of the world.
    """

    rank: int
    local_rank: int
    world_size: int
    node: str
    node_of: Sequence[str]
    nodes: int
    backend: str
    device: torch.device
    plan: JobPlan
    deadline: float
    step: Callable[[str], None]
    tick: Callable[[], None]
    emit: Callable[[Measurements], None]
    done: Callable[[], None]
    memory: MemoryWatch
    store: Any = None
