"""Jobs of NCCL whose settings are wrong, or whose cards, GPUs and ranks do what no other case does."""

from __future__ import annotations

import signal
import time

from tests.lab import faults
from tests.nccl.case import (
    ADDRESSES,
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
    reported,
    silent,
    sound,
    with_docker,
)
from tests.nccl.job import Job, Rank

ONE_CARD = {"h1": "mlx5_0", "h2": "mlx5_0"}
LARGE = "init all_reduce:300000 sync:6 destroy"
LATE = "init all_reduce sync:10 sleep:4 all_reduce:100000 sync:8 destroy"
STATUSES = {"queue_pair": 2, "response": 7, "fatal": 19, "general": 21}


def _second_card(fault: str) -> dict[str, str | None]:
    return {"h1": "mlx5_0", "h2": f"mlx5_0 {fault}"}


def _second(steps: str) -> list[Rank]:
    """The rank of h2 has other steps."""
    return [Rank("h1", steps=SUMS), Rank("h2", steps=steps)]


def _quick(name: str, done: str, truth: str, ranks: list[Rank], **more: object) -> Case:
    return reported(name, done, truth, ranks, **{"seconds": 12.0, **more})


def kill_first(job: Job) -> None:
    """SIGKILL of rank 0, once all have made a sum."""
    for place in range(len(job.ranks)):
        job.until(f"r{place}")
    time.sleep(0.5)
    job.signal(0, signal.SIGKILL)


