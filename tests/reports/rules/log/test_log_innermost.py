"""Of a wrapper and what it wraps the innermost words are the heading: who failed first, and why."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged

PYXIS = "slurmstepd: error: pyxis: "
WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:474] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, "
    "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=120000) ran for 120621 milliseconds before timing out.\n"
)
STACK = "Abort(37) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:\n"


@pytest.mark.parametrize(
    ("code", "text", "words"),
    [
        (  # what the container's engine says of it, which pyxis hands on indented
            "LOG181",
            f"{PYXIS}container start failed with error code: 1\n{PYXIS}printing enroot log file:\n"
            f"{PYXIS}    [INFO] Extracting\n{PYXIS}    [ERROR] Failed to write the cache of the linker\n"
            f"{PYXIS}    [ERROR] /etc/enroot/hooks.d/87-own.sh exited with return code 1\n"
            f"{PYXIS}couldn't start container\n",
            "Failed to write the cache of the linker",
        ),
        (
            "LOG124",
            f"{STACK}MPIR_Init_thread(159).......: \nMPID_Init(597)..............: \n"
            "MPIR_pmi_kvs_get(227).......: PMI_KVS_Get returned -1\n",
            "did not start: PMI_KVS_Get returned -1",
        ),
        (
            "LOG124",
            f"{STACK}MPIR_Init_thread(176)........: \nMPIDI_OFI_mpi_init_hook(1558):\n",
            "MPIDI_OFI_mpi_init_hook(1558) failed",
        ),
        (
            "LOG124",
            f"{STACK}MPID_Init(395).......: channel initialization failed\n"
            "n10.4711PSM2 can't open hfi unit: -1 (err=23)\n",
            "after it: n10.4711PSM2 can't open hfi unit",
        ),
        (  # a time-out outranks what it ended on other nodes
            "LOG169",
            "srun: error: Task launch for StepId=9.0 failed on node n2: No such process\n"
            "srun: error: Task launch for StepId=9.0 failed on node n1: Socket timed out on send/recv operation\n",
            "Socket timed out",
        ),
        (
            "LOG169",
            "srun: error: CPU binding outside of job step allocation, allocated CPUs are: 0x200000.\n"
            "srun: error: Task launch for StepId=5.0 failed on node n7: Unable to satisfy cpu bind request\n",
            "CPU binding outside of job step allocation",
        ),
        (
            "LOG109",
            "(raylet) The node with node id: 0f2197792 and address: 10.0.0.51 and node name: n51 has been marked "
            "dead because the detector has missed too many heartbeats from it. This can happen when a\n",
            "marked 10.0.0.51 dead: the detector has missed too many heartbeats",
        ),
        (  # its reason stands in the line that tells of the end
            "LOG001",
            'Error: unable to copy from source docker://u/i:1: adding layer with blob "sha256:d5": unpacking '
            "failed (error: exit status 1; output: insufficient UIDs available)\n"
            "srun: error: gpu-a17: task 0: Exited with exit code 125\n",
            "before it: Error: unable to copy from source",
        ),
        (
            "LOG001",
            "[rank0] :UNAVAILABLE:failed to connect to all addresses; last error: UNKNOWN:\n"
            "ipv4:10.1.2.3:13305: Failed to connect to remote host: Connection refused\n"
            "[rank3] WatchTasksAsync failed for task 3: UNAVAILABLE: failed to connect to all addresses\n",
            "10.1.2.3:13305: Failed to connect to remote host: Connection refused",
        ),
        (
            "LOG006",
            "=>> PBS: job killed: walltime 259217 exceeded limit 259200\n",
            "PBS ended the job at its time limit",
        ),
        ("LOG006", "TERM_RUNLIMIT: job killed after reaching LSF run time limit.\n", "LSF ended the job"),
        (
            "LOG124",
            f"{STACK}MPIDI_OFI_mpi_init_hook(1554):\n(unknown)(): Other MPI error\n",
            "MPIDI_OFI_mpi_init_hook(1554) failed",
        ),
        (
            "LOG004",
            "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64\n"
            "EJ0001: Failed to initialize the HCCP process. Reason: Maybe the last training process is running.\n",
            "Maybe the last training process is running",
        ),
        (
            "LOG093",
            "[n67:25098:0] Caught signal 11 (Segmentation fault)\n"
            "[n68:32107:0]  mm_ep.c:231  Fatal: Failed to attach to remote segment. Shared memory error\n",
            "after it: [n68:32107:0] mm_ep.c:231 Fatal: Failed to attach",
        ),
    ],
)
def test_the_innermost_words_are_in_the_heading(code: str, text: str, words: str) -> None:
    whats = [finding.what for finding in judged(text)[code].findings]
    assert any(words in what for what in whats), whats


def test_a_repeated_command_line_is_no_reason() -> None:
    text = (
        "[2023-04-07 13:09:33,220] [ERROR] [launch.py:324:sigkill_handler] ['/usr/bin/python3', '-u', 'run.py', "
        "'--deepspeed', 'ds_config.json', '--model_name_or_path', 'u/gpt-j-6B', '--train_file', 'train.csv'\n"
    )
    finding = judged(text)["LOG001"].findings[0]
    assert "does not say why" in finding.what
    assert "JSON" not in str(finding)


def test_four_quoted_lines_accuse_none_of_the_other_four_ranks() -> None:
    text = "".join(WATCHDOG.format(rank) for rank in (1, 7, 4, 5))
    assert not [finding for finding in judged(text)["LOG080"].findings if finding.state.value == "fail"]
    assert "the missing rank is not named" in judged(text)["LOG095"].findings[0].what


def test_an_abort_before_mpi_started_is_no_good_end() -> None:
    text = "[n1:5] Local abort before MPI_INIT completed completed successfully, but not all were killed!\n"
    assert all(finding.state.value != "ok" for finding in judged(text)["LOG008"].findings)
