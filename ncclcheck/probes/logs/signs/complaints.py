"""Words of failure in lines that no other sign knows: a process that ended badly, any error that is said, and what
says why something cannot be."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.failure_words import EXPLAINS, complains, ended_badly, explains, words_of
from ncclcheck.probes.logs.signs.sign import Sign

_ENDS = (
    r"(?i)exit|return|non-?zero|signal|\bsig|died|crash|dead|killed|last error|nccl|unhandled|core dumped|panicked|"
    r"segmentation|fatal|heartbeat|memory"
)
_ERRORS = (
    r"(?i)error|fail|abort|timed out|killed|watchdog|exception|_err_|_status_|\.cc:|\.cpp:|_exceeded|unavailable"
    r"|_exhausted|_precondition|lost |data_loss|invalid_argument|unimplemented|back-?off"
)
_WORDS_OF_ENDS = (
    *(
        "exit",
        "return code",
        "returncode",
        "return_code",
        "returned code",
        "core dumped",
        "signal",
        *("sigkill", "sigsegv", "sigabrt", "sigbus", "sigill", "sigfpe", "sigterm", "sighup", "sigint"),
        "memory",
    ),
    *(
        "non-zero",
        "nonzero",
        "killed",
        "died",
        "dead",
        "crashed",
        "last error",
        "panicked",
        "nccl",
        "unhandled",
        "fatal",
    ),
    *("heartbeat", "segmentation", "oom killed", "oom-killed", "oomkilled"),
)
_WORDS_OF_ERRORS = ("error", "failed", "failure", "exception", "abort", "timed out", "killed", "watchdog",
                    "_err_", "_status_", ".cc:", ".cpp:", "_exceeded: ", "unavailable: ", "unavailable:", "_exhausted: ",
                    "_precondition: ", "data_loss: ", "invalid_argument: ", "unimplemented: ", "crashloopbackoff", "back-off", "lost communication", "lost connection", "lost contact")  # fmt: skip

SIGNS = (
    Sign(
        "ended-badly",
        _ENDS,
        (
            "[2026-03-01 10:00:00,100] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = 1",
            "wrapper: Command '['python', 'train.py']' returned non-zero exit status 1.",
            "mpiexec noticed that process rank 3 with PID 4711 exited on signal 11.",
            "[gpu-a17:04711] *** Process received signal ***",
            "(APIServer pid=1) vllm.v1.engine.exceptions.EngineDeadError EngineCore encountered an issue.",
        ),
        words=_WORDS_OF_ENDS,
        often=True,
        check=ended_badly,
        last=True,
    ),
    Sign(
        "complaint",
        _ERRORS,
        (
            "ERROR 11-09 22:47:01 [core.py:396] EngineCore hit an exception: Traceback",
            "Error: could not write the checkpoint",
            "slurmstepd: error: Detected something new",
            "RuntimeWhatever: collective failed on rank 3",
            "Connection timed out",
        ),
        words=_WORDS_OF_ERRORS,
        often=True,
        check=complains,
        last=True,
    ),
    Sign(
        "explains",
        r"(?s).",
        (
            "/bin/bash: line 1: /usr/sbin/sshd: No such file or directory",
            "[2026-03-01 10:00:00] WARNING: bf16 is not supported by this GPU, using fp16",
            " But your machine only has: [0]",
            "[W] the plugin was built for version 2.18, which does not match 2.21",
        ),
        words=words_of(EXPLAINS),
        often=True,
        check=explains,
        last=True,
    ),
    Sign(
        "nccl-warning",
        r"\bNCCL (?:WARN|ERROR|ABORT)\b",
        ("NCCL WARN Something that nobody has said before", "net_ib.cc:840 NCCL WARN Something else"),
        last=True,
    ),
)
