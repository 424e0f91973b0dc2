"""What the general reader makes of lines that no framework's name is needed for: one short log a mechanism."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import Logs
from ncclcheck.reports.judgement.decision import outcome
from ncclcheck.reports.judgement.findings import Finding, State
from tests.helpers.logs import judged, parsed

_WARN = "NCCL WARN"
_LO = "NCCL INFO NET : Using interface lo:127.0.0.1<0>"


def _told(text: str, code: str) -> Finding:
    (finding, *_) = judged(text)[code].findings
    assert finding.state is State.FAIL
    return finding


def _traceback(*lines: str) -> str:
    return "\n".join(("Traceback (most recent call last):", *lines))


ASSERTED = _traceback('  File "run.py", line 31, in main', "    assert cfg.batch % n_gpu == 0", "AssertionError")
UNSUPPORTED = _traceback(
    '  File "/w/train.py", line 31, in <module>',
    "    loss = model(batch)",
    '  File "/v/lib/python3.11/site-packages/torch/_dynamo/exc.py", line 297, in unimplemented',
    "    raise Unsupported(msg)",
    "torch._dynamo.exc.Unsupported: call_function print",
)
IN_THE_COMPILER = UNSUPPORTED.replace("torch._dynamo.exc.Unsupported", "NotImplementedError")
INTO_ONE_LINE = _traceback('  File "/w/train.py", line 10, in <module>', "KeyError: : 'input_ids''input_ids'")
WITHOUT_WORDS = _traceback('  File "/w/t.py", line 1, in f', "ValueError: ", "ValueError: no such split")
SIZES = "op.preamble.length <= op.nbytes. 64 vs 32"
THROWN = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    f"  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] {SIZES}\n"
)
PORT_TWICE = "\n".join(
    _traceback(
        '  File "/w/train.py", line 20, in <module>',
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    )
    for _ in range(3)
)
EMPTY = "Accelerate launch command: error: argument --machine_rank: invalid int value: ''"
UCX = (
    "[158.1] [n1:77:1] ib_md.c:478  UCX  ERROR ibv_reg_mr(address=0x2a, access=1) failed: Bad address\n"
    "[n1:77] pml_ucx.c:775  Error: ucx send failed: Input/output error\n"
    "[n1:77] *** An error occurred in MPI_Bcast\n"
)
NO_PMI = (
    "but OMPI was not built with SLURM's PMI support and therefore cannot\n*** An error occurred in MPI_Init\n"
)
NO_PLUGIN = "srun: error: cannot find mpi plugin for mpi/pmix\nsrun: error: Invalid MPI type 'pmix'\n"
NOT_THE_HOSTS = (
    "[n1:77:0:77] Caught signal 11 (Segmentation fault: invalid permissions for mapped object at address 0x7f)\n"
)
OLD_LO = (
    f"a:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 4\nb:5:6 [0] {_LO}\n"
    "b:5:6 [0] NCCL INFO NET : Using interface eth0:10.1.40.2<0>\n"
    f"b:5:6 [0] include/socket.h:361 {_WARN} Call to connect timeout : Connection refused\n"
)
NPU = (
    "The error from device(chipId:1, dieId:0), there is an exception of aivector error, core id "
    "is 7\nThe extend info: errorStr: The DDR address is out of range.\n"
    "RuntimeError: ACL stream synchronize failed, error code:507011\n"
)
NO_NODES = (
    "(autoscaler +9s) Error: No available node types can fulfill resource request {'GPU': 16.0}. Add nodes.\n"
)


@pytest.mark.parametrize(
    ("text", "code", "what"),
    [
        (ASSERTED, "LOG004", "a process raised AssertionError: assert cfg.batch % n_gpu == 0 at run.py:31 (main)"),
        (UNSUPPORTED, "LOG004", "raised torch._dynamo.exc.Unsupported: call_function print at /w/train.py:31"),
        (INTO_ONE_LINE, "LOG004", "a process raised KeyError: 'input_ids' at /w/train.py:10"),
        (WITHOUT_WORDS, "LOG004", "ValueError: no such split"),
        (THROWN, "LOG093", f"aborted (SIGABRT): C++ raised gloo::EnforceNotMet: {SIZES}"),
        (PORT_TWICE, "LOG019", "29500 (the default) is taken already: 3 more processes of the job are rank 0"),
        (EMPTY, "LOG164", "invalid int value: ''"),
        (UCX, "LOG040", "cannot register the memory of a GPU that MPI was given (UCX)"),
        (NO_PMI, "LOG124", "an Open MPI that was built without Slurm's PMI"),
        (NO_PLUGIN, "LOG124", "srun has no plugin pmix for MPI"),
        (NOT_THE_HOSTS, "LOG093", "read memory of a GPU as if it were the host's"),
        (OLD_LO, "LOG011", "NCCL took lo for its first connections on b"),
        (NPU, "LOG183", "a kernel failed on an NPU: aivector (The DDR address is out of range)"),
        ("Not enough GPUs available. Requested 16 GPUs, but only 8\n", "LOG182", "asks for 16 GPUs, and Ray's"),
        (NO_NODES, "LOG182", "no node of Ray's cluster has free what the job asks for: {'GPU': 16.0}"),
    ],
)
def test_the_heading_says_what_happened(text: str, code: str, what: str) -> None:
    assert what in _told(text, code).what


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (IN_THE_COMPILER, "LOG004", "torch.compile could not trace"),
        (UNSUPPORTED, "LOG004", "torch.compile could not trace"),
        (THROWN, "LOG093", "different sizes"),
        (f"RuntimeError: [gloo/transport/tcp/pair.cc:446] {SIZES}\n", "LOG004", "different sizes"),
        (
            "RuntimeError: makeDeviceForHostname(): unsupported gloo device\n",
            "LOG004",
            "no address that it can use",
        ),
        ("RuntimeError: NPU function error: aclrtSync, error code is 507048\n", "LOG004", "Ascend's CANN"),
        ("x.DatasetNotFoundError: Dataset droid not found.\n", "LOG004", "The dataset is not where"),
        (EMPTY, "LOG164", "was not set"),
    ],
)
def test_what_stands_behind_it_is_told(text: str, code: str, words: str) -> None:
    assert words in _told(text, code).why


def _exceptions(logs: Logs) -> list[str]:
    return [event.fields["type"] for event in logs.events if event.sign == "python-error"]


def test_a_name_that_tells_nothing_is_an_exception_below_frames_only() -> None:
    queue = _traceback('  File "/w/a.py", line 2, in f', "_queue.Empty", "torch.nn.Linear: 3 layers")
    assert _exceptions(parsed(queue)) == ["_queue.Empty"]
    assert _exceptions(parsed("torch.nn.Linear: 3 layers\n_queue.Empty\n")) == []


def test_a_line_of_code_is_no_value_of_torchrun() -> None:
    line = '    raise ValueError(f"Unsupported nproc_per_node value: {nproc_per_node}") from e\n'
    assert not [event for event in parsed(line).events if event.sign == "torchrun-values"]


def test_one_process_that_cannot_listen_is_told_of_no_rank() -> None:
    of_its_own = _traceback('  File "/w/train.py", line 9, in serve', "OSError: [Errno 98] Address already in use")
    assert _told(of_its_own, "LOG019").what == "a port that the program itself opens is taken already"
    assert "rank 0" not in _told(PORT_TWICE[: len(PORT_TWICE) // 3], "LOG019").what


def test_ray_waits_while_nodes_join() -> None:
    """Steps after it, or another failure: it was no cause."""
    steps = "".join(f"step {number} loss 1.0\n" for number in range(1, 30))
    assert judged(NO_NODES + steps)["LOG182"].state is not State.FAIL
    assert judged(NO_NODES + ASSERTED)["LOG182"].state is not State.FAIL


@pytest.mark.parametrize(
    "text",
    [
        "[rank0]: starting\nError: failed to send metrics to the tracker\nTotal training time: 1:22:11\n",
        "seg INFO: Iters: 15210/20000 || Task Loss: 7.1\nseg INFO: Total training time: 4:49:16 (0.8 s / it)\n",
        "| distributed init (rank 0): env://\nERROR: the tracker is gone\nTraining time 0:01:12\n",
    ],
)
def test_the_time_of_the_whole_training_ends_it(text: str) -> None:
    assert outcome([*judged(text).values()]) not in ("fail", "incomplete")


OWN_PORT = _traceback(
    '  File "/w/train.py", line 20, in <module>',
    '  File "/v/lib/python3.11/site-packages/plotboard/client.py", line 31, in send',
    '  File "/v/lib/python3.11/site-packages/urllib3/connectionpool.py", line 755, in urlopen',
    "urllib3.exceptions.MaxRetryError: HTTPConnectionPool(host='127.0.0.1', port=6123): Max retries exceeded "
    "with url: /api (Caused by NewConnectionError('<o>: Failed to establish a new connection: [Errno 111] "
    "Connection refused'))",
)
RAGGED = (
    "[rank1]: accelerate.utils.operations.DistributedOperationException: Cannot apply desired operation due to "
    "shape mismatches. All shapes across devices must be valid.\n"
)
HBM = "RuntimeError: XLA:TPU compile error. Ran out of memory in memory space hbm. Used 9.1G of 7.9G hbm.\n"
CANCELLED = "slurmstepd: error: *** JOB 4711 ON gpu-a17 CANCELLED AT 2026-03-01T10:00:00 ***\n"
QUOTA = "tee: run.log: Disk quota exceeded\n"
STEPS = "".join(f"iteration {step} / 1000 | loss 2.1\n" for step in range(100, 150))


def test_a_port_of_the_node_itself_is_a_service_that_does_not_run() -> None:
    finding = _told(OWN_PORT, "LOG004")
    assert "port 6123 of this node itself: the service that plotboard calls" in finding.why
    elsewhere = _told(OWN_PORT.replace("127.0.0.1", "hub.example.org"), "LOG004")
    assert "does not reach the outside" in elsewhere.why


def test_tensors_of_different_lengths_are_no_ranks_fault() -> None:
    finding = _told(RAGGED, "LOG004")
    assert (finding.where.rank, "pad_across_processes" in str(finding.remedies)) == (None, True)
    assert "one process" not in str(finding.remedies)


def test_memory_of_a_tpu_is_memory() -> None:
    assert "smaller micro batch" in str(_told(HBM, "LOG004").remedies)


def test_what_was_cancelled_after_its_disk_was_full() -> None:
    verdicts = judged(QUOTA * 3 + CANCELLED)
    assert "quota is used up" in _told(QUOTA * 3 + CANCELLED, "LOG128").what
    assert verdicts["LOG006"].state is State.NOTE
    went_on = judged(QUOTA + STEPS + CANCELLED)
    assert (went_on["LOG128"].state is State.FAIL, went_on["LOG006"].state) == (False, State.FAIL)


_RUN = "\n" * 110 + _traceback('  File "/w/train.py", line 9, in <module>', "{}\n")
_FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
_MISSING = "FileNotFoundError: [Errno 2] No such file or directory: 'step_9.pt'"


@pytest.mark.parametrize(("full", "both"), [(3, True), (1, False)])
def test_most_runs_of_a_sweep_outrank_its_last_one(full: int, *, both: bool) -> None:
    verdicts = judged(_RUN.format(_FULL) * full + _RUN.format(_MISSING))
    assert verdicts["LOG004"].state is State.FAIL
    assert (verdicts["LOG063"].state is State.FAIL) == both


_SAMPLE = _traceback('  File "/w/roll.py", line 9, in act', "ValueError: step 0: no action in: click here\n")
_GIVEN_UP = "ERROR:Error reading the action of item 8d51-4f\n"


def test_samples_that_were_given_up_are_no_failure() -> None:
    sound = _SAMPLE + _GIVEN_UP + STEPS + _SAMPLE + _GIVEN_UP
    assert outcome([*judged(sound).values()]) not in ("fail", "incomplete")
    assert judged(sound.removesuffix(_GIVEN_UP))["LOG004"].state is State.FAIL
    assert judged(_SAMPLE + _GIVEN_UP)["LOG004"].state is State.FAIL


def test_a_name_that_ssh_does_not_find_has_nothing_to_do_with_torch() -> None:
    finding = _told("ssh: Could not resolve hostname gpu-a19: Name or service not known\n", "LOG020")
    assert "MASTER_ADDR" not in finding.why + str(finding.remedies)


def test_a_crash_without_a_host_is_of_the_process_that_the_others_name_as_gone() -> None:
    starts = "".join(
        f"elm0{n // 2}:{n}10:{n}10 [0] NCCL INFO Bootstrap : Using eth0:10.44.7.{n // 2}<0>\n"
        f"elm0{n // 2}:{n}10:{n}10 [0] NCCL INFO ncclCommInitRank comm 0x1 rank {n} nranks 4 cudaDev {n % 2} "
        "busId 1000 commId 0x7 - Init START\n"
        for n in range(4)
    )
    crash = 'Fatal Python error: Aborted\n\n  File "/w/train.py", line 94 in step\n'
    gone = "elm00:110:111 [1] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer {}<4>\n"
    assert _told(starts + crash + gone.format("elm01"), "LOG093").where.node == "elm01"
    assert _told(starts + crash + gone.format("10.44.7.1"), "LOG093").where.node == "elm01"
    assert _told(starts + crash, "LOG093").where.node is None
