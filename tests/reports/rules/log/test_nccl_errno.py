"""What the system, CUDA and the cards answer to NCCL's calls: each answer by the call that got it."""

from __future__ import annotations

import pytest

from benchmarks.logs import causes
from tests.helpers.logs import judged, raised

_INIT = "rank {0} nranks 2 cudaDev 0 nvmlDev 0 busId 10000 commId 0xed - Init {1}\n"
_BEGAN = "".join(
    f"h{1 + rank}:4711:4711 [0] NCCL INFO ncclCommInitRank comm 0x7f1a " + _INIT.format(rank, stage)
    for stage in ("START", "COMPLETE")
    for rank in (0, 1)
)
_AGAIN, _NO_MEMORY, _DENIED = "Resource temporarily unavailable", "Cannot allocate memory", "Permission denied"
_NOT_PERMITTED, _DOWN = "Operation not permitted", "Network is down"
SYSTEM = {  # call of NCCL and its file, answer -> code, words
    ("proxy.cc:982 Call to pthread_create failed: ", _AGAIN): ("LOG194", "no more threads"),
    ("include/checks.h:90 Thread creation failed: ", _AGAIN): ("LOG194", "no more threads"),
    ("proxy.cc:982 Call to pthread_create failed: ", _NOT_PERMITTED): ("LOG194", "may not start threads"),
    ("init.cc:4 Call to pthread_setattr_default_np failed: ", "Invalid argument"): ("LOG194", "the stack"),
    ("misc/socket.cc:8 Call to bind failed: ", _DENIED): ("LOG194", "may not listen on the port"),
    ("misc/socket.cc:8 Call to bind failed: ", "Invalid argument"): ("LOG194", "belongs to no interface"),
    ("misc/socket.cc:8 ncclSocketInit: Socket creation failed : ", _NOT_PERMITTED): ("LOG194", "or use sockets"),
    ("misc/socket.cc:8 Call to socket failed: ", "Too many open files"): ("LOG025", "limit of open files"),
    ("misc/socket.cc:8 Call to listen failed: ", "Address family not supported by protocol"): (
        "LOG194",
        "switched off",
    ),
    ("misc/socket.cc:8 Call to setsockopt failed: ", "Protocol not available"): ("LOG194", "sandbox"),
    ("misc/socket.cc:8 socketTryAccept: Accept failed: ", "No buffer space available"): (
        "LOG194",
        "no memory for",
    ),
    ("misc/socket.cc:8 socketProgressOpt: Call to send to 10.0.3.17<4> failed : ", _NOT_PERMITTED): (
        "LOG194",
        "the host itself forbids",
    ),
    ("misc/socket.cc:8 socketProgressOpt: Call to recv from 10.0.3.17<4> failed : ", _DOWN): (
        "LOG014",
        "lost its connection",
    ),
    ("os/linux.cc:8 sched_setaffinity failed with error: ", "Invalid argument"): ("LOG194", "choose the cores"),
    ("misc/shmutils.cc:106 Error: Could not map /dev/shm/nccl-x size 963, error: ", f"{_NO_MEMORY} (12)"): (
        "LOG106",
        "no host memory",
    ),
}
CUDA = {  # an error in a job that had begun -> code, words; in transport/nvls.cc too
    "unspecified launch failure": ("LOG067", "launch failure"),
    "uncorrectable ECC error encountered": ("LOG067", "a GPU failed"),
    "an illegal memory access was encountered": ("LOG091", "a kernel failed"),
    "driver shutting down": ("LOG186", "CUDA had ended"),
    "the MPS client has been terminated by the server": ("LOG186", "MPS"),
    "system not yet initialized": ("LOG055", "fabric manager"),
}


NVML = {  # nvmlErrorString() -> words
    "GPU requires restart": "a GPU needs a reset",
    "Timeout": "a GPU does not answer",
    "No GPUs were found": "sees no GPU",
    "The operating system has blocked the request": "the system forbids",
    "GPU is lost": "it is lost",
    "Driver/library version mismatch": "upgraded without a reboot",
}
CONNECT = {  # the answer to connect(2) -> what the finding says of it
    "Cannot assign requested address": "No local port is free",
    "Network is unreachable": "has no route to that address",
    "Operation not permitted": "itself forbids the connection",
    "Connection timed out": "A firewall",
}
_CARDS = "".join(
    f"h{1 + rank}:4711:4711 [0] NCCL INFO Bootstrap: Using eth0:10.0.3.1{rank}<0>\n"
    f"h{1 + rank}:4711:4711 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.3.1{rank}<0>\n"
    for rank in (0, 1)
)
STATUS = {  # of a completion -> the host to look at, words
    "8": ("h2", "may not reach the memory of this process"),
    "10": ("h1", "the peer's card may not reach its memory"),
    "11": ("h1", "could not carry it out"),
    "19": ("h2", "from which its queue does not recover"),
}


def _first(line: str, result: int) -> tuple[str, str]:
    place, _, text = line.partition(" ")
    log = (
        f"{_BEGAN}h2:4711:4800 [0] {place} NCCL WARN {text}\nh2:4711:4800 [0] NCCL INFO {place} -> {result}\n"
        f"h2:4711:4711 [0] NCCL INFO group.cc:75 -> {result} [Async thread]\n"
        f"h2:4711:4711 [0] NCCL INFO enqueue.cc:2229 -> {result}\n"
    )
    cause = causes(log.encode())[0]
    return cause.code, cause.what


