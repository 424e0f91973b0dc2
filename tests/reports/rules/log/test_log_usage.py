"""Lines that real jobs ended with, as torch 2.x, shells and Slurm print them -> what is named."""

from __future__ import annotations

import io
import json

import pytest

from ncclcheck.probes.logs.files.docker import Unwrapped
from tests.helpers.logs import judged, raised

_GAI = "[W1109 10:12:13.2 socket.cpp:764] [c10d] The IPv6 network addresses of (gpu-x.invalid, 29519) cannot be "
_GAI += "retrieved (gai error: -2 - Name or service not known).\n"
_WATCHDOG = "[rank4]:[E ProcessGroupNCCL.cpp:632] [Rank 4] Watchdog caught collective operation timeout: "
_WATCHDOG += (
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600005 milliseconds\n"
)
_BARRIER = (
    "Waiting in store based barrier to initialize process group for rank: {0}, key: store_based_barrier_key:2 "
)
_BARRIER += "(world_size=8, worker_count=7, timeout=0:30:00)\n"
_LOST = "[rank{0}]: RuntimeError: [gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
_LOST += "[127.0.0.1]:30337. This is typically caused by a remote worker crashing.\n"
_FAILED = "E1109 10:01:28.6 24559 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {0}) "
_FAILED += "local_rank: {1} (pid: 24575) of binary: /usr/bin/python3\n"
_ENTRY = "[{0}]:\n  host      : gpu-a17\n  rank      : {1} (local_rank: {1})\n  exitcode  : {2} (pid: 9)\n"


def _listed(rank: int, exitcode: int, root: int, its: int) -> str:
    """torchrun's block: another rank that failed, and the first."""
    first = "-----\nRoot Cause (first observed failure):\n" + _ENTRY.format(0, root, its)
    return "Failures:\n" + _ENTRY.format(1, rank, exitcode) + first


_KILL = "./run.sh: line 12: 12345 Killed                  "
_IN_USE = "DistNetworkError: The server socket has failed to listen. port: 29513, name: EADDRINUSE, message: "
_IN_USE += "address already in use\n"
_ALONE = "torch.distributed.DistStoreError: Timed out after 7 seconds waiting for clients. 1/2 clients joined.\n"
_ABORTED = "terminate called without an active exception\n"
_CRASHED = "Fatal Python error: Segmentation fault\n" + _FAILED.format(-11, 1)
_READER = '  File "/opt/torch/distributed/rendezvous.py", line 274, in _env_rendezvous_handler\n    w = int(x)\n'
_NUMBER = "ValueError: invalid literal for int() with base 10: 'two'\n"
_REFUSED = "[E1109 10:26:10.9 debug_logger.cc:9] ERROR failed to connect, willRetry=1, retry=0, "
_REFUSED += "local=[127.0.0.1]:719, remote=[127.0.0.1]:2981$0, error=SO_ERROR: Connection refused\n"
_GONE = "[W1109 10:29:27.1 TCPStore.cpp:115] [c10d] recvVector failed on SocketImpl(fd=3, addr=[::1]:50716, "
_GONE += "remote=[::1]:29579): Failed to recv, got 0 bytes. Did the remote server shutdown or crash?\n"
_NO_STORE = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the "
_NO_STORE += "C10d store has failed. See inner exception for details.\n"
_OF_THE_LOADER = "KeyError: Caught KeyError in DataLoader worker process 1.\n"

