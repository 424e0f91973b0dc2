"""Jobs of NCCL, sound and failing, each with its truth."""

from __future__ import annotations

from tests.lab import faults
from tests.nccl.case import (
    CARDS,
    NO_CUMEM,
    ROCE_CARDS,
    SUMS,
    Case,
    fails,
    four,
    kill_second,
    last,
    marked,
    on,
    pair,
    refused,
    reported,
    same_address,
    silent,
    slow,
    small_shm,
    sound,
    stop_second,
    with_docker,
)
from tests.nccl.further import FURTHER
from tests.nccl.job import Rank
from tests.nccl.settings import SETTINGS

SOUND = [
    sound("sound", "two hosts, sockets", pair()),
    sound("sound_four", "two hosts with two ranks each", four()),
    sound("sound_many", "many sums", pair("init " + "all_reduce:10000 sync:20 " * 5 + "destroy")),
    sound("sound_warn", "NCCL_DEBUG=WARN", pair(), env={"NCCL_DEBUG": "WARN"}),
    sound("sound_version", "NCCL_DEBUG=VERSION", pair(), env={"NCCL_DEBUG": "VERSION"}),
    sound("sound_all", "NCCL_DEBUG_SUBSYS=ALL", four(), env={"NCCL_DEBUG_SUBSYS": "ALL"}),
    sound("sound_trace", "NCCL_DEBUG=TRACE", pair(), env={"NCCL_DEBUG": "TRACE"}),
    sound("sound_one_host", "four ranks of one host over SHM", [Rank("h1", d, SUMS) for d in range(4)]),
    sound(
        "sound_nvlink",
        "four ranks of one host over NVLink",
        [Rank("h1", d, SUMS) for d in range(4)],
        env={"FAKECUDA_P2P": "1", "FAKECUDA_NVLINKS": "18"},
    ),
    sound(
        "sound_nvlink_two", "two hosts, NVLink inside", four(), env={"FAKECUDA_P2P": "1", "FAKECUDA_NVLINKS": "18"}
    ),
    sound("sound_ib", "InfiniBand", four(), cards=CARDS),
    sound("sound_roce", "RoCE", pair(), cards=ROCE_CARDS),
    sound("sound_no_verbs", "no libibverbs", pair(), cards={"h1": None, "h2": None}),
    sound("sound_ib_disabled", "NCCL_IB_DISABLE=1", pair(), env={"NCCL_IB_DISABLE": "1"}),
    sound("sound_ifname", "NCCL_SOCKET_IFNAME=eth0", pair(), env={"NCCL_SOCKET_IFNAME": "eth0"}),
    sound("sound_ifname_exact", "NCCL_SOCKET_IFNAME==eth0", pair(), env={"NCCL_SOCKET_IFNAME": "=eth0"}),
    sound("sound_docker", "docker0 beside eth0", pair(), fault=with_docker),
    sound("sound_split", "a communicator is split", four("init split:0 all_reduce sync:20 destroy")),
    sound(
        "sound_finalize",
        "ncclCommFinalize before the end",
        pair("init all_reduce sync:20 finalize sleep:1 destroy"),
    ),
    sound("sound_exit", "no destroy before the end", pair("init all_reduce sync:20 exit")),
    sound("sound_abort", "all abort their communicator at the end", pair("init all_reduce sync:20 sleep:1 abort")),
    sound("sound_slow", "a slow network", pair(), fault=on("h2", slow)),
    sound("sound_late", "a rank comes 5 s later", [Rank("h1", steps=SUMS), Rank("h2", steps="sleep:5 " + SUMS)]),
    sound(
        "sound_file", "NCCL_DEBUG_FILE cannot be written", pair(), env={"NCCL_DEBUG_FILE": "/nowhere/nccl.%h.%p"}
    ),
    sound("sound_no_p2p", "NCCL_P2P_DISABLE=1", four(), env={"NCCL_P2P_DISABLE": "1"}),
    sound(
        "sound_operations",
        "all operations",
        four("init all_reduce all_gather reduce_scatter broadcast reduce sync:20 destroy"),
    ),
    sound("sound_two_comms", "two communicators, one after the other", pair("init destroy sleep:1")),
    sound("sound_plugin", "a plugin is named that is not there", pair(), env={"NCCL_NET_PLUGIN": "none"}),
]
NETWORK = [
    reported(
        "ifname_none", "no host has the interface", "LOG012 LOG010", pair(), env={"NCCL_SOCKET_IFNAME": "ib0"}
    ),
    reported(
        "ifname_one",
        "h2 lacks the interface",
        "LOG012 LOG010",
        pair(second={"NCCL_SOCKET_IFNAME": "ens5"}),
        culprit="h2",
        seconds=10.0,
    ),
    reported(
        "ifname_excluded",
        "all interfaces are excluded",
        "LOG012 LOG010 LOG013",
        pair(),
        env={"NCCL_SOCKET_IFNAME": "^eth,lo"},
    ),
    reported(
        "loopback_all", "NCCL_SOCKET_IFNAME=lo", "LOG011", pair(), env={"NCCL_SOCKET_IFNAME": "lo"}, seconds=75.0
    ),
    reported(
        "loopback_first",
        "rank 0 takes lo",
        "LOG011",
        pair(first={"NCCL_SOCKET_IFNAME": "lo"}),
        culprit="h1",
        seconds=75.0,
    ),
    reported(
        "no_route",
        "h2 has lost its route to h1",
        "LOG014 LOG010",
        pair(),
        fault=on("h2", faults.no_route),
        culprit="h2",
    ),
    reported(
        "reset",
        "h1's firewall answers RST",
        "LOG014 LOG015 LOG010",
        pair(),
        fault=on("h1", refused),
        culprit="h1",
        seconds=75.0,
    ),
    reported(
        "icmp",
        "h1's firewall answers with ICMP",
        "LOG014 LOG015 LOG010",
        pair(),
        culprit="h1",
        seconds=75.0,
        fault=on("h1", lambda host: refused(host, "icmp type host-unreachable")),
    ),
    reported(
        "reset_second",
        "h2's firewall answers RST",
        "LOG014 LOG015 LOG010",
        pair(),
        fault=on("h2", refused),
        culprit="h2",
        seconds=75.0,
    ),
    reported(
        "same_address",
        "h2 has h1's address",
        "LOG014 LOG015 LOG010 LOG023",
        pair(),
        fault=same_address,
        seconds=75.0,
    ),
    reported(
        "root_gone",
        "rank 0 ends once it has made the id",
        "LOG014 LOG015 LOG010",
        [Rank("h1", steps="id exit:0"), Rank("h2", steps=SUMS)],
        seconds=75.0,
        culprit="h1",
    ),
    reported(
        "docker_dialled",
        "rank 0 takes docker0",
        "LOG010 LOG011 LOG014 LOG015",
        pair(first={"NCCL_SOCKET_IFNAME": "docker0"}),
        fault=with_docker,
        seconds=75.0,
        culprit="h1",
    ),
    reported("files", "ulimit -n 30", "LOG025", pair("limit:30 " + SUMS)),
]
RANKS = [
    reported(
        "world_differs",
        "rank 1 counts three ranks",
        "LOG022",
        [Rank("h1", steps=SUMS), Rank("h2", steps=SUMS, size=3)],
        seconds=8.0,
    ),
    reported(
        "rank_twice",
        "rank 1 is started twice",
        "LOG022",
        [
            Rank("h1", steps=SUMS, size=3),
            Rank("h2", steps=SUMS, size=3, number=1),
            Rank("h2", 1, steps=SUMS, size=3, number=1),
        ],
        seconds=8.0,
    ),
    reported(
        "rank_too_high",
        "a rank of 2 is number 2",
        "LOG022",
        [Rank("h1", steps=SUMS), Rank("h2", steps=SUMS, number=2)],
        seconds=8.0,
    ),
    reported(
        "same_gpu",
        "two ranks on one GPU",
        "LOG057",
        [Rank("h1", 0, SUMS), Rank("h1", 0, SUMS), Rank("h2", 0, SUMS)],
        culprit="h1",
    ),
    reported(
        "channels_differ",
        "NCCL_MAX_NCHANNELS differs",
        "LOG191",
        pair(second={"NCCL_MAX_NCHANNELS": "1"}),
        seconds=10.0,
    ),
    reported(
        "protocol_typo",
        "NCCL_PROTO=LL12",
        "LOG072",
        pair(),
        since="2.24",
        env={"NCCL_PROTO": "LL12"},
        seconds=10.0,
    ),
    reported(
        "algorithm_typo", "NCCL_ALGO=Rign", "LOG072", pair(), since="2.24", env={"NCCL_ALGO": "Rign"}, seconds=10.0
    ),
    reported("net_ib_without", "NCCL_NET=IB without cards", "LOG013 LOG030", pair(), env={"NCCL_NET": "IB"}),
    reported("net_typo", "NCCL_NET=Sockt", "LOG013 LOG030", pair(), env={"NCCL_NET": "Sockt"}),
    reported(
        "bad_pointer",
        "memory that is no GPU's",
        "LOG167",
        pair("init bad_pointer"),
        env={"NCCL_CHECK_POINTERS": "1"},
        seconds=10.0,
    ),
    reported(
        "killed",
        "a rank is killed in a sum",
        "LOG001 LOG093",
        culprit="h2",
        during=kill_second,
        seconds=20.0,
        ranks=last(marked(four(), "all_reduce:1000000 sync:10"), "init all_reduce sync:20 mark:r3 sleep:20"),
    ),
    reported(
        "segfault",
        "a rank crashes",
        "LOG001 LOG093",
        last(four("init all_reduce sync:20 all_reduce:1000000 sync:10"), "init all_reduce sync:20 segfault"),
        culprit="h2",
    ),
    reported(
        "left_early",
        "a rank leaves with exit code 1",
        "LOG001 LOG093",
        last(four("init all_reduce sync:20 all_reduce:1000000 sync:10"), "init all_reduce sync:20 exit:1"),
        culprit="h2",
    ),
]
DEVICE = [
    reported(
        "no_gpu",
        "h2 sees no GPU",
        "LOG058 LOG067 LOG166 LOG065",
        pair(second={"CUDA_VISIBLE_DEVICES": ""}),
        culprit="h2",
        seconds=8.0,
    ),
    reported(
        "old_driver",
        "h2's driver is too old",
        "LOG065",
        pair(second={"FAKECUDA_DRIVER": "11040", "FAKECUDA_MIN_DRIVER": "12000"}),
        culprit="h2",
        seconds=8.0,
    ),
    reported(
        "nvml_mismatch",
        "h2's NVML does not fit the driver",
        "LOG065 LOG066 LOG067",
        fails("nvmlInit_v2@0=18"),
        culprit="h2",
        seconds=8.0,
    ),
    reported(
        "nvml_lost",
        "NVML on h2 says that a GPU is lost",
        "LOG067",
        fails("nvmlDeviceGetHandleByIndex@0=15"),
        culprit="h2",
        seconds=8.0,
    ),
    reported(
        "oom",
        "cudaMalloc on h2",
        "LOG063",
        fails("cudaMalloc@1+=2"),
        env=NO_CUMEM,
        culprit="h2",
        seconds=10.0,
    ),
    reported("oom_cumem", "cuMemCreate on h2", "LOG063", fails("cuMemCreate@1+=2"), culprit="h2", seconds=10.0),
    reported(
        "oom_host", "cudaHostAlloc on h2", "LOG063 LOG106", fails("cudaHostAlloc@3+=2"), culprit="h2", seconds=10.0
    ),
    reported(
        "illegal_address",
        "error 700 on h2",
        "LOG091 LOG067",
        fails("cuLaunchKernelEx@1=700"),
        culprit="h2",
        seconds=10.0,
    ),
    reported(
        "illegal_sync",
        "error 700 at a stream on h2",
        "LOG091 LOG067",
        fails("cudaStreamSynchronize@3+=700"),
        culprit="h2",
        seconds=10.0,
    ),
    reported(
        "ecc", "an ECC error on h2", "LOG067", fails("cudaStreamSynchronize@3+=214"), culprit="h2", seconds=10.0
    ),
    reported(
        "nvlink_error",
        "an NVLink error on h2",
        "LOG067 LOG119",
        fails("cudaStreamSynchronize@3+=220"),
        culprit="h2",
        seconds=10.0,
    ),
    reported(
        "launch_failure",
        "error 719 on h2",
        "LOG091 LOG067",
        fails("cuLaunchKernelEx@1=719"),
        culprit="h2",
        seconds=10.0,
    ),
    reported(
        "busy",
        "h2's GPU is busy",
        "LOG067 LOG057",
        fails("cudaMalloc@1+=46"),
        env=NO_CUMEM,
        culprit="h2",
        seconds=8.0,
    ),
    reported(
        "fabric_not_ready", "error 802 on h2", "LOG055", fails("cudaGetDevice@0=802"), culprit="h2", seconds=8.0
    ),
    reported(
        "no_kernel",
        "no kernel for the GPU",
        "LOG064",
        fails("cudaFuncGetAttributes@0=209"),
        culprit="h2",
        seconds=8.0,
    ),
    reported(
        "ipc",
        "an IPC handle cannot be opened",
        "LOG061 LOG053 LOG186",
        [
            Rank(
                "h1", d, SUMS, env={"FAKECUDA_FAIL": "cudaIpcOpenMemHandle@0=1,cuMemImportFromShareableHandle@0=1"}
            )
            for d in (0, 1)
        ],
        env={"FAKECUDA_P2P": "1"},
        culprit="h1",
        seconds=10.0,
    ),
    reported(
        "shm_small",
        "/dev/shm of 1 MB",
        "LOG050",
        [Rank("h1", 0, SUMS), Rank("h1", 1, SUMS)],
        culprit="h1",
        fault=on("h1", lambda host: small_shm(host, "size=1m")),
        seconds=10.0,
    ),
    reported(
        "shm_denied",
        "/dev/shm is read-only",
        "LOG051 LOG050",
        [Rank("h1", 0, SUMS), Rank("h1", 1, SUMS)],
        culprit="h1",
        fault=on("h1", lambda host: small_shm(host, "ro")),
        seconds=10.0,
    ),
]


