"""Words of torch, launchers and Slurm around NCCL: its last error, addresses that are none, who ended the job."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged, parsed, raised

_HEAD = "[rank1]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"  # noqa: E501


def _findings(code: str, text: str) -> list[tuple[str, str | None, int | None]]:
    return [(finding.what, finding.where.node, finding.where.rank) for finding in judged(text)[code].findings]


def _causes(text: str) -> dict[str, str]:
    """Without LOG001, which says that there was a failure, whatever its cause."""
    return {code: state for code, state in raised(text).items() if code != "LOG001"}


def test_an_unknown_text_below_last_error_is_a_warning_of_nccl() -> None:
    text = f"{_HEAD}[rank1]: Last error:\n[rank1]: Frobnication of the crossbar failed\n"
    (event,) = [event for event in parsed(text).events if event.line == 3]
    assert (event.text, event.rank, event.level) == ("Frobnication of the crossbar failed", 1, "WARN")
    assert raised(text) == {"LOG001": "fail", "LOG189": "fail"}


@pytest.mark.parametrize(
    "below",
    [
        "[rank1]: \n[rank1]: something else\n",
        "[rank1]: Exception raised from getNCCLComm at ProcessGroupNCCL.cpp:2300\n",
        "[rank2]: a line of another rank\n",
    ],
)
def test_an_empty_last_error_and_another_ranks_line_are_no_warning(below: str) -> None:
    events = parsed(f"{_HEAD}[rank1]: Last error:\n{below}").events
    assert [event.sign for event in events if event.sign == "nccl-warning"] == []


def test_a_segment_that_could_not_be_created_is_full_unless_a_refusal_is_told() -> None:
    segment = "Error while creating shared memory segment /dev/shm/nccl-K2rqhD (size 9637888)\n"
    assert _causes(segment) == {"LOG050": "fail"}
    assert _causes(f"Last error:\n{segment}") == {"LOG050": "fail"}
    refused = "a:1:1 [0] include/shm.h:26 NCCL WARN Call to shm_open failed : Permission denied\n"
    assert "LOG050" not in _causes(refused + segment)


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("", "empty"),
        ("15", "bare number 15"),
        ("255.255.255.0", "netmask"),
        ("gpu-[01-04]", "a list of hosts"),
        ("0.0.0.0", "0.0.0.0"),
        ("10.0.0.1 ", "no name of a host"),
    ],
)
def test_a_master_address_that_is_none(host: str, words: str) -> None:
    text = f"[E socket.cpp:1011] [c10d] The client socket has timed out after 60000ms while trying to connect to ({host}, 29500).\n"  # noqa: E501
    ((what, _, _),) = _findings("LOG170", text)
    assert words in what
    assert "LOG020" not in raised(text)


@pytest.mark.parametrize("host", ["10.0.3.17", "gpu-a17", "gpu-a17.cluster.local", "fe80::1"])
def test_a_usual_master_address_is_one(host: str) -> None:
    text = f"[E socket.cpp:1011] [c10d] The client socket has timed out after 60000ms while trying to connect to ({host}, 29500).\n"  # noqa: E501
    assert "LOG170" not in raised(text)


def test_mpirun_names_rank_host_and_signal() -> None:
    text = "mpirun noticed that process rank 3 with PID 4711 on node gpu-a18 exited on signal 9 (Killed).\n"
    ((what, node, rank),) = _findings("LOG093", text)
    assert (node, rank) == ("gpu-a18", 3)
    assert "killed" in what


def test_a_node_that_failed_is_named_not_the_one_that_reports_it() -> None:
    report = "slurmstepd: error: *** STEP 4711.0 ON gpu-a17 CANCELLED AT 2026-03-01T10:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"  # noqa: E501
    assert _findings("LOG109", report)[0][1] is None
    assert _findings("LOG109", report + "srun: error: Node failure on gpu-a18\n")[0][1] == "gpu-a18"


def test_a_preemption_is_no_failure_of_the_job() -> None:
    text = "slurmstepd: error: *** STEP 4711.0 ON gpu-a17 CANCELLED AT 2026-03-01T10:00:00 DUE TO PREEMPTION ***\n"
    assert raised(text) == {"LOG006": "fail"}


def test_what_rccl_says_on_a_sound_host_is_a_note() -> None:
    warn = "mi01:311:340 [0] /src/init.cc:142 NCCL WARN "
    text = (
        f"{warn}NUMA auto balancing enabled which can lead to variability in the RCCL performance!\n"
        f'{warn}Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!\n'
        f'{warn}Missing "HSA_FORCE_FINE_GRAIN_PCIE=1" from environment which can lead to low RCCL performance\n'
    )
    assert raised(text) == {}
    assert judged(text)["LOG076"].state.value == "note"


def test_nvls_that_is_refused_calls_two_different_people() -> None:
    bind = "{host}:1:2 [0] transport/nvls.cc:254 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 4194304 : CUDA error {error}.\n"  # noqa: E501
    state, argument = "401 'the operation cannot be performed in the present state'", "1 'invalid argument'"
    assert _causes(bind.format(host="h100-1", error=state)) == {"LOG054": "fail"}
    assert _causes(bind.format(host="6f1c2ab77d10", error=state)) == {"LOG054": "fail"}
    assert _causes(bind.format(host="6f1c2ab77d10", error=argument)) == {"LOG074": "fail"}
    assert _causes(bind.format(host="h100-1", error=argument)) == {"LOG054": "fail"}


def test_a_rank_that_works_alone_explains_the_others_wait() -> None:
    wait = "[rank1]:[E ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"  # noqa: E501
    frame = '[rank0]:   File "/opt/datasets/load.py", line 2132, in load_dataset\n'
    ((what, _, rank),) = _findings("LOG171", wait + frame)
    assert rank == 0
    assert "load_dataset" in what
    assert "LOG171" not in raised(frame)
    assert "LOG171" not in raised(wait + frame.replace("[rank0]", "[rank1]"))
    bar = "Map (num_proc=16):  12%|#2        | 12000/100000 [10:00<1:12:00, 20.1 examples/s]\n"
    assert "LOG171" in raised(bar + wait)
    assert "LOG171" not in raised(bar.replace(" 12%", "100%") + wait)
    assert "LOG171" not in raised(bar + "step 1200 loss 1.80 lr 3e-4\n" + wait)
