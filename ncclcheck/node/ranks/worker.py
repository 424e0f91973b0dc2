"""What torchrun starts on every rank: runs the parts of the plan and announces every step before it begins."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ncclcheck.base import defects, raised, wire
from ncclcheck.node.agent_socket import RUN_VARIABLE, Mouth
from ncclcheck.node.ranks.slots import Slots
from ncclcheck.node.ranks.stuck import Still
from ncclcheck.probes.facts import Collective, JobMemory, Measurements, PairTime, RankState, Startup, replace
from ncclcheck.probes.job import warned
from ncclcheck.probes.job.context import Context, GroupPlan, JobPlan
from ncclcheck.probes.machine.process import die_with_parent

if TYPE_CHECKING:
    import torch

    from ncclcheck.probes.job.peers.groups import NextGroups
    from ncclcheck.probes.job.peers.pairs import NextRound
    from ncclcheck.probes.job.usage.memory import MemoryWatch


_LONGEST_ERROR = 4000  # a loader's worker hands over a traceback, and its last line counts
_LEAVING_S = 5.0  # s for the others to have read their last note; chosen
_STILL_S = 8.0  # without progress, until a rank tells where it stands


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent writes into the run folder as plan.json. started: monotonic time of torchrun's start.

    endpoint: MASTER_ADDR:MASTER_PORT where spawn starts the ranks. init_method: empty for env://.
    """

    node: str
    node_index: int
    nodes: int
    ranks_per_node: int
    backend: str
    endpoint: str = ""
    init_method: str = ""
    started: float
    deadline: float
    job: JobPlan


@dataclass(frozen=True)
class RankIdentity:
    """This rank, as torchrun's environment tells it."""

    rank: int
    local_rank: int
    world_size: int

    @classmethod
    def read(cls, env: Mapping[str, str]) -> RankIdentity:
        """From RANK, LOCAL_RANK and WORLD_SIZE. Raises KeyError or ValueError."""
        return cls(int(env["RANK"]), int(env["LOCAL_RANK"]), int(env["WORLD_SIZE"]))


class AgentChannel:
    """The rank's line to its agent: a Unix socket and a slot of counters."""

    def __init__(self, folder: str, plan: WorkerPlan, me: RankIdentity) -> None:
        self._mouth = Mouth(folder)
        self._slot = Slots(f"{folder}/slots", plan.ranks_per_node).writer(me.local_rank, os.getpid())
        self.say = self._mouth.say
        self.state = RankState(rank=me.rank, node=plan.node, local_rank=me.local_rank, pid=os.getpid())
        self._moved, self._trains = time.monotonic(), plan.job.training is not None
        self.say(wire.RankReport(state=self.state))
        threading.Thread(target=self._beat, daemon=True).start()

    def tick(self) -> None:
        """Count one iteration."""
        self._moved = time.monotonic()
        self._slot.tick()

    def step(self, text: str) -> None:
        """Announce what is about to begin."""
        self._moved = time.monotonic()
        self._slot.step()
        self.say(wire.StepNotice(text=text, rank=self.state.rank))

    def phase(self, **changes: object) -> None:
        """Change fields of this rank's state, and send it to the agent."""
        self.state = replace(self.state, **changes)
        self.say(wire.RankReport(state=self.state))

    def emit(self, part: Measurements) -> None:
        """Send measurements to the agent."""
        self.say(wire.RankResult(part=part))

    def _beat(self) -> None:
        """The loop of a thread: writes the time, and sends where the rank stands when it makes no progress."""
        still: Still | None = None
        while True:
            self._slot.beat()
            if time.monotonic() - self._moved < _STILL_S or self.state.phase != "world":
                if self.state.stuck:
                    self.phase(stack=[], stuck=False)
                still = None
            elif (still := still or Still()).look():
                self.phase(stack=still.stack, stuck=still.stuck and self._trains)
            time.sleep(0.5)


def main() -> None:
    """Run this rank to its end. Exit status 1 with the reason told to the agent where something fails."""
    born = time.monotonic()
    die_with_parent()
    folder = os.environ[RUN_VARIABLE]
    with open(f"{folder}/plan.json", "rb") as file:
        plan = msgspec.json.decode(file.read(), type=WorkerPlan)
    me = RankIdentity.read(os.environ)
    link = AgentChannel(folder, plan, me)
    try:
        _run(link, plan, me, born)
    except BaseException as error:
        defect = defects.place(error, users_code=partial(_runs_users_code, plan.job))
        at = raised.place(error) if plan.job.training else ""
        users = bool(at) or (plan.job.training is not None and raised.by_call(error))
        text = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
        users = users and not defect
        link.phase(error=text, defect=defect, users=users, at=at[:300], trace=raised.trace(error) if users else "")
        raise
    link.phase(phase="done")
    if plan.job.apart:
        os._exit(0)  # what gloo has left of a connection that failed ends the process with SIGABRT (torch 2.13)


