"""NCCL's RAS (2.24 and later): its status as it is printed, what its monitor tells, its lines in NCCL's log."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

_RAS = "gpu-a17:4711:4790 [0] NCCL INFO "
_WHO = r"(?: -- GPU \S{1,40} managed by process (?P<pid>\d{1,10}) on node (?P<here>\S{1,253}))?"

SIGNS = (
    Sign(
        "ras-count",
        r"^\s{0,8}(?:(?P<ranks>\d{1,7}) ranks have|Rank (?P<me>\d{1,7}) has) launched up to operation (?P<operation>\d{1,12})"
        + _WHO,
        (
            "  3 ranks have launched up to operation 2",
            "  Rank 3 has launched up to operation 1 -- GPU 1 managed by process 15890 on node 10.77.0.22",
        ),
    ),
    Sign(
        "ras-status",
        r"^\s{0,8}Rank (?P<me>\d{1,7}) has status (?P<status>NOCOMM|INIT|FINALIZE|ABORT)\b" + _WHO,
        ("  Rank 3 has status NOCOMM -- GPU 1 managed by process 16764 on node 10.77.0.22",),
    ),
    Sign(
        "ras-missing",
        r"^\s{0,8}Missing communicator data from (?P<count>\d{1,7}) (?P<what>rank|job process)"
        r"|(?P<dead>\d{1,7}) job process(?:es are| is) considered dead",
        (
            "  Missing communicator data from 1 rank",
            "  Missing communicator data from 2 job processes",
            "  1 job process is considered dead (unreachable via the RAS network)",
        ),
    ),
    Sign(
        "ras-process",
        r"^\s{0,8}(?:Rank (?P<me>\d{1,7}) -- GPU \S{1,40} managed by process (?P<pid>\d{1,10}) on node (?P<here>\S{1,253})$"
        r"|Process (?P<process>\d{1,10}) on node (?P<node>\S{1,253}) managing GPUs? )",
        (
            "  Rank 3 -- GPU 1 managed by process 14503 on node 10.77.0.22",
            "  Process 14503 on node 10.77.0.22 managing GPU 1",
        ),
        words=("managed by process", "managing gpu"),
    ),
    Sign(
        "ras-peer-dead",
        r"RAS declaring peer (?P<peer>\S{1,120}) as DEAD|PEER_DEAD: Process (?P<pid>\d{1,10}) on node (?P<here>\S{1,253})",
        (
            _RAS + "RAS declaring peer 10.77.0.22<40113> as DEAD; rasDeadPeersHash 0x7f3c",
            "[2025-12-19 13:07:07] PEER_DEAD: Process 1524345 on node 172.16.64.245 managing GPU 1 ",
        ),
    ),
    Sign(
        "progress-stuck",
        r"progress counter monitor: counter DMA (?:still pending after (?P<seconds>[\d.]{1,12})s \(cudaDev (?P<gpu>\d{1,4})"
        r"|launch failed for \d{1,7}/\d{1,7} comms on cudaDev (?P<device>\d{1,4}))",
        (
            _RAS + "NCCL progress counter monitor: counter DMA still pending after 600.2s (cudaDev 3, 2 comms); "
            "progress-counter mirrors may be stale",
            _RAS
            + "NCCL progress counter monitor: counter DMA launch failed for 1/2 comms on cudaDev 3; first failure "
            "rank 3 comm 00007f3c (unhandled cuda error)",
        ),
    ),
)
