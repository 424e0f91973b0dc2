"""What NCCL's warnings are about by their words, for those that have no check of their own."""

from __future__ import annotations

import pytest

from benchmarks.logs import causes
from ncclcheck.reports.judgement.findings import State
from tests.helpers.logs import judged, raised

_BEGAN = "elm4:311:311 [0] NCCL INFO cudaDriverVersion 12080\n"

CUDA = {  # cudaGetErrorString() of CUDA 12
    "peer access is not supported between these two devices": "do not reach each other's memory",
    "MPS client failed to connect to the MPS control daemon or the MPS server": "MPS server does not serve",
    "the MPS server is not ready to accept new MPS client requests": "MPS server does not serve",
    "exclusive-thread device already in use by a different thread": "serves one thread only",
    "CUDA driver is a stub library": "the stub of libcuda.so",
    "API call is not supported in the installed CUDA driver": "older than their CUDA",
    "a PTX JIT compilation failed": "older than their CUDA",
    "device doesn't have valid Grid license": "no licence",
    "the launch timed out and was terminated": "with a display",
    "operation not permitted when stream is capturing": "a CUDA graph was captured",
    "driver shutting down": "CUDA had ended",
    "context is destroyed": "CUDA had ended",
    "too many blocks in cooperative launch": "more blocks than",
    "invalid resource handle": "CUDA refuses a call of NCCL",
}
VERBS = {
    "Operation not permitted": "may not use the card",
    "No space left on device": "finds the card's objects used up",
    "Operation not supported": "asks for what the card's driver does not have",
    "Input/output error": "finds that the card, or its port, is gone",
    "Some error that nobody has seen": "is refused by the card",
}
WORDS = {  # NVIDIA/nccl's own words, 2.18 to 2.30
    "misc/argcheck.cc:46 Broadcast : invalid root 9 (root should be in the 0..8 range)": ("LOG188", "an argument"),
    "misc/argcheck.cc:12 CommDestroy : comm argument is NULL": ("LOG188", "an argument"),
    "init.cc:1790 Invalid config blocking attribute value 7": ("LOG188", "ncclConfig_t has a value"),
    "group.cc:401 ncclGroupEnd: not in a group call.": ("LOG188", "out of order"),
    "enqueue.cc:812 Trying to recv to self without a matching send": ("LOG188", "out of order"),
    "enqueue.cc:2100 FP8 reduction support begins with sm90 capable devices.": ("LOG188", "cannot do what"),
    "gin/gin_host.cc:40 GIN not supported.": ("LOG188", "cannot do what"),
    "graph/rings.cc:50 Error : ring 3 does not loop back to start (5 != 0)": ("LOG189", "NCCL's own state"),
    "proxy.cc:301 Proxy append out of bounds": ("LOG189", "NCCL's own state"),
    "misc/gdrwrap.cc:140 gdr_map(handle 7f, size 65536) failed: 22": ("LOG186", "GDRCopy"),
    "misc/ipcsocket.cc:60 UDS: Binding to socket /tmp/nccl-socket-1 failed : Permission denied (13)": (
        "LOG186",
        "local sockets",
    ),
    "misc/cudawrap.cc:201 CUDA Driver version found is 11020. Minimum requirement is 11030": ("LOG186", "too old"),
    "transport/net_ib.cc:80 NET/IB : Cannot allocate any more virtual devices (8)": (
        "LOG186",
        "cards cannot be joined",
    ),
    "bootstrap.cc:57 Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port>": (
        "LOG072",
        "the value of NCCL_COMM_ID",
    ),
    "misc/socket.cc:222 Net : No valid <IPv4_or_hostname>:<port> pair found": (
        "LOG072",
        "the value of NCCL_COMM_ID",
    ),
    "bootstrap.cc:90 no device found matching ib0, verify NCCL_OOB_NET_IFNAME": ("LOG072", "NCCL_OOB_NET_IFNAME"),
    "enqueue.cc:1825 Error : no algorithm/protocol available for function AllReduce with datatype ncclFloat32. "
    "NCCL_ALGO was set to NVLS.": ("LOG072", "AllReduce of ncclFloat32 where NCCL_ALGO is NVLS"),
    "include/alloc.h:91 Failed to malloc 4718592 bytes": ("LOG106", "it asked for 4.5 MiB at once"),
    "include/checks.h:242 Thread creation failed: Resource temporarily unavailable": ("LOG194", "no more threads"),
}
HARMLESS = (
    "graph/connect.cc:420 User asked for a minimum of 64 channels, limiting to 32",
    "init.cc:1510 minCTAs 64 is larger than #channels upper limit 32, cap it to 32",
    "init.cc:400 NCCL_WORK_FIFO_BYTES=1000 is being ignored because it is not a power of 2.",
    "graph/xml.cc:301 Unable to open /x/topo.xml, not dumping topology.",
    "init.cc:2208 commReclaim: comm 0x55d0 (rank = 3) in commDestroySync, error 6",
)


