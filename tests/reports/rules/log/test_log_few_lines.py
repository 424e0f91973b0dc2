"""Lines that stand alone, as people post them: what each of them says without the lines around it."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged, raised


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (
            "[13850.912648] amdgpu 0000:1c:00.0: {1}uncorrectable hardware error(ERREVENT) detected!",
            "LOG067",
        ),  # ROCm/legacy-rocm-build#4021
        ("Test HIP failure common.cu:1129 'hipErrorInvalidDevice'", "LOG058"),  # ROCm/rccl-tests#16
        ("Cannot retrieve Static function, error: 218", "LOG064"),  # ROCm/rocm-systems#2805
        ("MisconfigurationException('You requested gpu: [0, 1, 2, 3]", "LOG058"),  # pytorch-lightning#16828
        ("usage: train.py [-h] --conf CONF [--local_rank LOCAL_RANK]", "LOG164"),
        (" | 512/2048 [30:09<33:25, 9.3 it/s]Traceback (most recent call last):", "LOG001"),
    ],
)
def test_a_line_alone(line: str, code: str) -> None:
    assert raised(f"{line}\n").get(code) == "fail"


def test_a_help_text_is_no_refusal() -> None:
    assert "LOG164" not in raised("usage: train.py [-h] --conf CONF\n\noptions:\n  -h, --help  show this help\n")


def test_the_form_of_the_local_rank_is_named() -> None:
    text = "If your script expects `--local-rank` argument to be set, please\n"
    text += "usage: t.py [-h] [--local_rank LOCAL_RANK]\n"
    assert "--local-rank" in judged(text)["LOG164"].findings[0].why


def test_a_read_only_file_system_is_a_risk_until_the_job_ended() -> None:
    line = "Warning: no lock for /scratch/run: [Errno 30] Read-only file system: '/scratch'\n"
    assert raised(line).get("LOG190") == "warn"
    assert raised(f"{line}Error executing job with overrides: ['nodes=2']\n").get("LOG190") == "fail"
    assert "LOG190" not in raised("OSError: [Errno 30] Read-only file system: '/scratch'\n")


def test_a_socket_that_is_not_connected_is_no_file_system() -> None:
    assert "LOG190" not in raised("closed: [Errno 107] Transport endpoint is not connected\n")


def test_a_container_behind_a_bridge_gets_the_hosts_network() -> None:
    dials = "e57377aacbb6:12:13 [0] misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to 172.17.0.2<38847> "
    dials += "failed : Software caused connection abort\n"
    for text, network in ((dials, True), (dials.replace("e57377aacbb6", "gpu-a17"), False)):
        remedies = str(judged(text)["LOG010"].findings[0].remedies)
        assert ("--network=host" in remedies) is network


def test_a_step_that_asks_for_too_much_is_not_a_machine_without_slurm() -> None:
    line = "srun: error: Unable to create step for job 4711: Requested node configuration is not available\n"
    remedies = str(judged(line)["LOG169"].findings[0].remedies)
    assert "scontrol show job" in remedies
    assert "scontrol ping" not in remedies


def _waits(rank: int, sequence: int, operation: str) -> str:
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:828] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={sequence}, OpType={operation}, Timeout(ms)=1800000) ran for 1802710 milliseconds "
        "before timing out.\n"
    )


def test_other_operations_lead_with_other_branches() -> None:
    text = _waits(0, 40, "ALLREDUCE") + _waits(1, 40, "ALLREDUCE") + _waits(2, 37, "BROADCAST")
    assert "different branches" in judged(text)["LOG082"].findings[0].what
    assert "different branches" not in judged(f"Epoch 3 finished in 812.1 s\n{text}")["LOG082"].findings[0].what


def test_the_analysis_of_the_flight_recorder_is_read() -> None:
    line = "error msg: Culprit rank 1; Error type: COLLECTIVE_STATE_MISMATCH, Expected state: 'scheduled'\n"
    finding = judged(line)["LOG084"].findings[0]  # pytorch/pytorch#151666
    assert finding.where.rank == 1
    assert "collective state mismatch" in finding.what


def test_cuda_is_not_blamed_for_the_room_in_shared_memory() -> None:
    text = (
        "[1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'\n"
        "[1] misc/shmutils.cc:114 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-N (size 96)\n"
    )  # NVIDIA/nccl#1518
    states = raised(text)
    assert "LOG050" in states
    assert "LOG186" not in states


def test_loopback_is_blamed_where_connections_are_refused_again_and_again() -> None:
    head = "gpu-a17:11:11 [0] NCCL INFO Bootstrap : Using [0]lo:127.0.0.1<0>\n"
    again = "gpu-a17:11:12 [0] NCCL INFO Call to connect returned Connection refused, retrying\n"
    assert raised(head + 3 * again).get("LOG011") == "fail"  # pytorch/pytorch#52916
    assert "LOG011" not in raised(head + again)
