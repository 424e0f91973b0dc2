"""LOG rules about the inside of a node: what a log must say for each of them, and what is not enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.logs import causes
from tests.helpers.logs import judged, raised

_STORIES = Path(__file__).parents[3] / "data/logs/stories"
_OURS = tuple(f"LOG{number:03d}" for number in range(50, 80))


def own_states(text: str) -> dict[str, str]:
    """Code -> state of the rules of this family that found something."""
    states = {code: verdict.state.value for code, verdict in judged(text).items() if code in _OURS}
    return {code: state for code, state in states.items() if state in ("fail", "warn")}


def what(text: str, code: str) -> str:
    """The first finding of a rule, in a sentence."""
    return judged(text)[code].findings[0].what


def process(
    rank: int,
    *lines: str,
    ranks: int = 2,
    nodes: int = 1,
    host: str = "ash3",
    address: str = "10.4.0.3",
    version: str = "2.21.5",
    complete: bool = True,
) -> str:
    """What NCCL says of itself on one rank; lines: more of it, with their level and place."""
    head, comm = f"{host}:{700 + rank}:{740 + rank} [{rank}]", f"comm 0x9{rank} rank {rank}"
    printed = [
        f"NCCL INFO NCCL version {version}+cuda12.4",
        f"NCCL INFO Bootstrap : Using eth0:{address}<0>",
        f"NCCL INFO ncclCommInitRank {comm} nranks {ranks} cudaDev {rank} busId {rank + 1}b000 commId 0x7 - "
        "Init START",
        f"NCCL INFO {comm} nRanks {ranks} nNodes {nodes} localRanks {ranks // nodes} localRank 0 MNNVL 0",
        *lines,
    ]
    if complete:
        printed.append(
            f"NCCL INFO ncclCommInitRank {comm} nranks {ranks} cudaDev {rank} busId 1b000 - Init COMPLETE"
        )
    return "".join(f"{head} {line}\n" for line in printed)


def warn(text: str, place: str = "init.cc:1") -> str:
    """A warning of NCCL, from a place in its source."""
    return f"{place} NCCL WARN {text}"


def timeout(rank: int, seq: int = 1) -> str:
    """The watchdog's time-out on a rank."""
    return (
        f"[rank{rank}]:[E1103 08:41:10.118 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
        "operation "
        f"timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran "
        "for 600031 "
        "milliseconds before timing out.\n"
    )


_PCIE = ("NCCL INFO P2P Chunksize set to 131072", "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC")
_NVLINK = ("NCCL INFO P2P Chunksize set to 524288", "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC")
_HANG = timeout(0) + timeout(1)
_ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
_NOT_ATTACHED = "Error while attaching to shared memory segment"
_SLICES = "  MIG 3g.40gb     Device  0: (UUID: MIG-6f2d3a51-7c1e-5a0b-9f3e-2b7f0c61d5aa)\n"
_SHARED = warn("Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to allow it.")
_TWICE = warn("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000")
_NOT_PERMITTED = warn("Cuda failure 800 'operation not permitted'", "proxy.cc:1439")
_CUDA_1 = warn("Cuda failure 1 'invalid argument'")
_IN_NVLS = warn("Cuda failure 1 'invalid argument'", "transport/nvls.cc:254")
_NO_MEMORY = warn("Cuda failure 2 'out of memory'", "include/alloc.h:9")
_NO_DEVICE = warn("Cuda failure 101 'invalid device ordinal'", "transport/p2p.cc:275")
_SHM_KERNEL = "ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856"
_TOPOLOGY = "NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 6.000000/6.000000, type PHB/PHB, sameChannels 1"
_UNREAD = "NCCL INFO Topology detection : could not read /sys/devices/pci0001:00/max_link_speed, ignoring"
_VIA_NET = "NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0"