def _runs_users_code(job: JobPlan) -> bool:
    """Whether the training is of the user's own model, data or loss."""
    if job.training is None:
        return False
    from ncclcheck.probes.training import given  # noqa: PLC0415 - only jobs that train have torch loaded for it

    return not given.is_builtin(job.training)


def _run(link: AgentChannel, plan: WorkerPlan, me: RankIdentity, born: float) -> None:
    _check_world(plan, me)
    link.step("import torch")
    begun = time.monotonic()
    import torch.distributed as dist  # noqa: PLC0415

    from ncclcheck.probes.job.timing import RankPeers  # noqa: PLC0415
    from ncclcheck.probes.job.usage.memory import MemoryWatch  # noqa: PLC0415

    imported = time.monotonic() - begun
    if plan.job.diagnostics_s:
        _diagnose(link, plan)
    device = _device(plan, me)
    memory = MemoryWatch(device)
    memory.mark("before_init")
    if plan.job.apart:
        _apart(link, plan, me, memory, device)
        return
    link.step(f"init_process_group ({plan.backend}{plan.init_method and ', '}{plan.init_method})")
    begun = time.monotonic()
    limit = timedelta(seconds=max(5.0, plan.deadline - begun))
    if plan.init_method:
        dist.init_process_group(
            plan.backend, init_method=plan.init_method, rank=me.rank, world_size=me.world_size, timeout=limit
        )
    else:
        dist.init_process_group(plan.backend, timeout=limit)
    initialised = time.monotonic() - begun
    warned.only_shown()
    _check_members(plan, device)
    link.phase(phase="world")
    context = _context(link, plan, me, memory, device, RankPeers(me.rank, me.world_size, device).texts(plan.node))
    _parts(context, [imported, born - plan.started, initialised])
    link.step("destroy_process_group")
    dist.destroy_process_group()


def _apart(
    link: AgentChannel, plan: WorkerPlan, me: RankIdentity, memory: MemoryWatch, device: torch.device
) -> None:
    """Only the parts that need no world, for it could not be formed: the ranks share a store, and no more."""
    import torch.distributed as dist  # noqa: PLC0415

    from ncclcheck.probes.job.board import Board  # noqa: PLC0415

    link.step("meeting at the store")
    left = max(5.0, plan.deadline - time.monotonic())
    every: Any = dist
    url = plan.init_method or "env://"
    store, _, _ = next(every.rendezvous(url, me.rank, me.world_size, timeout=timedelta(seconds=left)))
    board = Board("nodes", store)
    board.put({str(me.rank): plan.node.encode()})
    keys = [str(rank) for rank in range(me.world_size)]
    nodes = board.read_all(keys, left)
    if missing := [key for key in keys if key not in nodes]:
        raise RuntimeError(f"rank {missing[0]} did not come to the store within {left:.0f} s")
    link.phase(phase="world")
    context = _context(link, plan, me, memory, device, [nodes[key].decode() for key in keys], store)
    _pairs_and_groups(context, [])
    board.put({f"left/{me.rank}": b"1"})
    if me.rank == 0:  # the store may live in this process
        board.read_all([f"left/{key}" for key in keys], _LEAVING_S)


def _diagnose(link: AgentChannel, plan: WorkerPlan) -> None:
    """What NCCL finds out by itself, before this process has touched a GPU; rank 0 hears it."""
    from ncclcheck.probes.job.usage import diagnostics  # noqa: PLC0415

    link.step("NCCL's own diagnostics")
    outcome = diagnostics.run(diagnostics.command(plan.backend), plan.job.diagnostics_s)
    if link.state.rank == 0:
        link.emit(Measurements(diagnostics=outcome))


def _parts(context: Context, seconds: list[float]) -> None:
    """The parts of the plan, in their order. seconds: import, rendezvous and init of this rank."""
    from ncclcheck.probes.job import collectives  # noqa: PLC0415
    from ncclcheck.probes.job.peers import speed  # noqa: PLC0415

    plan = context.plan.training
    if plan and plan.resume:
        _train(context)  # what else there is to tell the job before has told
        return
    context.step("first collective")
    _emit_startup(context, [*seconds, collectives.first_collective(context)])
    begun = time.monotonic()
    context.memory.mark("after_init")
    if context.plan.speed:
        speed.run(context)
    measured = collectives.run(context) if context.plan.collectives.rows else []
    _pairs_and_groups(context, measured)
    interrupt = _train(context) if plan else None
    context.emit(Measurements(memory=JobMemory(ranks=[context.memory.report(context.rank, context.node)])))
    if context.rank == 0:
        context.emit(Measurements(measuring_s=time.monotonic() - begun))
    if interrupt:
        interrupt()  # all is told: the death of a rank that follows is meant


