"""How NCCL's caller repeats an error of NCCL: its result, and the last warning, which may stand nowhere else."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

SIGNS = (
    Sign(
        "nccl-result",
        r"\bnccl(?P<result>SystemError|InternalError|UnhandledCudaError|InvalidUsage|InvalidArgument|RemoteError): "
        r"|NCCL Init failed|(?:NCCL|RCCL) (?:failure|error)[ :].{0,200}?['\" ,](?P<words>unhandled (?:system|cuda|hip) error"
        r"|internal error|invalid (?:usage|argument)|remote process exited)",
        (
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
            "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1269, unhandled system "
            "error, NCCL version 2.14.3",
            "elm4: Test NCCL failure common.cu:1005 'unhandled cuda error / Call to CUDA function failed'",
            "NCCL failure all_reduce.cu:95 'unhandled cuda error'",
        ),
        words=("nccl", "rccl"),
    ),
    Sign(
        "tests-device",  # nccl-tests: before its first row, of each rank
        r"^# {1,6}Rank {1,8}(?P<number>\d{1,7}) (?:Group {1,4}\d{1,5} )?Pid {1,8}(?P<process>\d{1,8}) on {1,40}(?P<machine>\S{1,253}) "
        r"device {1,4}\d",
        ("#  Rank  0 Group  0 Pid    810 on    birch07 device  0 [0x21] NVIDIA H100",),
        words=("pid ",),
        often=True,
    ),
    Sign(
        "tests-failure",
        r"Test NCCL failure (?P<at>[\w./-]{1,200}:\d{1,6}) '(?P<error>[^']{1,400})"
        r"|Test timeout \((?P<seconds>\d{1,7})s\)",
        (
            "elm4: Test NCCL failure common.cu:1005 'unhandled system error / Call to connect failed'",
            "elm4: Test timeout (60s) common.cu:523",
        ),
    ),
    Sign("last-error", r"^Last error:", ("Last error:", "Last error: Unexpected peer")),
)