_RAISED = {
    "nccl#342": (
        process(0, warn("Call to posix_fallocate failed: No space left on device"), version="2.7.3"),
        "LOG050",
    ),
    "2.14 tells no error": (
        process(0, warn("Error: failed to extend /dev/shm/nccl-Ab12Cd to 9637892 bytes")),
        "LOG050",
    ),
    "as torch repeats it": (
        "Last error:\nError: failed to extend /dev/shm/nccl-Ab12Cd to 9637892 bytes, error: No space left on "
        "device (28)\n",
        "LOG050",
    ),
    "no fallocate": (
        process(
            0, warn("Error: failed to extend /dev/shm/nccl-Ab12Cd to 9 bytes, error: Operation not supported (95)")
        ),
        "LOG051",
    ),
    "nccl#2059": (
        process(0, warn(f"{_NOT_ATTACHED} /dev/shm/nccl-\\x90K (size 0), error: No such file or directory (2)")),
        "LOG053",
    ),
    "a name without an end": (
        process(0, warn(f"{_NOT_ATTACHED} /dev/shm/nccl- (size 192814336), error: No such file or directory (2)")),
        "LOG053",
    ),
    "pytorch#152302": (
        process(0, _NO_MEMORY, "NCCL INFO transport/shm.cc:590 -> 1", version="2.26.2", complete=False),
        "LOG053",
    ),
    "host memory by its place": (
        process(0, warn("Cuda failure 101 'invalid device ordinal'", "transport/shm.cc:12"), version="2.26.2"),
        "LOG053",
    ),
    "nvls.cc by its place": (process(0, _IN_NVLS, version="2.19.3"), "LOG054"),
    "nvls.cc by its caller": (process(0, _CUDA_1, "NCCL INFO transport/nvls.cc:339 -> 1"), "LOG054"),
    "nccl-tests#264": ("ash3: Test CUDA failure common.cu:941 'system not yet initialized'\n", "LOG055"),
    "no right to the fabric": (process(0, _NOT_PERMITTED, nodes=2), "LOG056"),
    "no right to share within a host": (process(0, _NOT_PERMITTED, complete=False) + process(1), "LOG061"),
    "2.30 names no ranks": (process(0, _SHARED, version="2.30.7"), "LOG057"),
    "slices of a GPU": (_SLICES + process(0, _TWICE), "LOG057"),
    "a neighbour's GPU": (process(0, _NO_DEVICE, version="2.28.9"), "LOG058"),
    "nccl-tests counts": ("Invalid number of GPUs: 8 requested but only 4 were found.\n", "LOG058"),
    "old torch": ("RuntimeError: cuda runtime error (101) : invalid device ordinal at Module.cpp:59\n", "LOG058"),
    "one id on two machines": (
        process(0, "NCCL INFO NCCL_HOSTID set by environment to node", _TWICE, host="ash3", complete=False)
        + process(1, "NCCL INFO NCCL_HOSTID set by environment to node", host="ash4", address="10.4.0.4"),
        "LOG059",
    ),
    "namespaces": (
        process(0, warn("UDS: Sending data over socket /tmp/nccl-socket-1-9f failed : Connection refused (111)")),
        "LOG059",
    ),
    "nccl#2079": (process(0, *_PCIE) + process(1, *_PCIE) + _HANG, "LOG062"),
    "nccl-tests finds wrong values": (
        process(0, *_PCIE) + process(1, *_PCIE) + "# Out of bounds values : 36 FAILED\n",
        "LOG062",
    ),
    "the program's own": ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB.\n", "LOG063"),
    "host memory or not": (process(0, _NO_MEMORY, version="2.26.2"), "LOG063"),
    "nccl#1637": (process(0, f"NCCL INFO {_SHM_KERNEL}", _CUDA_1, version="2.25.1", complete=False), "LOG064"),
    "torch and a new GPU": (
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch "
        "installation.\n",
        "LOG064",
    ),
    "cuda-compat": (
        "ash3: Test CUDA failure common.cu:8 'system has unsupported display driver / cuda driver combination'\n",
        "LOG065",
    ),
    "torch and an old GPU": ("Found GPU0 Tesla K80 which is of cuda capability 3.7.\n", "LOG064"),
    "torch's own line of code": ("warnings.warn(incompatible_device_warn.format(name, capability))\n", "LOG064"),
    "forked or too old": (process(0, warn("Cuda failure 'initialization error'")), "LOG065"),
    "upgraded, not rebooted": ("Failed to initialize NVML: Driver/library version mismatch\n", "LOG065"),
    "no library": (
        "ImportError: libnccl.so.2: cannot open shared object file: No such file or directory\n",
        "LOG066",
    ),
    "vllm#5222": (_ECC, "LOG067"),
    "off the bus": ("[9.1] NVRM: Xid (PCI:0000:9b:00): 79, pid=7, GPU has fallen off the bus.\n", "LOG067"),
    "either": ("RuntimeError: CUDA error: unspecified launch failure\n", "LOG067"),
    "memory pools": (process(0, warn("Cuda failure 801 'operation not supported'"), version="2.23.4"), "LOG068"),
    "in the start": (process(0, complete=False) + "  exitcode  : -11 (pid: 700)\n", "LOG070"),
}

_WARNED = {
    "unlink alone": (
        process(0, warn("unlink shared memory /dev/shm/nccl-Ab12Cd failed, error: No such file or directory (2)")),
        "LOG052",
    ),
    "all fell back": (
        process(0, "NCCL INFO cuMem host allocations do not appear to be working; falling"),
        "LOG053",
    ),
    "unused kernels": (process(0, f"NCCL INFO {_SHM_KERNEL}", version="2.25.1"), "LOG064"),
    "corrected in time": ("NVRM: Xid (PCI:0000:9b:00): 63, pid=7, Row Remapper: New row marked\n", "LOG067"),
    "2.28 tells cores": (
        process(0, "NCCL INFO Affinity for GPU 0 is 0. (GPU affinity = 0-31 ; CPU affinity = 0)."),
        "LOG069",
    ),
    "a virtual tree": (process(0, _UNREAD, _TOPOLOGY), "LOG071"),
}

