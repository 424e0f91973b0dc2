"""What DDP, Accelerate and the savers of checkpoints refuse in the program that they wrap."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

SIGNS = (
    Sign(
        "ready-twice",
        r"Expected to mark a variable ready only once|has been marked as ready twice",
        (
            "[rank3]: RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the "
            "following reasons: 1) Use of a module parameter outside the `forward` function.",
            "Parameter at index 753 has been marked as ready twice. This means that multiple autograd engine  hooks have "
            "fired for this particular parameter during this iteration.",
        ),
    ),
    Sign(
        "changed-in-place",
        r"needed for gradient computation has been modified by an inplace operation",
        (
            "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace "
            "operation: [torch.cuda.FloatTensor [256]] is at version 7; expected version 6 instead.",
        ),
    ),
    Sign(
        "folder-renamed",
        r"(?:OSError|FileNotFoundError|FileExistsError): \[Errno (?:2|17|39|66)\] [A-Z][a-z ]{4,40}: "
        r"'(?P<old>[^']{0,300}(?i:checkpoint|ckpt|tmp|step)[^']{0,200})' -> '(?P<new>[^']{1,400})'",
        (
            "[rank2]: OSError: [Errno 39] Directory not empty: '/results/tmp-checkpoint-50' -> '/results/checkpoint-50'",
            "FileNotFoundError: [Errno 2] No such file or directory: 'out/tmp-checkpoint-500' -> 'out/checkpoint-500'",
        ),
        words=("' -> '",),
    ),
    Sign(
        "device-map",
        r"You can't train a model that has been loaded (?:with `device_map=(?P<map>[^`]{1,40})` in any distributed mode"
        r"|in (?P<bits>[48]-bit) precision (?:on a different device|with CPU or disk offload))",
        (
            "ValueError: You can't train a model that has been loaded with `device_map='auto'` in any distributed mode. "
            "Please rerun your script specifying `--num_processes=1`",
            "ValueError: You can't train a model that has been loaded in 8-bit precision on a different device than the "
            "one you're training on.",
        ),
    ),
    Sign(
        "engine-dead",
        r"EngineCore (?:hit an exception|encountered a fatal error|failed to start|process died)|\bEngineDeadError\b"
        r"|Got fatal signal from worker processes|Engine ?core initialization failed|Engine process failed to start"
        r"|Received sigquit from a child process|Scheduler hit an exception|WorkerProc (?:failed to start|initialization failed)",
        (
            "ERROR 11-09 22:47:01 [core.py:396] EngineCore hit an exception: Traceback (most recent call last):",
            "CRITICAL 11-09 22:47:01 [core_client.py:359] Got fatal signal from worker processes, shutting down.",
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            "[2026-03-01 10:00:00] Received sigquit from a child process. It usually means the child failed.",
            "[2026-03-01 10:00:00 TP3] Scheduler hit an exception: Traceback (most recent call last):",
        ),
        often=True,
    ),
    Sign(
        "not-contiguous",
        r"Tensors must be contiguous|Input tensors? (?:must|need to|has to) be contiguous",
        ("RuntimeError: Tensors must be contiguous", "ValueError: Input tensors need to be contiguous"),
        words=("be contiguous",),
    ),
    Sign(
        "hydra-failed",
        r"^Error executing job with overrides: ",
        ("Error executing job with overrides: ['trainer.nodes=2']",),
    ),
)
