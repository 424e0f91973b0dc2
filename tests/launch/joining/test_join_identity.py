"""Who a process is in a join, from options and variables; what contradicts is named with both values."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.launch.join import line_for_other, wait_of
from ncclcheck.launch.joining.trust.identity import JoinIdentity, identity
from ncclcheck.run.plan.options import Options

TYPED: dict[str, Any] = {"nodes": 2, "node_rank": 1, "rdzv_endpoint": "10.0.0.1:29400"}
MASTER = {"MASTER_ADDR": "a0", "MASTER_PORT": "23456"}
TORCHRUN = {
    **MASTER,
    "TORCHELASTIC_RUN_ID": "r1",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
}
STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "3",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NODELIST": "gpu-a[17-18]",
    "SLURMD_NODENAME": "gpu-a18",
    "SLURM_PROCID": "1",
}
MPI = {
    **MASTER,
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
RAY = {  # ray/train/torch/config.py sets these for every worker
    **MASTER,
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "NODE_RANK": "1",
}
FLUX = {  # flux-environment(7)
    "FLUX_JOB_ID": "f2xhJgZ7",
    "FLUX_JOB_NNODES": "2",
    "FLUX_JOB_SIZE": "8",
    "FLUX_TASK_RANK": "5",
    "FLUX_TASK_LOCAL_ID": "1",
}
PALS = {  # HPE Cray PALS under PBS
    "PALS_RANKID": "5",
    "PALS_LOCAL_RANKID": "1",
    "PALS_NODEID": "1",
    "PMI_SIZE": "8",
    "PMI_LOCAL_SIZE": "4",
}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
TRAIN_JOB = {  # Kubeflow Trainer v2, pkg/runtime/framework/plugins/torch; it knows no number of processes
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "auto",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "gate-node-0-0.gate",
    "PET_MASTER_PORT": "29500",
    "JOB_COMPLETION_INDEX": "1",
}
GROUP = {  # LeaderWorkerSet, pkg/utils/pod
    "LWS_LEADER_ADDRESS": "serve-0.serve.default",
    "LWS_GROUP_SIZE": "2",
    "LWS_WORKER_INDEX": "1",
}
VOLCANO = {  # Volcano's plugins env and svc; the lists end in no comma
    "VC_TASK_INDEX": "1",
    "VK_TASK_INDEX": "1",
    "VC_WORKER_HOSTS": "gate-worker-0.gate,gate-worker-1.gate",
    "VC_WORKER_NUM": "2",
    "VC_MASTER_HOSTS": "gate-master-0.gate",
    "VC_MASTER_NUM": "1",
}


def _who(env: dict[str, str], host: str = "host", **options: Any) -> JoinIdentity | None:
    return identity(Options(command="env", **options), env, host)


@pytest.mark.parametrize(
    ("env", "options", "rank", "nodes", "local", "each"),
    [
        ({}, TYPED, 1, 2, 0, None),
        ({"RANK": "0", "WORLD_SIZE": "2", **MASTER}, TYPED, 1, 2, 0, None),
        (TORCHRUN, {}, 1, 2, 1, 4),
        ({**TORCHRUN, "LOCAL_RANK": "0", "RANK": "4"}, {}, 1, 2, 0, 4),
        ({**MASTER, "RANK": "1", "WORLD_SIZE": "2"}, {}, 1, 2, 0, None),
        ({**MASTER, "RANK": "1", "WORLD_SIZE": "8", "PET_NPROC_PER_NODE": "4"}, {}, 1, 2, 0, 4),
        ({**MASTER, "RANK": "1", "WORLD_SIZE": "8"}, {"nodes": 2}, 1, 2, 0, 4),
        ({**MASTER, "RANK": "1", "WORLD_SIZE": "8"}, {}, 1, 8, 0, None),
        ({**MASTER, "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, {}, 1, 2, 1, 4),
        ({**MASTER, "PET_NODE_RANK": "1", "PET_NNODES": "2", "WORLD_SIZE": "8"}, {}, 1, 2, 0, None),
        ({**MASTER, "PET_NODE_RANK": "1", "PET_NNODES": "2:2"}, {}, 1, 2, 0, None),
        ({"PET_RDZV_ENDPOINT": "w-0", "PET_NODE_RANK": "1", "PET_NNODES": "2"}, {}, 1, 2, 0, None),
        (
            {"PET_MASTER_ADDR": "w-0", "PET_MASTER_PORT": "29400", "PET_NODE_RANK": "0"},
            {"nodes": 3},
            0,
            3,
            0,
            None,
        ),
        (STEP, {}, 1, 2, 0, None),
        (
            {**STEP, "SLURM_LOCALID": "2", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"},
            {},
            1,
            2,
            2,
            4,
        ),
        (MPI, {}, 1, 2, 1, 2),
        ({**MPI, **STEP}, {}, 1, 2, 1, 2),
        (RAY, {}, 1, 2, 1, 4),
        ({**RAY, "PET_NODE_RANK": "1", "PET_NNODES": "2", "WORLD_SIZE": "2"}, {}, 1, 2, 0, None),
        ({**FLUX, **MASTER}, {}, 1, 2, 1, 4),
        ({**FLUX, **MASTER, **PALS}, {}, 1, 2, 1, 4),  # Cray's plugin for Flux sets PALS_* too
        (
            {**FLUX, **MASTER, "FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": "1", "FLUX_TASK_LOCAL_ID": "0"},
            {},
            1,
            2,
            0,
            None,
        ),
        ({**PALS, **MASTER}, {}, 1, 2, 1, 4),
        ({**HYDRA, **MASTER}, {}, 1, 2, 1, 4),
        ({**STEP, **PALS}, {}, 1, 2, 0, None),  # Slurm's plugin for Cray sets PALS_* too
        (TRAIN_JOB, {}, 1, 2, 0, None),
        ({"JOB_COMPLETION_INDEX": "1"}, {"nodes": 2, "rdzv_endpoint": "gate-0.gate:29500"}, 1, 2, 0, None),
        ({"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", **MASTER}, {}, 1, 2, 0, None),
        (GROUP, {}, 1, 2, 0, None),
        ({**GROUP, **MASTER}, {}, 1, 2, 0, None),
    ],
)
def test_a_place_in_a_join(
    env: dict[str, str], options: dict[str, Any], rank: int, nodes: int, local: int, each: int | None
) -> None:
    who = _who(env, **options)
    assert who is not None
    assert (who.node_rank, who.nodes, who.local_rank, who.ranks_per_node) == (rank, nodes, local, each)
    assert who.is_lead == (rank == 0 and local == 0)


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ({}, {}),
        ({}, {"nodes": 2}),
        ({}, {"nodes": 2, "rdzv_endpoint": "10.0.0.1:29400"}),
        (MASTER, {}),
        ({**MASTER, "WORLD_SIZE": "8"}, {}),
        ({"NODE_RANK": "0"}, {}),
        ({"MASTER_ADDR": "a0", "RANK": "0"}, {"launch": "local"}),
        (TORCHRUN, {"launch": "ssh"}),
        (TORCHRUN, {"hosts": "a,b"}),
        ({**STEP, "SLURM_STEP_ID": "4294967290"}, {}),  # salloc's interactive step
        ({**STEP, "SLURM_STEP_NUM_NODES": "1"}, {}),  # srun -N1 --pty bash
        ({**STEP, "SLURM_PTY_PORT": "40123"}, {}),  # srun -N2 --pty bash
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "NODE_RANK": "0", "WORLD_SIZE": "16", **MASTER}, {}),  # batch
        (
            {
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            },
            {},
        ),
    ],
)
def test_no_join(env: dict[str, str], options: dict[str, Any]) -> None:
    assert _who(env, **options) is None


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        ({}, {"node_rank": 1, "nodes": 2}, "--rdzv-endpoint: is missing"),
        ({}, {"node_rank": 1, "rdzv_endpoint": "a:1"}, "--nodes: is missing"),
        ({}, {**TYPED, "node_rank": 2}, "--node-rank: 2 is out of range; allowed are 0 to 1"),
        ({}, {**TYPED, "rdzv_endpoint": "$(reboot):1"}, "is no host name or address"),
        ({}, {**TYPED, "rdzv_endpoint": "010.077.000.011:29500"}, "without leading zeros"),
        ({}, {**TYPED, "rdzv_endpoint": "167772161:29500"}, "without leading zeros"),
        ({}, {**TYPED, "rdzv_endpoint": "-oProxyCommand=x:1"}, "is no host name"),
        ({}, {"launch": "join"}, "--launch join: nothing says which node this is"),
        ({"MASTER_ADDR": "a0"}, {"node_rank": 0, "nodes": 2}, "MASTER_PORT: is not set"),
        ({**MASTER, "MASTER_PORT": "70000"}, {"node_rank": 0, "nodes": 2}, "MASTER_PORT: '70000' is out of range"),
        (TORCHRUN, {"nodes": 3}, "--nodes: 3 contradicts 2 nodes"),
        ({**TORCHRUN, "RANK": "8"}, {}, "RANK: '8' is out of range; allowed are 0 to 7"),
        (
            {k: v for k, v in TORCHRUN.items() if k != "GROUP_RANK"},
            {},
            "GROUP_RANK: is not set, though TORCHELASTIC",
        ),
        ({**MASTER, "RANK": "2", "WORLD_SIZE": "2"}, {}, "RANK: '2' is out of range; allowed are 0 to 1"),
        ({**MASTER, "RANK": "x", "WORLD_SIZE": "2"}, {}, "RANK: 'x'"),
        ({**MASTER, "RANK": "1", "WORLD_SIZE": "8"}, {"nodes": 3}, "--nodes: 3 contradicts 8 nodes"),
        (
            {**MASTER, "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
            {},
            "LOCAL_RANK: 0",
        ),
        ({**MASTER, "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, {}, "LOCAL_WORLD_SIZE: is not set"),
        ({**MASTER, "PET_NODE_RANK": "0", "PET_NNODES": "many"}, {}, "PET_NNODES: 'many' is not a number"),
        (
            {**MASTER, "PET_NODE_RANK": "0", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "4", "WORLD_SIZE": "6"},
            {},
            "WORLD_SIZE: 6 contradicts PET_NNODES=2; allowed are 2 (pods) or 8 (processes)",
        ),
        (
            {k: v for k, v in MPI.items() if k not in MASTER},
            {},
            "MASTER_ADDR: is not set, and mpirun does not say",
        ),
        ({**MPI, "OMPI_COMM_WORLD_RANK": "2"}, {}, "OMPI_COMM_WORLD_RANK: 2 is local rank 1 of 2"),
        ({**MPI, "OMPI_COMM_WORLD_SIZE": "5"}, {}, "do not share out evenly"),
        (FLUX, {}, "MASTER_ADDR: is not set, and flux run does not say"),
        ({**FLUX, **MASTER, "FLUX_TASK_RANK": "2"}, {}, "FLUX_TASK_RANK: 2 is local rank 1 of 4"),
        (
            {**FLUX, **MASTER, "FLUX_JOB_NNODES": "3"},
            {},
            "FLUX_JOB_SIZE: 8 processes do not share out evenly over 3 nodes",
        ),
        (PALS, {}, "and mpiexec of PALS does not say"),
        ({**PALS, **MASTER, "PALS_RANKID": "8"}, {}, "PALS_RANKID: '8' is out of range; allowed are 0 to 7"),
        (
            {k: v for k, v in PALS.items() if k != "PMI_LOCAL_SIZE"},
            {},
            "PMI_LOCAL_SIZE: is not set, though PALS_RANKID",
        ),
        ({**GROUP, "LWS_WORKER_INDEX": "2"}, {}, "LWS_WORKER_INDEX: '2' is out of range; allowed are 0 to 1"),
        ({**GROUP, "LWS_LEADER_ADDRESS": "$(x)"}, {}, "LWS_LEADER_ADDRESS: '$(x)' is no host name"),
        (VOLCANO, {}, "its host name 'host' is not in VC_MASTER_HOSTS, VC_WORKER_HOSTS"),
    ],
)
def test_what_contradicts_is_named(env: dict[str, str], options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        _who(env, **options)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("env", "host", "rank", "nodes", "first", "port"),
    [
        (GROUP, "serve-0-1", 1, 2, "serve-0.serve.default", 29400),
        ({**GROUP, "MASTER_PORT": "29500"}, "serve-0-1", 1, 2, "serve-0.serve.default", 29500),
        (VOLCANO, "gate-worker-1", 2, 3, "gate-master-0.gate", 29400),
        (VOLCANO, "gate-master-0", 0, 3, "gate-master-0.gate", 29400),
        (
            {k: v for k, v in VOLCANO.items() if "MASTER" not in k},
            "gate-worker-1",
            1,
            2,
            "gate-worker-0.gate",
            29400,
        ),
        (TRAIN_JOB, "gate-node-0-1", 1, 2, "gate-node-0-0.gate", 29500),
    ],
)
def test_pods_meet_at_the_pod_that_their_controller_names(
    env: dict[str, str], host: str, rank: int, nodes: int, first: str, port: int
) -> None:
    who = _who(env, host)
    assert who is not None
    assert (who.node_rank, who.nodes, who.host, who.ports[0]) == (rank, nodes, first, port)


def test_a_pod_of_volcano_without_its_lists_is_no_join() -> None:
    assert _who({"VC_TASK_INDEX": "0"}, "gate-worker-0") is None


def test_how_world_size_was_read_is_said() -> None:
    pods = _who({**MASTER, "RANK": "1", "WORLD_SIZE": "2"})
    processes = _who({**MASTER, "RANK": "1", "WORLD_SIZE": "8", "PET_NPROC_PER_NODE": "4"})
    assert pods is not None
    assert processes is not None
    assert "WORLD_SIZE=2 was read as pods" in pods.chosen_by
    assert "WORLD_SIZE=8 was read as processes" in processes.chosen_by


def test_torchruns_own_port_is_left_alone() -> None:
    who = _who(TORCHRUN)
    assert who is not None
    assert (who.launcher, who.host, who.ports) == ("torchrun", "a0", (23457, 23458, 23459, 23460))


def test_a_step_meets_on_its_first_node_and_on_the_same_port_everywhere() -> None:
    first, second = _who({**STEP, "SLURM_NODEID": "0", "SLURMD_NODENAME": "gpu-a17"}), _who(STEP)
    assert first is not None
    assert second is not None
    assert (first.host, first.ports, first.run_id) == (second.host, second.ports, second.run_id)
    assert (first.host, first.name, second.name) == ("gpu-a17", "gpu-a17", "gpu-a18")
    assert 20_000 <= first.ports[0] < 32_000


@pytest.mark.parametrize(
    ("env", "name"), [({"NODE_NAME": "worker-3"}, "worker-3"), ({"SLURMD_NODENAME": "n1"}, "n1"), ({}, "host")]
)
def test_a_node_has_the_launchers_name(env: dict[str, str], name: str) -> None:
    who = _who(env, **TYPED)
    assert who is not None
    assert who.name == name


@pytest.mark.parametrize(
    ("typed", "host", "shown"),
    [
        ("10.0.0.1:29400", "10.0.0.1", "10.0.0.1:29400"),
        ("[fd00::1]:29400", "fd00::1", "[fd00::1]:29400"),
        ("node-0.example:29400", "node-0.example", "node-0.example:29400"),
    ],
)
def test_endpoints(typed: str, host: str, shown: str) -> None:
    who = _who({}, **{**TYPED, "rdzv_endpoint": typed})
    assert who is not None
    assert (who.host, who.ports[0], who.endpoint) == (host, 29400, shown)


def test_nobody_waits_long_where_nobody_can_come() -> None:
    local, real = _who({}, **{**TYPED, "rdzv_endpoint": "localhost:1"}), _who({}, **TYPED)
    assert local is not None
    assert real is not None
    assert (wait_of(local, None), wait_of(real, None), wait_of(local, 99.0)) == (15.0, 600.0, 99.0)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (
            [
                "/usr/bin/ncclcheck",
                "bench",
                "--nodes",
                "2",
                "--node-rank",
                "0",
                "--rdzv-endpoint",
                "x:1",
                "--quick",
            ],
            "ncclcheck bench --quick --nodes 2 --node-rank 1 --rdzv-endpoint 10.0.0.1:29400",
        ),
        (
            ["/x/ncclcheck/__main__.py", "env", "--node-rank=0", "--nodes=2", "--ignore", "A B"],
            "python -m ncclcheck env --ignore 'A B' --nodes 2 --node-rank 1 --rdzv-endpoint 10.0.0.1:29400",
        ),
    ],
)
def test_the_line_for_the_other_machine(argv: list[str], line: str) -> None:
    assert line_for_other(1, 2, argv, "10.0.0.1", 29400) == line


@pytest.mark.parametrize(("rank_beside", "refused"), [("1", False), ("3", True)], ids=["blocks", "rounds"])
def test_rank_0_sees_by_the_task_beside_it_that_ranks_go_round_the_nodes(rank_beside: str, refused: bool) -> None:
    """Three nodes of two tasks: by their numbers 0 and 3 are in order either way. This process is the launcher."""
    own = {"PMI_RANK": "0", "PMI_SIZE": "6", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", **MASTER}
    program = (
        "import os; from ncclcheck.launch.joining.trust.identity import identity;"
        "from ncclcheck.run.plan.options import Options; print(identity(Options('bench'), os.environ).node_rank)"
    )
    with subprocess.Popen(
        ["sleep", "600"], env={**os.environ, **own, "PMI_RANK": rank_beside, "MPI_LOCALRANKID": "1"}
    ) as beside:
        try:
            done = subprocess.run(
                [sys.executable, "-c", program], env={**os.environ, **own},
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
        finally:
            beside.kill()
    if refused:
        assert "PMI_RANK: 0 is local rank 0 and 3 is local rank 1 of this node, so ranks go round" in done.stderr
        assert "mpiexec -ppn N" in done.stderr
    else:
        assert done.stdout == "0\n", done.stderr