# Of jobs that are seen to be sound: all ranks came through, and nothing failed. That NCCL goes through the host's
# memory is never more, whatever else the log holds: it ends no job, and sound ones say it on most platforms.
_NOTED = {
    "no P2P": (process(0, "NCCL INFO P2P is disabled between connected GPUs 1 and 0."), "LOG061"),
    "WSL2": (process(0, "NCCL INFO Legacy IPC not supported"), "LOG061"),
    "P2P in a job of which a host prints nothing": (
        process(0, "NCCL INFO P2P is disabled between connected GPUs 1 and 0.", ranks=4, nodes=2)
        + process(1, ranks=4, nodes=2),
        "LOG061",
    ),
    "containers of one machine": (
        process(0, nodes=2, host="pod-a") + process(1, nodes=2, host="pod-b"),
        "LOG059",
    ),
    "behind docker's bridge": (
        process(0, nodes=2, host="c1", address="172.17.0.2")
        + process(1, nodes=2, host="c2", address="172.17.0.3"),
        "LOG059",
    ),
    "network in one machine": (process(0, _VIA_NET) + process(1), "LOG059"),
}

_SILENT = {
    "healthy": process(0, "NCCL INFO Setting affinity for GPU 0 to ffff,ffffffff") + process(1),
    "two machines": process(0, nodes=2) + process(1, nodes=2, host="ash4", address="10.4.0.4"),
    "docker0 of two machines": process(0, _VIA_NET, nodes=2).replace("eth0:10.4.0.3", "docker0:172.17.0.1")
    + process(1, nodes=2, host="ash4").replace("eth0:10.4.0.3", "docker0:172.17.0.1"),
    "half of the ranks": process(0, nodes=2, ranks=4) + process(1, nodes=2, ranks=4),
    "a retry": process(
        0, "NCCL INFO fallocate: Failed to extend /dev/shm/nccl-A to 9 bytes, error: Interrupted (4) - retrying"
    ),
    "a hang over NVLink": process(0, *_NVLINK) + process(1, *_NVLINK) + _HANG,
    "a hang without P2P": process(0, "NCCL INFO NCCL_P2P_DISABLE set by environment to 1", *_PCIE)
    + process(1, *_PCIE)
    + _HANG,
    "a later hang": process(0, *_PCIE) + process(1, *_PCIE) + timeout(0, 900) + timeout(1, 900),
    "a rank that never came": process(0, *_PCIE) + process(1, *_PCIE) + timeout(0),
    "two collectives": process(0, *_PCIE) + process(1, *_PCIE) + timeout(0, 1) + timeout(1, 2),
    "cores enough": process(
        0, "NCCL INFO Affinity for GPU 0 is 0-31. (GPU affinity = 0-31 ; CPU affinity = 0-95)."
    ),
    "a crash later": process(0) + "  exitcode  : -11 (pid: 700)\n",
    "a crash of a loader": process(0, complete=False)
    + "DataLoader worker (pid 9) is killed by signal: Segmentation fault.\n",
    "a launch failure that Xid 31 explains": "RuntimeError: CUDA error: unspecified launch failure\n"
    "NVRM: Xid (PCI:0000:9b:00): 31, pid=7, MMU Fault\n",
    "PHB on a machine as it is": process(0, _TOPOLOGY),
    "a topology file": process(0, "NCCL INFO NCCL_TOPO_FILE set by environment to /x.xml", _UNREAD, _TOPOLOGY),
    "no plugin": "x:1:2 [0] NCCL INFO NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: "
    "cannot open "
    "shared object file: No such file or directory\n",
}


@pytest.mark.parametrize(("text", "code"), _RAISED.values(), ids=_RAISED.keys())
def test_fails(text: str, code: str) -> None:
    assert own_states(text) == {code: "fail"}


@pytest.mark.parametrize(("text", "code"), _NOTED.values(), ids=_NOTED.keys())
def test_notes(text: str, code: str) -> None:
    assert own_states(text) == {}
    assert judged(text)[code].state.value == "note"


@pytest.mark.parametrize(("text", "code"), _WARNED.values(), ids=_WARNED.keys())
def test_warns(text: str, code: str) -> None:
    assert own_states(text) == {code: "warn"}


@pytest.mark.parametrize("text", _SILENT.values(), ids=_SILENT.keys())
def test_is_silent(text: str) -> None:
    assert own_states(text) == {}


