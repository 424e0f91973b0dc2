"""What a node of a join takes from node rank 0, and what it refuses: orders to run or touch what nobody typed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ncclcheck.base import wire
from ncclcheck.base.errors import UsageError
from ncclcheck.launch.joining.trust.secret import NO_SECRET, Secret
from ncclcheck.probes.facts import replace
from ncclcheck.probes.job.context import CollectivePlan, DataPlan, Injection, JobPlan, Row, TrainingPlan
from ncclcheck.reports.subjects.nccl.variables import reference
from ncclcheck.run.own_command import NotOurs, OwnCommand
from ncclcheck.run.plan import data_plan, preflight_plan, smoke_plan
from ncclcheck.run.plan.data_plan import DataOptions
from ncclcheck.run.plan.preflight_plan import PreflightOptions
from ncclcheck.run.plan.smoke_plan import SmokeOptions
from ncclcheck.run.plan.starts import JobStart

SECRET = Secret("secret", b"0123456789abcdef")
RUN_ID = "ncclcheck-12-1700000000000000000"


def _own(data: str = "", **smoke: Any) -> OwnCommand:
    return OwnCommand(
        training=smoke_plan.training(SmokeOptions(**smoke), directory="/here"),
        data=data_plan.named(DataOptions(factory=data, kwargs={"n": 1}), directory="/here") if data else None,
        seconds=100,
    )


def _examine(**changes: Any) -> wire.Examine:
    plan = DataPlan(**{"factory": "mine:make", "kwargs": {"n": 1}, "directory": "/evil", "node": "h2", **changes})
    return wire.Examine(plan=msgspec.Raw(msgspec.json.encode(plan)), seconds=1e9)


def _job(parts: JobPlan | None = None, **changes: Any) -> wire.StartJob:
    given: dict[str, Any] = {
        "run_id": RUN_ID, "endpoint": "10.0.0.1:4000", "is_host": False, "local_addr": "10.0.0.2", "nodes": 2,
        "ranks_per_node": 2, "backend": "gloo", "env": {}, "seconds": 20.0,
        "plan": msgspec.Raw(msgspec.json.encode(parts or JobPlan())),
    }  # fmt: skip
    return wire.StartJob(**{**given, **changes})


def _training(**changes: Any) -> JobPlan:
    return JobPlan(training=replace(smoke_plan.training(SmokeOptions(), directory="/evil"), **changes))


def _plan(order: wire.FromLauncher, kind: type[Any]) -> Any:
    assert isinstance(order, (wire.StartJob, wire.Examine))
    return msgspec.json.decode(order.plan, type=kind)


def test_the_own_dataset_is_examined_in_the_own_folder() -> None:
    taken = _own("mine:make").taken(_examine(), SECRET)
    assert isinstance(taken, wire.Examine)
    plan = _plan(taken, DataPlan)
    assert (plan.factory, plan.directory, plan.node, taken.seconds) == ("mine:make", "/here", "h2", 100)


@pytest.mark.parametrize(
    ("data", "changes"),
    [
        ("", {}),
        ("mine:make", {"factory": "os:system", "kwargs": {"command": "id"}}),
        ("mine:make", {"kwargs": {}}),
    ],
)
def test_no_other_dataset_is_examined(data: str, changes: dict[str, Any]) -> None:
    with pytest.raises(NotOurs, match=r"to examine '(os:system|mine:make)'"):
        _own(data).taken(_examine(**changes), SECRET)


def test_without_a_secret_no_code_of_the_user_runs() -> None:
    with pytest.raises(NotOurs, match="no secret"):
        _own("mine:make").taken(_examine(), NO_SECRET)
    with pytest.raises(NotOurs, match="no secret"):
        _own(model="mine:net").taken(_job(_training(model="mine:net")), NO_SECRET)
    for own in (_own("mine:make"), _own(model="mine:net"), _own(data="", loss="mine:loss")):
        with pytest.raises(UsageError, match=r"^mine:\w+: your own code is run by a join only where"):
            own.refuse_without(NO_SECRET)
        own.refuse_without(SECRET)
    _own().refuse_without(NO_SECRET)


def test_the_own_training_is_run_below_the_own_folder() -> None:
    for plan in (_training(), _training(run_folder="/etc", resume=True)):
        taken = _plan(_own().taken(_job(plan), NO_SECRET), JobPlan).training
        assert (taken.directory, taken.run_folder) == ("/here", f"/here/ncclcheck-smoke-{RUN_ID}")
        assert taken.resume is plan.training.resume  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "os:abort"},
        {"data": "evil.py:make"},
        {"loss": "x:y"},
        {"model_kwargs": {"a": 1}},
        {"steps": 10**9},
        {"save_bytes": 10**15},
        {"checkpoints": "/etc"},
    ],
)
def test_no_other_training_is_run(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(NotOurs, match=f"to train with {name} "):
        _own().taken(_job(_training(**changes)), SECRET)


def test_who_only_measures_trains_nothing() -> None:
    with pytest.raises(NotOurs, match="to train"):
        OwnCommand(seconds=10).taken(_job(_training()), SECRET)


def test_a_measurement_is_taken_as_it_is() -> None:
    parts = JobPlan(collectives=CollectivePlan(rows=[Row(op="all_reduce", bytes=1024)]))
    order = _job(parts, env={"OMP_NUM_THREADS": "1", "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}, unset=["NCCL_ALGO"])
    assert OwnCommand(seconds=100).taken(order, NO_SECRET) == order


@pytest.mark.parametrize(
    "changes",
    [
        *({"env": {name: "x"}} for name in ("LD_PRELOAD", "PATH", "PYTHONPATH", "HOME", "nccl_x")),
        *({"env": {name: "x"}} for name in ("NCCL_NET_PLUGIN", "NCCL_CONF_FILE", "CUDA_INJECTION64_PATH")),
        *({"env": {name: "x"}} for name in ("OMP_TOOL_LIBRARIES", "NCCL_DEBUG_FILE", "NCCL_COMM_ID")),
        {"env": {"NCCL_NET": "/tmp/evil.so"}},
        {"env": {"NCCL_ALGO": "a\nb"}},
        {"unset": ["PATH"]},
        {"run_id": "--help"},
        {"run_id": "ncclcheck-1-1/../../etc"},
        {"endpoint": "evil host:1"},
        {"endpoint": "-x"},
        {"local_addr": "--rdzv-conf=x"},
        {"ranks_per_node": 100_000},
        {"ranks_per_node": 0},
        {"backend": "mpi"},
        {"plan": msgspec.Raw(b'{"collectives": 1}')},
        {"plan": msgspec.Raw(msgspec.json.encode(JobPlan(injected=[Injection(kind="crash", rank=0)])))},
    ],
)
def test_an_order_that_nobody_typed_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(NotOurs):
        OwnCommand(seconds=100).taken(_job(**changes), SECRET)


def test_what_was_typed_here_is_taken() -> None:
    own = OwnCommand(settings=("NCCL_NET_PLUGIN=aws",), nproc_per_node=200, injected=True, seconds=100)
    crash = JobPlan(injected=[Injection(kind="crash", rank=0)])
    order = _job(crash, env={"NCCL_NET_PLUGIN": "aws"}, ranks_per_node=200, seconds=500.0)
    taken = own.taken(order, SECRET)
    assert isinstance(taken, wire.StartJob)
    assert (taken.env, taken.seconds) == ({"NCCL_NET_PLUGIN": "aws"}, 100)


def test_every_setting_that_we_recommend_may_be_tried() -> None:
    """Those that load or write something are refused; of what is left, none is a variable of the system."""
    refused = []
    for name in reference():
        try:
            OwnCommand(seconds=100).taken(_job(env={name: "1"}), SECRET)
        except NotOurs:
            refused.append(name)
    assert {"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_TOPO_FILE", "NCCL_P2P_NET_CHUNKSIZE"}.isdisjoint(refused)
    assert {"NCCL_NET_PLUGIN", "NCCL_CONF_FILE", "LD_LIBRARY_PATH"} & set(reference()) <= set(refused)


def test_what_is_no_known_order_is_refused() -> None:
    for order in (wire.Alive(), wire.Halt(), wire.Stop()):
        assert OwnCommand(seconds=1).taken(order, NO_SECRET) is order
    with pytest.raises(NotOurs, match="for Bye"):
        OwnCommand(seconds=1).taken(wire.Bye(), NO_SECRET)  # type: ignore[arg-type]


def test_the_parts_of_preflight_are_all_named() -> None:
    wanted = PreflightOptions(level="quick", data="mine:make", data_kwargs={"n": 1})
    own = OwnCommand(
        training=smoke_plan.training(preflight_plan.smoke(wanted), directory="/here"),
        data=data_plan.named(preflight_plan.data(wanted), directory="/here"),
        seconds=600,
    )
    assert isinstance(own.training, TrainingPlan)
    assert own.user_code == ["mine:make"]
    assert own.taken(_examine(), SECRET)


TYPED = OwnCommand(begin=JobStart("spawn", "file", "file:///shared/init"), seconds=100)
TOKEN = "0123456789abcdef" * 2


def _init(url: str = "file:///shared/init", token: str = TOKEN) -> wire.InitOrder:
    return wire.InitOrder(url=url, token=token, hosts=False, seconds=1e9)


def test_the_typed_init_method_is_tried_for_a_while() -> None:
    taken = TYPED.taken(_init(), SECRET)
    assert isinstance(taken, wire.InitOrder)
    assert (taken.url, taken.token, taken.seconds) == ("file:///shared/init", TOKEN, 100)


@pytest.mark.parametrize(
    ("own", "order"),
    [
        (TYPED, _init("file:///etc/cron.d/x")),
        (TYPED, _init("file:///shared/init.2")),
        (TYPED, _init("tcp://10.0.0.1:22")),
        (TYPED, _init(token="")),
        (TYPED, _init(token="../" * 10 + "xx")),
        (TYPED, _init(token=TOKEN.upper())),
        (TYPED, _init(token=TOKEN + "\n")),
        (OwnCommand(seconds=100), _init("tcp://10.0.0.1:22")),
        (OwnCommand(seconds=100), _init("")),
    ],
)
def test_no_other_place_is_tried(own: OwnCommand, order: wire.InitOrder) -> None:
    with pytest.raises(NotOurs):
        own.taken(order, SECRET)


@pytest.mark.parametrize("url", ["file:///shared/init", "file:///shared/init.1795520000000000000"])
def test_ranks_begin_as_typed(url: str) -> None:
    assert TYPED.taken(_job(start="spawn", init_method=url), SECRET)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"start": "spawn"},
        {"start": "torchrun", "init_method": "file:///shared/init"},
        {"start": "spawn", "init_method": "file:///shared/init.2/../../etc/x"},
        {"start": "spawn", "init_method": "file:///sharedXinit"},
        {"start": "spawn", "init_method": "tcp://10.0.0.1:4000"},
        {"start": "torchrun", "init_method": ".2"},
    ],
)
def test_ranks_begin_in_no_other_way(changes: dict[str, Any]) -> None:
    with pytest.raises(NotOurs, match="to start ranks by"):
        TYPED.taken(_job(**changes), SECRET)
    if changes:
        with pytest.raises(NotOurs, match="to start ranks by"):
            OwnCommand(seconds=100).taken(_job(**changes), SECRET)