NAMED = {
    "a mistyped torchrun": ("bash: line 1: torchrum: command not found\n", "LOG161", "(torchrun is meant?)"),
    "a mistyped python": ("sh: 1: pythom: not found\n", "LOG161", "pythom was not found (python is meant?)"),
    "zsh": ("zsh: command not found: torchrun\n", "LOG161", "torchrun was not found"),
    "no x bit": ("bash: ./run.sh: Permission denied\n", "LOG168", "./run.sh may not be executed"),
    "no x bit, zsh": ("zsh: permission denied: ./run\n", "LOG168", "./run may not be executed"),
    "no Slurm here": ("srun: fatal: Could not establish a configuration source\n", "LOG169", "configuration"),
    "a crash, by the shell": ("Segmentation fault (core dumped)\n", "LOG093", "crashed (segmentation fault"),
    "killed, by the shell": ("Killed\n", "LOG093", "was killed by SIGKILL: most often by the kernel"),
    "a bus error, by the shell": ("Bus error (core dumped)\n", "LOG093", "died of a bus error"),
    "killed, by a script's shell": (_KILL + "python train.py\n", "LOG093", "was killed"),
    "killed, by zsh": ("zsh: killed     python train.py\n", "LOG093", "was killed"),
    "killed, of torch's spawn": (
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL\n",
        "LOG093",
        "was killed",
    ),
    "a crash, by torchrun": (_CRASHED + _listed(0, -15, 1, -11), "LOG093", "local rank 1"),
    "an abort, by torchrun": (_FAILED.format(-6, 1), "LOG093", "local rank 1, process 24575, aborted (SIGABRT)"),
    "left with threads": (_ABORTED + _FAILED.format(-6, 1), "LOG093", "its program was left (sys.exit"),
    "sizes, by gloo": (
        "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. "
        "Received data size doesn't match expected size.\n" + _FAILED.format(-6, 0),
        "LOG084",
        "8 vs 4 bytes",
    ),
    "autograd's complaint": (
        "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace "
        "operation: [torch.cuda.FloatTensor [256]] is at version 7; expected version 6 instead.\n",
        "LOG172",
        "a buffer, which DDP broadcasts",
    ),
    "a model on another GPU": (
        "ValueError: You can't train a model that has been loaded in 8-bit precision on a different device than "
        "the one you're training on.\n",
        "LOG174",
        "on another GPU than that of its rank",
    ),
    "Horovod's ranks in different collectives": (
        "W stall_inspector.cc:105] One or more tensors were submitted by subset of ranks and are waiting for "
        "remainder of ranks for more than 60 seconds.\n[0]<stderr>:Missing ranks:\n"
        "[0]<stderr>:0: [broadcast.bool.sz]\n"
        "[0]<stderr>:1: [allreduce.c_d1.bias ...]\n",
        "LOG176",
        "ranks 0-1 wait for each other",
    ),
    "DeepSpeed's look by ssh": (
        "subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no node2 hostname' returned "
        "non-zero exit status 255.\n",
        "LOG177",
        "ssh on node2 failed (255): most often it lets nobody in",
    ),
    "an unknown host": ("Host key verification failed.\n", "LOG177", "does not know the key of the host"),
    "a signal, by Python": ("died with <Signals.SIGSEGV: 11>.\n", "LOG093", "crashed (segmentation fault"),
    "a bus error in NCCL's shared memory": (
        'Thread 7 "x" received signal SIGBUS, Bus error.\n#0 0x00007f in ncclShmOpen(char*, int) ()\n',
        "LOG050",
        "a bus error (SIGBUS) in ncclShmOpen",
    ),
    "Windows": (
        "[W C:\\actions-runner\\pytorch\\socket.cpp:558] [c10d] something\n"
        "RuntimeError: Distributed package doesn't have NCCL built in\n",
        "LOG166",
        "on Windows, where there is none",
    ),
    "no NCCL, on no known system": (
        "RuntimeError: Distributed package doesn't have NCCL built in\n",
        "LOG166",
        "built without CUDA or NCCL",
    ),
    "a micro batch of none": (
        "AssertionError: Micro batch size per gpu: 0 has to be greater than 0\n",
        "LOG125",
        "less than one sample for each rank",
    ),
    "sizes that should be divisible": (
        "AssertionError: First dimension of the tensor should be divisible by tensor parallel size\n",
        "LOG125",
        "cannot be divided",
    ),
    "an extension, cut off": (
        "ImportError: /venv/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gn\n",
        "LOG126",
        "flash_attn_2_cuda does not load: it was likely built for another torch",
    ),
    "a write that failed": (
        "RuntimeError: write(): fd 29 failed with Input/output error\n",
        "LOG128",
        "its disk is full, or failed",
    ),
    "a checkpoint that is gathered": (
        "Getting optimizer state dict took 120.03 secs\n" + _WATCHDOG,
        "LOG171",
        "likely still saving a checkpoint",
    ),
    "a barrier that one does not reach": (_BARRIER.format(2) + _BARRIER.format(7), "LOG021", "7 of 8 processes"),
    "a name, folded": ("[24 similar log lines] " + _GAI, "LOG020", "gpu-x.invalid has no address"),
    "no name server": (_GAI.replace("-2 - Name or service not known", "-3 - Temporary failure in name resolution"),
                       "LOG020", "gpu-x.invalid has no address"),
    "a name that is tried to the end": (_GAI * 10, "LOG020", "gpu-x.invalid has no address"),
    "no module for -m": (
        "/usr/bin/python3: Error while finding module specification for 'trian.main' (ModuleNotFoundError: No "
        "module named 'trian')\n",
        "LOG162",
        "there is no module trian.main",
    ),
    "no number": (_READER + _NUMBER, "LOG165", "'two', which is not a number"),
    "no group": (
        "ValueError: Default process group has not been initialized, please make sure to call it.\n",
        "LOG099",
        "before init_process_group",
    ),
    "two groups": ("ValueError: trying to initialize the default process group twice!\n", "LOG099", "twice"),
    "a batch of two shapes": ("RuntimeError: Trying to resize storage that is not resizable\n", "LOG102", "shape"),
    "no host memory": (
        "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 42949672960 bytes. Error "
        "code 12\n",
        "LOG106",
        "it asked for 40 GiB",
    ),
    "Python's own word": ("[rank1]: MemoryError\n", "LOG106", "no host memory"),
    "torch for CPUs": (
        "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'\n",
        "LOG166",
        "built without CUDA",
    ),
    "a bare assertion": ("[rank1]: AssertionError\n", "LOG004", "AssertionError"),
    "the line that the loader repeats": (_OF_THE_LOADER + "KeyError: 'no label'\n", "LOG004", "KeyError: 'no"),
    "rank 0 twice": (_IN_USE + _ALONE, "LOG019", "two processes of the job are rank 0"),
    "a port out of range": (
        "ValueError: The port number of the rendezvous endpoint 'a:99' must be an integer between 0 and 65536.\n",
        "LOG163",
        "--master-port): The port number of the rendezvous endpoint 'a:99' must be an integer between 0 and 65536",
    ),
    "a rank that ended well": (
        _LOST.format(0) + _LOST.format(2) + _listed(2, -15, 0, 1),
        "LOG098",
        "rank 1 had ended without an error",
    ),
}  # fmt: skip

