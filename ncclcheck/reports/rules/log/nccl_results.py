"""Why NCCL gave up, by the result that it handed to its caller, for warnings that nothing knows better."""

from __future__ import annotations

from ncclcheck.reports.rules.log.nccl_words import LIBRARIES, meant

_NEWEST = (
    "Search for these words in the issues of NVIDIA/nccl, and try the newest NCCL.",
    "python -m pip install -U nvidia-nccl-cu12",
)

# ncclResult_t of nccl.h
RESULTS = {
    "1": meant(
        "",
        "NCCL gave up since a call of CUDA failed",
        "Its caller gets `unhandled cuda error`; the line says what NCCL did when it came to that.",
        ("Confirm: what the driver says of the GPU.", "nvidia-smi", "dmesg | grep -i xid"),
        LIBRARIES,
        owner="node",
    ),
    "2": meant(
        "",
        "NCCL gave up since the system, a driver or a library refused a call",
        "Its caller gets `unhandled system error`; the line names the call, file or device.",
        (
            "Confirm, on this host and in the same container, what the line names.",
            "ulimit -a; df -h /dev/shm /tmp",
        ),
        owner="node",
    ),
    "3": meant(
        "",
        "NCCL gave up over a check of its own state",
        "It does not follow from a call of the program: NCCL takes this machine for what it is not, hosts run "
        "different builds, or it has a defect.",
        (
            "Confirm without the files and variables that describe the machine to NCCL or change its choices.",
            "env | grep NCCL_",
            "cat /etc/nccl.conf ~/.nccl.conf",
        ),
        _NEWEST,
    ),
    "4": meant(
        "",
        "NCCL refuses an argument of the program",
        "The call fails on this rank with ncclInvalidArgument, and the others wait for it.",
        ("Look at the arguments that this rank passes.", "export NCCL_DEBUG_SUBSYS=COLL"),
    ),
    "5": meant(
        "",
        "NCCL refuses how it is used",
        "The call fails with ncclInvalidUsage: a setting, a call, or ranks that do not agree.",
        (
            "Confirm without the settings that the line speaks of.",
            "env | grep NCCL_",
            "cat /etc/nccl.conf ~/.nccl.conf",
        ),
    ),
    "6": meant(
        "",
        "NCCL gave up on a peer",
        "The process at the other end answered with an error or went away; its own log says why.",
        ("Read the log of the other ranks.", "export NCCL_DEBUG=INFO"),
    ),
}