VARIABLES = [
    _quick("algo_collnet", "NCCL_ALGO asks for CollNet", "LOG072", pair(), env={"NCCL_ALGO": "CollNetDirect"}),
    _quick(
        "topo_version",
        "h2's NCCL_TOPO_FILE says version 7",
        "LOG073",
        _second("xml:NCCL_TOPO_FILE=system,7 " + SUMS),
    ),
    _quick("topo_broken", "h2's NCCL_TOPO_FILE is no XML", "LOG073", _second("xml:NCCL_TOPO_FILE=system " + SUMS)),
    _quick(
        "graph_version", "NCCL_GRAPH_FILE says version 9", "LOG073", pair("xml:NCCL_GRAPH_FILE=graphs,9 " + SUMS)
    ),
    _quick(
        "comm_id_name",
        "the host in NCCL_COMM_ID has no address",
        "LOG072",
        pair(),
        env={"NCCL_COMM_ID": "no.invalid:29500"},
    ),
    _quick(
        "comm_id_elsewhere",
        "NCCL_COMM_ID names h2, rank 0 is on h1",
        "LOG013",
        pair(),
        env={"NCCL_COMM_ID": f"{ADDRESSES['h2']}:29500"},
    ),
    _quick(
        "hca_typo",
        "NCCL_IB_HCA names no card of h2",
        "LOG016 LOG030",
        pair(second={"NCCL_IB_HCA": "mlx5_7"}),
        cards=ONE_CARD,
        culprit="h2",
    ),
    _quick(
        "nets_differ",
        "NCCL_NET is Socket on h1, IB on h2",
        "LOG016",
        pair(first={"NCCL_NET": "Socket"}, second={"NCCL_NET": "IB"}),
        cards=ONE_CARD,
    ),
    _quick(
        "no_transport",
        "P2P, SHM and cards within a host are forbidden",
        "LOG060",
        [Rank("h1", device, SUMS) for device in (0, 1)],
        env={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET_DISABLE_INTRA": "1"},
    ),
    _quick(
        "protocols_excluded", "NCCL_PROTO excludes all", "LOG072", pair(), env={"NCCL_PROTO": "^LL,LL128,Simple"}
    ),
    _quick(
        "bootstrap_card",
        "NCCL_OOB_NET_IFNAME names no card",
        "LOG072",
        pair(),
        cards=ONE_CARD,
        env={"NCCL_OOB_NET_ENABLE": "1", "NCCL_OOB_NET_IFNAME": "mlx5_9"},
    ),
    _quick(
        "gid_index_both",
        "NCCL_IB_GID_INDEX=200",
        "LOG033",
        pair(),
        cards=ROCE_CARDS,
        env={"NCCL_IB_GID_INDEX": "200"},
    ),
    _quick(
        "loopback_second",
        "h2 takes lo",
        "LOG011",
        pair(second={"NCCL_SOCKET_IFNAME": "lo"}),
        culprit="h2",
        seconds=30.0,
    ),
    _quick(
        "docker_second",
        "h2 takes docker0",
        "LOG010 LOG011",
        pair(second={"NCCL_SOCKET_IFNAME": "docker0"}),
        fault=with_docker,
        culprit="h2",
        seconds=30.0,
    ),
    _quick(
        "interface_down",
        "eth0 of h2 is down",
        "LOG014 LOG010 LOG011",
        pair(),
        fault=on("h2", faults.link_down),
        culprit="h2",
    ),
    sound(
        "sound_lane",
        "a service level, a traffic class, no checks",
        pair(),
        cards=ONE_CARD,
        env={"NCCL_CHECKS_DISABLE": "1", "NCCL_IB_SL": "3", "NCCL_IB_TC": "106", "NCCL_BUFFSIZE": "1048576"},
    ),
    sound(
        "sound_nonsense",
        "values that mean nothing",
        pair(),
        env={
            "NCCL_LAUNCH_MODE": "BOGUS",
            "NCCL_P2P_LEVEL": "XYZ",
            "NCCL_CROSS_NIC": "9",
            "NCCL_MIN_NCHANNELS": "64",
            "NCCL_MAX_NCHANNELS": "2",
        },
    ),
    sound("sound_uneven", "two ranks on h1, one on h2", [*four()[:2], Rank("h2", 0, SUMS)]),
]
CARDS_AND_GPUS = [
    *[
        _quick(
            f"completion_{name}",
            f"completions of h2's card have status {status}",
            "LOG048",
            pair(LARGE),
            cards=_second_card(f"fail={status} after=2 delay=0.3"),
            seconds=20.0,
        )
        for name, status in STATUSES.items()
    ],
    _quick(
        "memory_fault",
        "ibv_reg_mr: bad address on h2",
        "LOG040",
        pair(),
        cards=_second_card("memory=14"),
        culprit="h2",
    ),
    _quick("domain_denied", "ibv_alloc_pd: not permitted on h2", "LOG187", pair(), cards=_second_card("pd=1")),
    _quick(
        "queue_refused", "ibv_create_qp: invalid argument on h2", "LOG187", pair(), cards=_second_card("queue=22")
    ),
    _quick("memory_denied", "ibv_reg_mr: not permitted on h2", "LOG187", pair(), cards=_second_card("memory=1")),
    _quick(
        "card_denied", "ibv_open_device: permission denied on h2", "LOG031", pair(), cards=_second_card("open=13")
    ),
    _quick(
        "completion_received",
        "h1's receives fail with status 8",
        "LOG048",
        pair(LARGE),
        cards={"h1": "mlx5_0 receive_fail=8 after=2 delay=0.3", "h2": "mlx5_0"},
        seconds=20.0,
    ),
    _quick("copy_700", "error 700 at a copy on h2", "LOG091", fails("cudaMemcpyAsync@2+=700")),
    _quick("cuda_unknown", "error 999 on h2", "LOG068", fails("cudaGetDevice@0=999"), culprit="h2"),
    _quick(
        "queue_pair_event",
        "h2's card loses a queue pair in a job",
        "LOG047",
        pair(LATE),
        cards=_second_card("event=1@2"),
        seconds=20.0,
    ),
    sound("sound_subnet", "another subnet manager in a job", pair(LATE), cards=_second_card("event=13@2")),
    _quick("launch_timeout", "error 702 on h2", "LOG186", fails("cuLaunchKernelEx@1=702"), culprit="h2"),
    _quick("illegal_instruction", "error 715 on h2", "LOG091", fails("cudaStreamSynchronize@3+=715")),
    _quick("system_call", "error 304 on h2", "LOG068", fails("cudaGetDevice@0=304"), culprit="h2"),
    _quick(
        "nvml_denied",
        "NVML refuses a GPU of h2",
        "LOG067",
        fails("nvmlDeviceGetHandleByPciBusId@0=4,nvmlDeviceGetHandleByIndex@0=4"),
        culprit="h2",
    ),
]
RANKS = [
    _quick(
        "receive_peer",
        "a rank of 2 receives from number 9",
        "LOG188",
        _second("init all_reduce sync:20 receive:9"),
    ),
    _quick(
        "truncated",
        "more is sent than is awaited",
        "LOG084",
        [Rank("h1", steps="init send:1,200000 sync:8"), Rank("h2", steps="init receive:0,1000 sync:8")],
        seconds=20.0,
    ),
    _quick(
        "versions_near",
        "2.27.7 on h1, 2.26.5 on h2",
        "LOG018",
        [Rank("h1", steps=SUMS, version="2.27.7"), Rank("h2", steps=SUMS, version="2.26.5")],
    ),
    _quick(
        "killed_first",
        "rank 0 is killed in a sum",
        "LOG001 LOG093",
        [
            Rank("h1", 0, "init all_reduce sync:20 mark:r0 sleep:20"),
            *marked(four(), "sleep:1 all_reduce:1000000 sync:10")[1:],
        ],
        during=kill_first,
        seconds=20.0,
    ),
    _quick(
        "killed_in_split",
        "a rank is killed while others split",
        "LOG001",
        last(marked(four(), "sleep:1 split:0 all_reduce sync:10"), "init all_reduce sync:20 mark:r3 sleep:20"),
        during=kill_second,
        seconds=20.0,
    ),
    silent(
        "killed_shm",
        "a rank is killed that others meet in shared memory",
        last(
            [
                Rank("h1", n, f"init all_reduce sync:20 mark:r{n} sleep:1 all_reduce:1000000 sync:10")
                for n in range(3)
            ],
            "init all_reduce sync:20 mark:r2 sleep:20",
        ),
        during=kill_second,
    ),
    silent(
        "receive_alone", "a rank receives what is never sent", _second("init all_reduce sync:20 receive:0 sync:6")
    ),
]
SETTINGS = [*VARIABLES, *CARDS_AND_GPUS, *RANKS]