def _cards(second: str, first: str = "mlx5_0") -> dict[str, str | None]:
    return {"h1": first, "h2": second}


def _completion(name: str, status: int, truth: str) -> Case:
    done = f"completions of h2's card have status {status}"
    cards = _cards(f"mlx5_0 fail={status} after=2 delay=0.3")
    return reported(
        name, done, truth, pair("init all_reduce:300000 sync:6 destroy"), cards=cards, seconds=15.0, culprit="h2"
    )


VERBS = [
    _completion("retries", 12, "LOG036 LOG035"),
    _completion("rnr", 13, "LOG046 LOG036"),
    _completion("local_protection", 4, "LOG041"),
    _completion("remote_access", 10, "LOG041 LOG048"),
    _completion("remote_invalid", 9, "LOG042 LOG048"),
    _completion("remote_operation", 11, "LOG036 LOG048"),
    _completion("local_length", 1, "LOG041 LOG042"),
    reported(
        "modify_timeout",
        "ibv_modify_qp times out on h2",
        "LOG035 LOG036 LOG034",
        pair(),
        cards=_cards("mlx5_0 modify=110"),
        seconds=75.0,
        culprit="h2",
    ),
    reported(
        "modify_invalid",
        "ibv_modify_qp is refused on h2",
        "LOG033 LOG034 LOG035 LOG042 LOG044",
        pair(),
        cards=_cards("mlx5_0 modify=22"),
        seconds=15.0,
        culprit="h2",
    ),
    reported(
        "pinned_memory",
        "ibv_reg_mr: no memory on h2",
        "LOG038",
        pair(),
        cards=_cards("mlx5_0 memory=12"),
        seconds=15.0,
        culprit="h2",
    ),
    reported(
        "queue_memory",
        "ibv_create_qp: no memory on h2",
        "LOG038",
        pair(),
        cards=_cards("mlx5_0 queue=12"),
        seconds=15.0,
        culprit="h2",
    ),
    reported(
        "card_not_opened",
        "ibv_open_device fails on h2",
        "LOG031",
        pair(),
        cards=_cards("mlx5_0 open=19"),
        seconds=15.0,
        culprit="h2",
    ),
    reported(
        "port_event",
        "h2's port goes down in a job",
        "LOG036 LOG047",
        pair("init all_reduce sync:10 sleep:4 all_reduce:100000 sync:8 destroy"),
        cards=_cards("mlx5_0 event=10@2"),
        seconds=20.0,
        culprit="h2",
    ),
    reported(
        "mixed_links",
        "InfiniBand and RoCE",
        "LOG044",
        pair(),
        cards={"h1": "mlx5_0", "h2": ROCE_CARDS["h2"]},
        seconds=15.0,
    ),
    reported(
        "one_without",
        "h2 has no card",
        "LOG016 LOG030 LOG032",
        pair(),
        cards={"h1": "mlx5_0", "h2": ""},
        seconds=20.0,
        culprit="h2",
    ),
]
SILENT = [
    silent("missing_rank", "a rank never comes", [*four()[:3], Rank("h2", 1, absent=True)]),
    silent(
        "missing_host", "a host never comes", [*four()[:2], Rank("h2", 0, absent=True), Rank("h2", 1, absent=True)]
    ),
    silent("dropped", "h1 drops SYNs", pair(), fault=on("h1", faults.drop_high_ports)),
    silent("dropped_second", "h2 drops SYNs", pair(), fault=on("h2", faults.drop_high_ports)),
    silent(
        "cut",
        "h2's cable is out",
        pair(),
        truth=frozenset({"LOG014"}),  # the kernel may say "No route to host" in time
        fault=on("h2", lambda host: faults.cut_off(host, "eth0")),
    ),
    silent(
        "skipped",
        "a rank leaves a sum out",
        last(marked(four(), "all_reduce:100000 sync:20"), "init all_reduce sync:20 mark:r3 sleep:20"),
    ),
    silent(
        "other",
        "a rank calls another collective",
        last(
            marked(four(), "all_reduce:100000 sync:20"),
            "init all_reduce sync:20 mark:r3 all_gather:100000 sync:20 sleep:20",
        ),
    ),
    silent(
        "stopped", "a rank is stopped", marked(four(), "sleep:1 all_reduce:100000 sync:20"), during=stop_second
    ),
    silent("hung_kernel", "kernels never end", pair("init all_reduce sync:20"), kernel="hang"),
    silent("stopped_at_init", "a rank is stopped before its start", last(four(), "stop " + SUMS)),
]
CASES = [*SOUND, *NETWORK, *RANKS, *DEVICE, *VERBS, *SILENT, *FURTHER, *SETTINGS]