def _pairs_and_groups(context: Context, measured: list[Collective]) -> None:
    """The nodes two by two; then in groups, where every pair is sound and the whole is not."""
    from ncclcheck.probes.job.peers import groups, pairs  # noqa: PLC0415

    nodes, plan = [*pairs.ranks_of(context.node_of)], context.plan
    done = pairs.run(context, _next_round(nodes, plan.pairs.level)) if plan.pairs else []
    if plan.groups:
        begins = plan.groups.always or _whole_is_bad(context, measured, done)
        groups.run(context, _next_groups(nodes, done, plan.groups) if begins else lambda _: [])


def _train(context: Context) -> Callable[[], None] | None:
    """The training smoke run; what kills a rank of it at the end, where that is asked for."""
    from ncclcheck.probes import training  # noqa: PLC0415

    return training.run(context)


def _next_round(nodes: list[str], level: Literal["quick", "full"]) -> NextRound:
    """What decides which pairs come next, asked on rank 0."""
    from ncclcheck.reports.culprit import next_round  # noqa: PLC0415

    return partial(next_round, nodes, level)


def _whole_is_bad(context: Context, measured: list[Collective], done: list[PairTime]) -> bool:
    """Asked on rank 0."""
    from ncclcheck.reports.scale import suspicion  # noqa: PLC0415

    return context.rank == 0 and suspicion.whole_is_bad(measured, done, context.backend)


def _next_groups(nodes: list[str], done: list[PairTime], plan: GroupPlan) -> NextGroups:
    """What decides which groups come next, asked on rank 0; none where a pair explains what is bad."""
    from ncclcheck.reports.scale import search, suspicion  # noqa: PLC0415

    sound = suspicion.pairs_are_sound(done, whole_failed=plan.always)
    return partial(search.next_groups, nodes) if sound else lambda _: []


def _check_world(plan: WorkerPlan, me: RankIdentity) -> None:
    """c10d forms smaller worlds without a word when clocks differ; every rank checks first."""
    planned = plan.nodes * plan.ranks_per_node
    if me.world_size != planned:
        raise RuntimeError(f"torchrun made a world of {me.world_size} ranks, planned are {planned}")


def _check_members(plan: WorkerPlan, device: torch.device) -> None:
    """Every node must be in the world with all of its ranks."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    members = torch.zeros(plan.nodes, dtype=torch.int64, device=device)
    members[plan.node_index] = 1
    dist.all_reduce(members)
    if (counts := members.tolist()) != [plan.ranks_per_node] * plan.nodes:
        raise RuntimeError(f"ranks a node are {json.dumps(counts)}, planned are {plan.ranks_per_node} on each")


def _device(plan: WorkerPlan, me: RankIdentity) -> torch.device:
    import torch  # noqa: PLC0415

    if plan.backend != "nccl":
        return torch.device("cpu")
    torch.cuda.set_device(me.local_rank)
    return torch.device("cuda", me.local_rank)


def _context(
    link: AgentChannel,
    plan: WorkerPlan,
    me: RankIdentity,
    memory: MemoryWatch,
    device: torch.device,
    node_of: list[str],
    store: object = None,
) -> Context:
    return Context(
        rank=me.rank,
        local_rank=me.local_rank,
        world_size=me.world_size,
        node=plan.node,
        node_of=node_of,
        nodes=plan.nodes,
        backend=plan.backend,
        device=device,
        plan=plan.job,
        deadline=plan.deadline,
        step=link.step,
        tick=link.tick,
        emit=link.emit,
        done=partial(link.phase, phase="done"),
        memory=memory,
        store=store,
    )


def _emit_startup(context: Context, seconds: list[float]) -> None:
    """The slowest rank of each phase; reported by rank 0."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    slowest = torch.tensor(seconds, dtype=torch.float64, device=context.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if context.rank == 0:
        imported, rendezvous, init, first = slowest.tolist()
        startup = Startup(import_=imported, rendezvous=rendezvous, init=init, first_collective=first)
        context.emit(Measurements(startup_s=startup))


if __name__ == "__main__":
    main()
