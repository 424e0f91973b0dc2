"""More jobs of NCCL: kinds that were written down, with their truth, before any of them was run.

EARLIER are some whose logs are kept in tests/data/logs/nccl as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from tests.lab import Host, faults
from tests.nccl.case import (
    ADDRESSES,
    CARDS,
    ROCE_CARDS,
    SUMS,
    four,
    last,
    marked,
    on,
    pair,
    reported,
    silent,
    small_shm,
    sound,
)
from tests.nccl.job import Job, Rank

PATIENT = "all_reduce:200000 sync:20"
LONG = "init all_reduce sync:20 mark:r{} sleep:2 " + "all_reduce:300000 sync:20 " * 8 + "destroy"
OTHER_COUNT = "init all_reduce sync:20 mark:r3 all_reduce:9000000 sync:20"
P2P = {"FAKECUDA_P2P": "1"}


def long_pair() -> list[Rank]:
    """A rank on each host, each of which says when it has made its first sum, and then makes large ones."""
    return [Rank(host, steps=LONG.format(place)) for place, host in enumerate(("h1", "h2"))]


def _once_begun(job: Job, faulty: AbstractContextManager[None]) -> None:
    """From then on until the job ends, at most 12 s."""
    for place in range(len(job.ranks)):
        job.until(f"r{place}")
    with faulty:
        end = time.monotonic() + 12
        while time.monotonic() < end and any(rank.process.poll() is None for rank in job.running):
            time.sleep(0.1)


def reset_midway(job: Job) -> None:
    """From now on h2's firewall resets every connection."""
    rule = "iifname eth0 meta l4proto tcp reject with tcp reset"
    _once_begun(job, faults.filtered(job.lab["h2"], "input", rule))


def cut_midway(job: Job) -> None:
    """h2's cable is pulled."""
    _once_begun(job, faults.cut_off(job.lab["h2"], "eth0"))


@contextmanager
def port_taken(host: Host) -> Iterator[None]:
    """A program listens on the port of NCCL_COMM_ID."""
    with faults.listener(host, 29511):
        yield