@pytest.mark.parametrize("line", SYSTEM)
def test_an_answer_of_the_system_is_known_by_its_call(line: tuple[str, str]) -> None:
    code, words = SYSTEM[line]
    cause, what = _first("".join(line), 2)
    assert cause == code, what
    assert words in what


@pytest.mark.parametrize("place", ["enqueue.cc:1500", "transport/nvls.cc:400"])
@pytest.mark.parametrize("error", CUDA)
def test_an_error_that_any_call_reports_is_not_of_the_file_that_reports_it(error: str, place: str) -> None:
    code, words = CUDA[error]
    cause, what = _first(f"{place} Cuda failure 7 '{error}'", 1)
    assert cause == code, what
    assert words in what


@pytest.mark.parametrize("error", NVML)
def test_an_answer_of_nvml_is_known(error: str) -> None:
    _, what = _first(f"misc/nvmlwrap.cc:20 nvmlDeviceGetHandleByPciBusId(0000:01:00.0) failed: {error}", 2)
    assert NVML[error] in what


@pytest.mark.parametrize("error", CONNECT)
def test_an_answer_to_a_connection_has_its_own_reason(error: str) -> None:
    line = (
        f"h2:4711:4800 [0] misc/socket.cc:8 NCCL WARN socketStartConnect: Connect to 10.0.3.17<4> failed : {error}"
    )
    finding = judged(f"{_BEGAN}{line}\n")["LOG014"].findings[0]
    assert CONNECT[error] in finding.why


@pytest.mark.parametrize("status", STATUS)
def test_a_status_names_the_end_to_look_at(status: str) -> None:
    line = f"Got completion from peer 10.0.3.10<33508> with status={status} opcode=1 len=0 vendor err 129 (Recv)"
    log = f"{_CARDS}{_BEGAN}h2:4711:4800 [0] transport/net_ib.cc:2 NCCL WARN NET/IB: {line} hca mlx5_0\n"
    finding = judged(log)["LOG048"].findings[0]
    node, words = STATUS[status]
    assert words in finding.what
    assert finding.where.node == node


@pytest.mark.parametrize(("link", "code"), [("IB", "LOG187"), ("RoCE", "LOG033")])
def test_no_such_device_is_the_card_on_infiniband_and_the_address_on_roce(link: str, code: str) -> None:
    line = "Call to ibv_modify_qp failed with 19 No such device, on dev mlx5_0:1, curr state INIT, next state RTR"
    local = "local GID index 3, local GID ::ffff:10.0.3.11, remote GID ::ffff:10.0.3.10"
    log = f"{_CARDS}{_BEGAN}h2:4711:4800 [0] misc/ibvwrap.cc:291 NCCL WARN {line}, {local}\n"
    assert causes(log.replace("/IB ;", f"/{link} ;").encode())[0].code == code


@pytest.mark.parametrize("both", [False, True])
def test_an_end_that_says_nothing_may_be_gone(both: bool) -> None:
    got, tail = "Got completion from peer", "with status=12 opcode=1 len=0 vendor err 129 (Recv) hca mlx5_0"
    ends = (("h1", "10.0.3.11"), ("h2", "10.0.3.10")) if both else (("h1", "10.0.3.11"),)
    log = (
        _CARDS
        + _BEGAN
        + "".join(
            f"{host}:4711:4800 [0] transport/net_ib.cc:2 NCCL WARN NET/IB: {got} {peer}<33508> {tail}\n"
            for host, peer in ends
        )
    )
    what = judged(log)["LOG036"].findings[0].what
    assert ("rank 1 (pid 4711 of h2), which says nothing of it, is gone" in what) is not both


@pytest.mark.parametrize(("error", "named"), [("No route to host", True), ("Connection refused", False)])
def test_a_start_that_ends_in_tries_tells_why_they_fail(error: str, named: bool) -> None:
    began = "".join(_BEGAN.splitlines(keepends=True)[:2])
    tried = "".join(
        f"h2:4711:4711 [0] NCCL INFO socketPollConnect: connect to 10.0.3.10<39855> returned {error}, "
        f"retrying ({n}/34) after sleep for {n}00 msec\n"
        for n in range(1, 20)
    )
    states = raised(began + tried)
    assert ("LOG014" in states) is named


@pytest.mark.parametrize(("via", "words"), [("NET/IB/0/GDRDMA", "memory of a GPU"), ("NET/IB/0", "of the host")])
def test_memory_that_cannot_be_registered_is_of_the_host_without_gpudirect(via: str, words: str) -> None:
    channel = f"h2:4711:4800 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via {via}\n"
    line = "h2:4711:4800 [0] misc/ibvwrap.cc:229 NCCL WARN Call to ibv_reg_mr failed with error Bad address\n"
    assert words in judged(f"{_CARDS}{_BEGAN}{channel}{line}")["LOG040"].findings[0].what


def test_a_process_that_came_to_no_rank_is_named() -> None:
    early = "h2:3759:3759 [0] NCCL INFO NCCL version 2.27.7+cuda12.9\nlibfabric: no provider\n"
    began = _BEGAN.splitlines(keepends=True)[0]
    finding = judged(f"h1:4711:4711 [0] NCCL INFO NCCL version 2.27.7+cuda12.9\n{began}{early}")[
        "LOG002"
    ].findings[0]
    assert "h2:3759 loaded NCCL and came to no rank" in finding.what


def test_an_error_without_a_name_is_no_missing_module_once_cuda_has_worked() -> None:
    cause, what = _first("transport/net.cc:900 Cuda failure 999 'unknown error'", 1)
    assert cause == "LOG068"
    assert "after it had worked" in what
