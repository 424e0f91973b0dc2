"""What a node of a join takes from node rank 0: orders to measure, and of code only what its own command names.

Whoever answers on the port of the meeting must not choose what runs here. So the user's dataset, model and loss
are those that were typed on this node; the folders are below its own; a variable for the ranks is a setting of
NCCL or its like that names no file and no library; addresses, ids and numbers have their form and their limits.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from ncclcheck.base import wire
from ncclcheck.base.errors import UsageError
from ncclcheck.launch.joining.trust import secret
from ncclcheck.probes.facts import replace
from ncclcheck.probes.job.context import DataPlan, JobPlan, TrainingPlan
from ncclcheck.run.plan import smoke_plan
from ncclcheck.run.plan.starts import JobStart

T = TypeVar("T", DataPlan, JobPlan)
_RUN_ID = re.compile(r"ncclcheck-\d{1,10}-\d{1,20}")
_HOST = re.compile(r"[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(?:%[\w.-]{1,15})?|[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_ENDPOINT = re.compile(rf"(?:\[({_HOST.pattern})\]|[A-Za-z0-9][A-Za-z0-9._-]{{0,252}}):\d{{1,5}}")
_SETTING = re.compile(r"(?:NCCL|GLOO|OMP|TORCH|PYTORCH|CUDA|FI|OFI_NCCL|UCX)_[A-Z0-9_]{1,60}")
_LOADS = re.compile(r"PLUGIN|FILE|PATH|DIR|LIB|LOAD|MODULE|EXEC|IMPORT|TRACE|DUMP|COMM_ID|HOSTID")
_READ_ONLY = {"NCCL_TOPO_FILE"}  # read as a description of the machine, never loaded (nccl: graph/topo.cc)
_TOKEN = re.compile(r"[0-9a-f]{32}")
_VALUE = re.compile(r"[ -~]{0,1024}")
LEAST_PORT = 1024  # below it are the ports of the system's own services: no node of a job listens there
_MOST_RANKS = 64  # on a node, where neither the command line nor its cores say more: no machine has more GPUs
# Of a training: what each node has for itself, or the run decides.
_ITS_OWN = ("directory", "run_folder", "resume")


class NotOurs(ValueError):
    """An order that this node's own command line does not cover; the text says what it asks for."""