@pytest.mark.parametrize(
    "path", sorted(p for p in _STORIES.glob("*.log") if p.stem in _OURS), ids=lambda path: path.stem
)
def test_a_story_shows_its_own_rule_only(path: Path) -> None:
    text = path.read_text()
    states = dict(word.split("=") for word in text.splitlines()[0].split()[2:])
    assert own_states(text) == {code: state for code, state in states.items() if code in _OURS}


def test_who_shares_a_gpu() -> None:
    pairs = [
        warn(f"Duplicate GPU detected : rank {a} and rank {b} both on CUDA device 1b000")
        for a, b in ((0, 1), (0, 2))
    ]
    assert what(process(0, *pairs, ranks=3), "LOG057") == "ranks 0, 1 and 2 have one GPU (1b000) on ash3"


def test_a_gpu_that_is_lost_is_named_by_its_xid() -> None:
    text = "NVRM: Xid (PCI:0000:9b:00): 79, pid=7, GPU has fallen off the bus.\n"
    assert "Xid 79, the GPU has fallen off the bus" in what(text, "LOG067")


def test_all_ranks_on_one_core() -> None:
    line = "NCCL INFO Setting affinity for GPU 0 to 01"
    assert what(process(0, line) + process(1, line), "LOG069").endswith("have one core, all the same")


def test_memory_that_could_be_of_the_host_says_so() -> None:
    finding = judged(process(0, _NO_MEMORY, version="2.26.2"))["LOG063"].findings[0]
    assert any("NCCL_CUMEM_HOST_ENABLE=0" in command for remedy in finding.remedies for command in remedy.commands)


def test_a_full_gpu_is_no_cause_after_another_error_of_cuda() -> None:
    text = process(
        0, warn("Cuda failure 719 'unspecified launch failure'"), warn("Failed to CUDA calloc async 608 bytes")
    )
    assert own_states(text) == {"LOG067": "fail"}


def test_a_libcuda_of_the_image_calls_for_no_new_driver() -> None:
    (finding,) = judged("RuntimeError: CUDA error: forward compatibility was attempted on non supported HW\n")[
        "LOG065"
    ].findings
    assert "cuda-compat" in finding.what
    assert finding.owner == "job"
    assert not [remedy for remedy in finding.remedies if "reboot" in " ".join(remedy.commands)]


def test_an_old_gpu_wants_older_packages_and_a_new_one_newer() -> None:
    def advice(text: str) -> str:
        (finding,) = judged(text)["LOG064"].findings
        return " ".join(remedy.text for remedy in finding.remedies)

    end = "is not compatible with the current PyTorch installation.\n"
    assert "older packages" in advice("Tesla P100 with CUDA capability sm_60 " + end)
    assert "newer packages" not in advice("Tesla P100 with CUDA capability sm_60 " + end)
    assert "older packages" not in advice("RTX 5090 with CUDA capability sm_120 " + end)


def test_error_802_in_a_container_leaves_open_whose_fault_it_is() -> None:
    line = "1:9 [0] init.cc:1 NCCL WARN Cuda failure 802 'system not yet initialized'"
    for host, words in (
        ("ash3", "the fabric manager has not set up"),
        ("0a1b2c3d4e5f", "or what the container was"),
    ):
        (finding,) = judged(f"{host}:{line}\n")["LOG055"].findings
        assert words in finding.what
        assert {remedy.who for remedy in finding.remedies} == {"you", "admin"}


def test_what_costs_speed_is_no_cause_beside_a_failure() -> None:
    one_core = "NCCL INFO Affinity for GPU 0 is 0. (GPU affinity = 0-31 ; CPU affinity = 0)."
    log = process(0, one_core, complete=False)
    assert "LOG069" in [cause.code for cause in causes(log.encode())]
    failed = log + "ash3: Test CUDA failure common.cu:941 'system not yet initialized'\n"
    assert [cause.code for cause in causes(failed.encode())][:2] == ["LOG055", "LOG002"]
    assert "LOG069" in raised(failed)


def test_ranks_that_left_in_order_make_a_job_sound_whose_others_print_nothing() -> None:
    virtual = process(0, _UNREAD, _TOPOLOGY, ranks=4, nodes=2) + process(1, ranks=4, nodes=2)
    gone = "".join(
        f"ash3:{700 + rank}:{740 + rank} [{rank}] NCCL INFO comm 0x9{rank} rank {rank} nranks 4 cudaDev {rank} "
        "busId 1b000 - Destroy COMPLETE\n"
        for rank in (0, 1)
    )
    assert judged(virtual)["LOG071"].state.value == "warn"
    assert judged(virtual + gone)["LOG071"].state.value == "note"