def _warned(line: str) -> str:
    place, _, text = line.partition(" ")
    return f"{_BEGAN}elm4:311:340 [0] {place} NCCL WARN {text}\n"


@pytest.mark.parametrize("error", CUDA)
def test_an_error_of_cuda_is_told_with_what_nccl_was_doing(error: str) -> None:
    finding = judged(_warned(f"transport/net.cc:281 Cuda failure 1 '{error}'"))["LOG186"].findings[0]
    assert CUDA[error] in finding.what
    assert f"on elm4 ({error}) while it sets up the connections between hosts" in finding.what


@pytest.mark.parametrize("error", VERBS)
def test_an_error_of_verbs_is_told_with_its_call(error: str) -> None:
    line = f"misc/ibvwrap.cc:190 Call to ibv_query_device failed with error {error}"
    assert f"ibv_query_device on elm4 {VERBS[error]}: {error}" in judged(_warned(line))["LOG187"].findings[0].what


@pytest.mark.parametrize(
    "line",
    [
        "misc/ibvwrap.cc:190 Call to ibv_reg_mr failed with error Cannot allocate memory",
        "misc/ibvwrap.cc:190 Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1",
    ],
)
def test_what_has_its_own_check_is_left_to_it(line: str) -> None:
    assert "LOG187" not in raised(_warned(line))


@pytest.mark.parametrize("line", WORDS)
def test_a_warning_is_known_by_its_words(line: str) -> None:
    code, words = WORDS[line]
    states = raised(_warned(line))
    assert code in states
    assert "LOG005" not in states
    assert words in judged(_warned(line))[code].findings[0].what


@pytest.mark.parametrize("line", HARMLESS)
def test_what_nccl_corrects_is_no_cause(line: str) -> None:
    assert not raised(_warned(line)).keys() & {"LOG005", "LOG186", "LOG188", "LOG189"}


_INIT = "elm4:311:340 [0] NCCL INFO comm 0x55d0 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x12 - Init START\n"
_TRAIL = "elm4:311:340 [0] NCCL INFO transport/net.cc:300 -> {0}\nelm4:311:340 [0] NCCL INFO init.cc:1400 -> {0}\n"
GIVEN_UP = {  # by the result that NCCL's files hand on below a warning that nothing else knows
    "1": "a call of CUDA failed",
    "2": "the system, a driver or a library refused a call",
    "3": "over a check of its own state",
    "4": "refuses an argument",
    "5": "refuses how it is used",
    "6": "gave up on a peer",
}


@pytest.mark.parametrize("result", GIVEN_UP)
def test_a_warning_that_nothing_knows_is_the_cause_where_nccl_gave_up_after_it(result: str) -> None:
    log = _BEGAN + _INIT + _warned("misc/weather.cc:12 a sentence of 2031 about NCCL_ALGO")
    verdicts = judged(log + _TRAIL.format(result))
    assert GIVEN_UP[result] in verdicts["LOG189"].findings[0].what
    assert "about NCCL_ALGO" in verdicts["LOG189"].findings[0].what
    assert "printenv NCCL_ALGO" in verdicts["LOG189"].findings[0].remedies[0].commands
    assert verdicts["LOG005"].state is State.OK
    first = causes((log + _TRAIL.format(result)).encode())[0]
    assert first.code == "LOG189"