TOLD = [
    reported(
        "pd_refused",
        "ibv_alloc_pd: no memory on h2",
        "LOG031 LOG038 LOG047",
        pair(),
        cards={"h1": "mlx5_0", "h2": "mlx5_0 pd=12"},
        culprit="h2",
        seconds=15.0,
    ),
    reported(
        "device_fatal",
        "h2's card reports a fatal error in a job",
        "LOG047",
        pair("init all_reduce sync:10 sleep:4 all_reduce:100000 sync:8 destroy"),
        cards={"h1": "mlx5_0", "h2": "mlx5_0 event=8@2"},
        culprit="h2",
        seconds=20.0,
    ),
    reported(
        "driver_not_loaded",
        "h2's NVIDIA driver is not loaded",
        "LOG065 LOG067 LOG068",
        pair(second={"FAKECUDA_FAIL": "nvmlInit_v2@0=9"}),
        culprit="h2",
        seconds=8.0,
    ),
    reported(
        "driver_mismatch",
        "h2's driver and its libcuda do not fit",
        "LOG065 LOG066",
        pair(second={"FAKECUDA_FAIL": "cudaGetDevice@0=803"}),
        culprit="h2",
        seconds=8.0,
    ),
    reported(
        "out_of_resources",
        "error 701 at a launch on h2",
        "LOG064 LOG067 LOG091",
        pair(second={"FAKECUDA_FAIL": "cuLaunchKernelEx@1=701"}),
        culprit="h2",
        seconds=10.0,
    ),
    reported(
        "export_denied",
        "the ranks of h1 may not share memory",
        "LOG061 LOG053 LOG060 LOG056",
        [Rank("h1", d, SUMS, env={"FAKECUDA_FAIL": "cuMemExportToShareableHandle@0=800"}) for d in (0, 1)],
        env=P2P,
        culprit="h1",
        since="2.24",
        seconds=10.0,
    ),
    reported(
        "stream_oom",
        "no memory for a stream on h2",
        "LOG063",
        pair(second={"FAKECUDA_FAIL": "cudaStreamCreateWithFlags@1+=2"}),
        culprit="h2",
        seconds=10.0,
    ),
    reported(
        "hostid_same",
        "both hosts call themselves by one NCCL_HOSTID",
        "LOG057 LOG059 LOG051 LOG050",
        pair(),
        env={"NCCL_HOSTID": "node"},
        seconds=15.0,
    ),
    reported(
        "conf_file",
        "an nccl.conf of h2 names an interface that is not there",
        "LOG012 LOG010",
        [Rank("h1", steps=SUMS), Rank("h2", steps="conf:NCCL_SOCKET_IFNAME=ib7 " + SUMS)],
        culprit="h2",
        seconds=10.0,
    ),
    reported(
        "address_space",
        "ulimit -v on h2",
        "LOG106 LOG063",
        [Rank("h1", steps=SUMS), Rank("h2", steps="space:200 " + SUMS)],
        culprit="h2",
        seconds=15.0,
    ),
    reported(
        "prohibited",
        "h2's rules prohibit what is for h1",
        "LOG014 LOG015 LOG010",
        pair(),
        fault=lambda lab: faults.refusing_rule(lab["h2"], lab["h1"].address),
        culprit="h2",
        seconds=75.0,
    ),
    reported(
        "blackhole_route",
        "h2 has a blackhole route to h1",
        "LOG014 LOG015 LOG010",
        pair(),
        fault=lambda lab: faults.refusing_route(lab["h2"], lab["h1"].address),
        culprit="h2",
        seconds=75.0,
    ),
    reported(
        "reset_midway",
        "h2's firewall resets the connections of a job",
        "LOG015 LOG014 LOG001",
        long_pair(),
        during=reset_midway,
        seconds=20.0,
    ),
    reported(
        "ib_disabled_once",
        "NCCL_IB_DISABLE=1 on h2 alone",
        "LOG016 LOG039 LOG030",
        pair(second={"NCCL_IB_DISABLE": "1"}),
        cards={"h1": "mlx5_0", "h2": "mlx5_0"},
        culprit="h2",
        seconds=20.0,
    ),
    reported(
        "traceback_before",
        "a rank raises ValueError before NCCL starts",
        "LOG004",
        last(four(), "raise"),
        culprit="h2",
        seconds=8.0,
    ),
    reported(
        "shm_inodes",
        "/dev/shm has no inode left",
        "LOG050 LOG051",
        [Rank("h1", 0, SUMS), Rank("h1", 1, SUMS)],
        culprit="h1",
        fault=on("h1", lambda host: small_shm(host, "nr_inodes=1")),
        seconds=10.0,
    ),
    reported(
        "aborts_alone",
        "a rank aborts its communicator while others sum",
        "LOG001 LOG098",
        last(marked(four(), "sleep:1 " + PATIENT), "init all_reduce sync:20 mark:r3 abort sleep:15"),
        culprit="h2",
        seconds=20.0,
    ),
]
SILENT = [
    silent("black_hole", "packets over 1400 bytes are lost at h2", pair(), fault=on("h2", faults.black_hole)),
    silent(
        "split_missing",
        "a rank takes no part in a split",
        last(marked(four(), "split:0 all_reduce sync:20"), "init all_reduce sync:20 mark:r3 sleep:20"),
    ),
    silent("cut_midway", "h2's cable is pulled in a job", long_pair(), during=cut_midway),
    silent(
        "count_differs",
        "a rank sums another count",
        last(
            marked(four(), "all_reduce:100000 sync:20"),
            "init all_reduce sync:20 mark:r3 all_reduce:9000000 sync:20",
        ),
    ),
]
SOUND = [
    sound("sound_shm_disabled", "NCCL_SHM_DISABLE=1", four(), env={"NCCL_SHM_DISABLE": "1"}),
    sound(
        "sound_dumps",
        "topology and graphs are dumped",
        pair(),
        env={"NCCL_TOPO_DUMP_FILE": "/dev/shm/topo.xml", "NCCL_GRAPH_DUMP_FILE": "/dev/shm/graph.xml"},
    ),
    sound(
        "sound_odd_values",
        "values out of range that NCCL corrects",
        pair(),
        env={"NCCL_NTHREADS": "100", "NCCL_SOCKET_NTHREADS": "40"},
    ),
    sound(
        "sound_levels",
        "one rank says little, the other everything",
        pair(first={"NCCL_DEBUG": "WARN"}, second={"NCCL_DEBUG": "TRACE"}),
    ),
    sound("sound_topo_missing", "NCCL_TOPO_FILE names no file", pair(), env={"NCCL_TOPO_FILE": "/etc/topo.xml"}),
    sound("sound_oob", "the bootstrap goes over the cards", pair(), cards=CARDS, env={"NCCL_OOB_NET_ENABLE": "1"}),
    sound("sound_mixed_gpus", "h2 has older GPUs", pair(second={"FAKECUDA_CC": "80"})),
]
EARLIER = [
    reported(
        "two_zeroes",
        "both hosts begin as rank 0",
        "LOG022",
        [Rank("h1", steps=SUMS), Rank("h2", steps=SUMS, number=0)],
        seconds=8.0,
    ),
    reported(
        "comm_id_taken",
        "the port of NCCL_COMM_ID is another program's",
        "LOG019",
        pair(),
        env={"NCCL_COMM_ID": f"{ADDRESSES['h1']}:29511"},
        fault=on("h1", port_taken),
        culprit="h1",
        seconds=10.0,
    ),
    reported(
        "few_ports",
        "h2 has no free port",
        "LOG019",
        pair(),
        fault=on("h2", lambda host: faults.port_range(host, 40000, 40003)),
        culprit="h2",
        seconds=15.0,
    ),
    reported(
        "gid_index",
        "NCCL_IB_GID_INDEX=9 on h2, which has four",
        "LOG033",
        pair(second={"NCCL_IB_GID_INDEX": "9"}),
        cards=ROCE_CARDS,
        culprit="h2",
        seconds=15.0,
    ),
    reported(
        "buffsize_differs",
        "NCCL_BUFFSIZE on h2 alone",
        "LOG084",
        pair("init all_reduce:300000 sync:6 destroy", second={"NCCL_BUFFSIZE": "65536"}),
        since="2.26",
        seconds=10.0,
    ),
    reported(
        "versions_differ",
        "h2 has another NCCL",
        "LOG018",
        [Rank("h1", steps=SUMS, version="2.27.7"), Rank("h2", steps=SUMS, version="2.23.4")],
        seconds=20.0,
    ),
    sound("sound_ras_addr", "a wrong NCCL_RAS_ADDR", pair(), since="2.24", env={"NCCL_RAS_ADDR": "nonsense"}),
]
FURTHER = [*TOLD, *SILENT, *SOUND, *EARLIER]
