"""What the system, CUDA and the cards answer to NCCL's calls: each answer by the call that got it."""

from __future__ import annotations

import pytest

from benchmarks.logs import causes

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
    told, what = _first("".join(line), 2)
    assert told == code, what
    assert words in what


@pytest.mark.parametrize("place", ["enqueue.cc:1500", "transport/nvls.cc:400"])
@pytest.mark.parametrize("error", CUDA)
def test_an_error_that_any_call_reports_is_not_of_the_file_that_reports_it(error: str, place: str) -> None:
    code, words = CUDA[error]
    told, what = _first(f"{place} Cuda failure 7 '{error}'", 1)
    assert told == code, what
    assert words in what


def test_an_error_without_a_name_is_no_missing_module_once_cuda_has_worked() -> None:
    told, what = _first("transport/net.cc:900 Cuda failure 999 'unknown error'", 1)
    assert told == "LOG068"
    assert "after it had worked" in what