def test_a_warning_after_which_nobody_gave_up_stays_a_warning() -> None:
    log = _BEGAN + _INIT + _warned("misc/weather.cc:12 a sentence of 2031")
    assert raised(log)["LOG005"] == "warn"
    below = "elm4:311:340 [0] NCCL INFO transport/net.cc:300 -> 3\n"  # no caller of NCCL's gets it
    assert "LOG189" not in raised(log + below)
    assert "LOG189" not in raised(log + _TRAIL.format(3).replace(":311:340", ":999:999"))


def test_the_result_stands_in_torchs_words_where_nccl_only_warns() -> None:
    log = _warned("misc/weather.cc:12 a sentence of 2031") + (
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, internal error - "
        "please report this issue to the NCCL developers, NCCL version 2.27.7\n"
        "[rank0]: ncclInternalError: Internal check failed.\n"
    )
    assert raised(log)["LOG189"] == "fail"


def test_a_card_named_in_a_warning_is_no_meaning_of_it() -> None:
    log = _BEGAN + _warned("misc/weather.cc:12 a sentence of 2031 about mlx5_0")
    assert "LOG005" in raised(log)


def _rank(rank: int, *lines: str) -> str:
    head, comm = (
        f"oak1:{700 + rank}:{700 + rank} [{rank}] NCCL INFO ",
        f"comm 0x9{rank} rank {rank} nranks 2 cudaDev {rank}",
    )
    begun = (
        f"ncclCommInitRank {comm} busId {rank}000 commId 0x7 - Init START",
        *lines,
        "Connected all trees",
    )
    return "".join(f"{head}{line}\n" for line in begun)


_TRUNCATED = "oak1:701:760 [1] bootstrap.cc:212 NCCL WARN Message truncated : received 1024 bytes instead of 512\n"


def test_a_setting_of_one_rank_alone_is_the_cause_where_ranks_could_not_connect() -> None:
    off = "NCCL_P2P_DISABLE set by environment to 1."
    named = causes((_rank(0, off) + _rank(1) + _TRUNCATED).encode())
    assert (named[0].code, named[0].what) == (
        "LOG191",
        "ranks could not connect, for NCCL_P2P_DISABLE=1 on rank 0 alone",
    )
    assert "LOG018" not in [cause.code for cause in named]
    assert judged(_rank(0, off) + _rank(1))["LOG191"].state is State.NOTE
    for alike in (_rank(0, off) + _rank(1, off), _rank(0) + _rank(1)):
        assert raised(alike + _TRUNCATED)["LOG018"] == "fail"
        assert "LOG191" not in raised(alike + _TRUNCATED)
    early = _rank(1).replace("Connected all trees", "")  # it ended before it read its settings
    assert "LOG191" not in raised(_rank(0, off) + early + _TRUNCATED)


def test_a_check_of_nccls_that_fails_over_a_file_names_the_file() -> None:
    line = "elm4:311:340 [0] graph/topo.h:227 NCCL WARN ncclTopoRankToIndex could not find rank 0\n"
    set_ = "elm4:311:340 [0] NCCL INFO NCCL_GRAPH_FILE set by environment to /opt/graph.xml\n"
    named = causes((_BEGAN + _INIT + set_ + line + _TRAIL.format(3)).encode())
    assert named[0].what.startswith("NCCL_GRAPH_FILE=/opt/graph.xml does not fit this machine")
    assert "LOG189" not in [cause.code for cause in named]
    assert raised(_BEGAN + _INIT + line + _TRAIL.format(3))["LOG189"] == "fail"