SILENT = {
    "no module command": ("job.sh: line 3: module: command not found\n", "LOG161"),
    "a file that may not be written": ("run.sh: line 3: /proc/sys/vm/drop_caches: Permission denied\n", "LOG168"),
    "a helper that was killed": (_KILL + "sleep 1000\n", "LOG093"),
    "killed after a failure": ("ValueError: bad\nKilled\n", "LOG093"),
    "an abort after an exception": ("ValueError: bad\n" + _ABORTED + _FAILED.format(-6, 1), "LOG093"),
    "a word within a line": ("Killed 3 stale jobs before the start\n", "LOG093"),
    "a crash of a worker": (
        "RuntimeError: DataLoader worker (pid 3) is killed by signal: Segmentation fault.\n" + _CRASHED,
        "LOG093",
    ),
    "names tried twice by each": (_GAI * 10 + "step 0 loss 1.0\n", "LOG020"),
    "Horovod's stall that ended": (
        "W are waiting for remainder of ranks for more than 60 seconds.\n"
        + "".join(f"step {n} loss 1.0\n" for n in range(30)),
        "LOG176",
    ),
    "git without a key": ("git@github.com: Permission denied (publickey).\n", "LOG177"),
    "a file that may not be read": ("cat: /root/x: Permission denied\n", "LOG177"),
    "one name, once": (_GAI, "LOG020"),
    "a barrier, once": (_BARRIER.format(2), "LOG021"),
    "a barrier that all came to later": (_BARRIER.format(2) * 3 + "step 1 loss 1.0\nstep 2 loss 0.9\n", "LOG021"),
    "steps after the checkpoint": (
        "Retrieving optimizer state dict...\n" + "".join(f"step {n} loss 1.0\n" for n in range(30)) + _WATCHDOG,
        "LOG171",
    ),
    "a number of the program's own": (_NUMBER, "LOG165"),
    "loopback after a restart": ("OSError: [Errno 5] Input\n" + _FAILED.format(1, 1) + _REFUSED, "LOG023"),
    "a store that ended": (_GONE + _NO_STORE, "LOG027"),
    "all ranks are listed": (
        _LOST.format(0) + _listed(1, -15, 0, 1),
        "LOG098",
    ),
    "a rank that failed itself": (
        "[rank1]: ValueError: bad\n" + _LOST.format(0) + _listed(2, -15, 0, 1),
        "LOG098",
    ),
    "the loader's own frame": (_OF_THE_LOADER, "LOG004"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_a_line_names_its_cause(name: str) -> None:
    text, code, words = NAMED[name]
    verdict = judged(text)[code]
    assert verdict.state.value == "fail"
    assert words in verdict.findings[0].what


@pytest.mark.parametrize("name", SILENT)
def test_what_only_looks_like_it_names_nothing(name: str) -> None:
    text, code = SILENT[name]
    assert code not in raised(text)


def test_the_rank_of_a_crash_is_the_one_of_the_root_cause_block() -> None:
    finding = judged(_CRASHED + _listed(0, -15, 1, -11))["LOG093"].findings[0]
    assert (finding.where.node, finding.where.rank) == ("gpu-a17", 1)
    assert any("PYTHONFAULTHANDLER=1" in command for remedy in finding.remedies for command in remedy.commands)


def test_no_rank_is_named_where_several_failed_alike() -> None:
    line = "[rank{0}]: AssertionError: Torch not compiled with CUDA enabled\n"
    finding = judged(line.format(0) + line.format(1))["LOG166"].findings[0]
    assert finding.where.rank is None
    assert "ranks 0-1" in finding.what
    assert not any("modprobe" in command for remedy in finding.remedies for command in remedy.commands)


def test_a_port_is_named_only_where_the_log_has_one() -> None:
    finding = judged(_NO_STORE)["LOG027"].findings[0]
    assert "29500" not in finding.what
    assert not any("29500" in command for command in finding.remedies[0].commands)


def test_loopback_as_the_master_is_each_node_itself() -> None:
    text = "The client socket has timed out after 8000ms while trying to connect to (127.0.0.1, 29544).\n"
    assert "127.0.0.1 is each node itself" in judged(text)["LOG027"].findings[0].why


def test_docker_s_own_files_are_read_as_what_the_container_printed() -> None:
    lines = [{"log": "[rank1]: ValueError: x\n", "stream": "stderr", "time": "2026-11-21T10:01:06.1Z"}, {"log": 5}]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode() + b"plain\n"
    with io.BufferedReader(Unwrapped(io.BytesIO(data)), 16) as file:
        assert [*file] == [b"2026-11-21T10:01:06.1Z [rank1]: ValueError: x\n", b'{"log": 5}\n', b"plain\n"]


def test_an_exception_is_quoted_with_its_own_advice() -> None:
    message = (
        "ValueError: "
        + "the vocabulary of the tokenizer has another size, " * 5
        + "it says. Please pass tokenizer=."
    )
    (finding,) = judged(f"[rank0]: {message} Nothing else.\n")["LOG004"].findings
    assert finding.what.endswith("Please pass tokenizer=. Nothing else.")
    assert finding.remedies[0].text == "Its own advice: Please pass tokenizer=."


def test_an_exception_without_advice_has_the_neutral_remedy_alone() -> None:
    (finding,) = judged("[rank0]: ValueError: the third label\n")["LOG004"].findings
    assert [remedy.text.partition(":")[0] for remedy in finding.remedies] == ["Read the traceback above this line"]