@dataclass(frozen=True)
class OwnCommand:
    """What was typed on this node. training, data: what is trained and examined; None: nothing is.

    settings: variables that were typed with their values. begin: how ranks are started and find each other.
    seconds: the deadline.
    """

    training: TrainingPlan | None = None
    data: DataPlan | None = None
    nproc_per_node: int | None = None
    injected: bool = False
    settings: tuple[str, ...] = ()
    begin: JobStart = field(default_factory=JobStart)
    seconds: float = 0.0

    @property
    def user_code(self) -> list[str]:
        """The user's own modules that it names."""
        trained = [self.training.model, self.training.data, self.training.loss] if self.training else []
        return [name for name in (*trained, self.data.factory if self.data else "") if ":" in name]

    def refuse_without(self, of_join: secret.Secret) -> None:
        """The user's own code runs by a join only among nodes that know each other. Raises UsageError."""
        if of_join.kind == "none" and self.user_code:
            raise UsageError(
                f"{self.user_code[0]}: your own code is run by a join only where the nodes know each other; "
                f"{secret.HOW_TO}; or start it with --hosts or in Slurm"
            )

    def taken(self, order: wire.FromLauncher, of_join: secret.Secret) -> wire.FromLauncher:
        """What this node does of an order of node rank 0. Raises NotOurs."""
        if isinstance(order, wire.Examine):
            return self._examine(order, of_join)
        if isinstance(order, wire.StartJob):
            return self._job(order, of_join)
        if isinstance(order, wire.Listen):
            return replace(order, address=_address(order.address))
        if isinstance(order, wire.ReachPeers):
            return replace(order, seconds=self._limited(order.seconds))
        if isinstance(order, wire.KnockOrder):
            return self._knock(order)
        if isinstance(order, wire.InitOrder):
            return self._init(order)
        if isinstance(order, (wire.InitLook, wire.Alive, wire.Halt, wire.Stop)):
            return order
        raise NotOurs(f"for {type(order).__name__}, which no node of a join does")

    def _init(self, order: wire.InitOrder) -> wire.InitOrder:
        """The very place that was typed here: nobody chooses a port or a file of this host."""
        if not order.url or order.url != self.begin.url or not _TOKEN.fullmatch(order.token):
            raise NotOurs(f"to try {order.url[:80]!r}, which this node's command does not name")
        return replace(order, seconds=self._limited(order.seconds))

    def _begins_as_typed(self, order: wire.StartJob) -> bool:
        """A second job has a file of its own: the first one's name and the time."""
        more = r"(?:\.\d{1,20})?" if self.begin.init == "file" else ""
        typed = re.fullmatch(re.escape(self.begin.url) + more, order.init_method)
        return order.start == self.begin.start and typed is not None

    def _knock(self, order: wire.KnockOrder) -> wire.KnockOrder:
        """A few ports that no service of the system has: nobody may search the network from here."""
        if len(order.doors) > wire.MOST_KNOCKS or any(door.tcp_port < LEAST_PORT for door in order.doors):
            raise NotOurs(f"to connect to {len(order.doors)} ports that no node of a job has open")
        for door in order.doors:
            _address(door.address)
        return replace(order, seconds=self._limited(order.seconds))

    def _examine(self, order: wire.Examine, of_join: secret.Secret) -> wire.Examine:
        asked = _decoded(order.plan, DataPlan)
        if self.data is None or (asked.factory, asked.kwargs) != (self.data.factory, self.data.kwargs):
            raise NotOurs(f"to examine {asked.factory!r}, which this node's command does not name")
        _trusted(of_join)
        own = replace(
            self.data,
            node=asked.node,
            node_index=asked.node_index,
            nodes=asked.nodes,
            ranks=min(8, asked.ranks),
            ranks_per_node=asked.ranks_per_node,
            workers=min(64, asked.workers),
        )
        return wire.Examine(plan=msgspec.Raw(msgspec.json.encode(own)), seconds=self._limited(order.seconds))

    def _job(self, order: wire.StartJob, of_join: secret.Secret) -> wire.StartJob:
        if not _RUN_ID.fullmatch(order.run_id) or not _ENDPOINT.fullmatch(order.endpoint):
            raise NotOurs(f"a job named {order.run_id!r} at {order.endpoint!r}")
        most = self.nproc_per_node or max(_MOST_RANKS, os.cpu_count() or 1)
        if not 1 <= order.ranks_per_node <= most or order.backend not in ("gloo", "nccl"):
            raise NotOurs(f"{order.ranks_per_node} ranks of {order.backend!r}; at most {most} are started here")
        if not self._begins_as_typed(order):
            raise NotOurs(
                f"to start ranks by {order.start} at {order.init_method[:80]!r}, which was not typed here"
            )
        for name, value in {**order.env, **dict.fromkeys(order.unset, "")}.items():
            self._check_setting(name, value)
        return replace(
            order,
            local_addr=_address(order.local_addr),
            plan=msgspec.Raw(msgspec.json.encode(self._parts(order, of_join))),
            seconds=self._limited(order.seconds),
        )

    def _parts(self, order: wire.StartJob, of_join: secret.Secret) -> JobPlan:
        parts = _decoded(order.plan, JobPlan)
        if parts.injected and not self.injected:
            raise NotOurs(f"the fault {parts.injected[0].kind!r}, which this node's command does not inject")
        if parts.training is None:
            return parts
        own = self.training
        if own is None:
            raise NotOurs("to train, which this node's command does not")
        for name in set(TrainingPlan.__struct_fields__) - set(_ITS_OWN):
            wanted, here = getattr(parts.training, name), getattr(own, name)
            if wanted != here:
                raise NotOurs(f"to train with {name} {wanted!r}, where this node's command says {here!r}")
        if self.user_code:
            _trusted(of_join)
        folder = smoke_plan.run_folder(own, order.run_id)
        return replace(parts, training=replace(own, run_folder=folder, resume=parts.training.resume))

    def _check_setting(self, name: str, value: str) -> None:
        if f"{name}={value}" in self.settings:
            return
        loads = _LOADS.search(name) is not None and name not in _READ_ONLY
        if not _SETTING.fullmatch(name) or loads or not _VALUE.fullmatch(value):
            raise NotOurs(f"the variable {name[:80]!r}, which is no setting that is tuned")
        if "/" in value and name not in _READ_ONLY:
            raise NotOurs(f"{name}={value[:80]!r}, which names a file")

    def _limited(self, seconds: float) -> float:
        return max(0.1, min(seconds, self.seconds))


def _trusted(of_join: secret.Secret) -> None:
    if of_join.kind == "none":
        raise NotOurs("to run your own code, though this join has no secret")


def _address(text: str) -> str:
    """An address or a host name. Raises NotOurs."""
    if not _HOST.fullmatch(text):
        raise NotOurs(f"the address {text[:80]!r}, which is none")
    return text


def _decoded(plan: msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(plan, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NotOurs(f"a plan that cannot be read: {error}") from None
