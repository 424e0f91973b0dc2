"""Workers of a data loader, the memory and the files that they share with their rank."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

SIGNS = (
    Sign(
        "worker-killed",
        r"DataLoader worker \(pid (?P<worker>\d{1,10})\) is killed by signal: (?P<signal>[A-Z][\w "
        r"()-]{2,40}?)\s*(?:\.|$)",
        (
            "RuntimeError: DataLoader worker (pid 5120) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
            "RuntimeError: DataLoader worker (pid 5120) is killed by signal: Killed. ",
            "RuntimeError: DataLoader worker (pid 5120) is killed by signal: Segmentation fault. ",
        ),
    ),
    Sign(
        "worker-bus-error",
        r"Unexpected bus error encountered in worker",
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared "
            "memory (shm).",
        ),
    ),
    Sign(
        "worker-died",
        r"DataLoader worker \(pid(?:\(s\))? (?P<workers>[\d, ]{1,200})\) exited unexpectedly",
        (
            "RuntimeError: DataLoader worker (pid(s) 5120, 5121) exited unexpectedly",
            "RuntimeError: DataLoader worker (pid 5120) exited unexpectedly with exit code 1. Details are lost due to "
            "multiprocessing. Rerunning with num_workers=0 may give better error trace.",
        ),
    ),
    Sign(
        "batch-late",
        r"DataLoader timed out after (?P<seconds>[\d.]{1,12}) seconds",
        ("RuntimeError: DataLoader timed out after 120 seconds",),
    ),
    Sign(
        "tensor-file",
        r"unable to (?P<call>write to file|allocate shared memory\(shm\) for file|open shared memory "
        r"object|open file|"
        r"(?:resize|stretch) file|mmap \d{1,20} bytes from file) <(?P<file>[^>]{1,200})>(?: in read-(?:write|only) mode| to the right size)?"
        r"(?: at \S{1,200}|$|: (?P<error>.{3,60}?)(?: \(\d{1,3}\)|$))",
        (
            "RuntimeError: unable to open shared memory object </torch_5120_881> in read-write mode: Too many "
            "open files (24)",
            "RuntimeError: unable to open shared memory object </torch_5120_881> in read-write mode",
            "RuntimeError: unable to write to file </torch_5120_881> at /pytorch/aten/src/TH/THAllocator.c:383",
            "RuntimeError: unable to write to file </torch_5120_881>: No space left on device (28)",
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_5120_881>: Success (0)",
            "RuntimeError: unable to resize file </torch_5120_881> to the right size: No space left on device (28)",
            "RuntimeError: unable to stretch file </torch_5120_881> to the right size",
            "RuntimeError: unable to mmap 602112 bytes from file </torch_5120_881>: Cannot allocate memory (12)",
        ),
    ),
    Sign(
        "ancdata",
        r"received \d{1,6} items of ancdata",
        ("RuntimeError: received 0 items of ancdata",),
    ),
    Sign(
        "too-many-files",
        r"\[Errno 24\] (?P<what>.{0,120})|Communication with the workers is no longer possible",
        (
            "RuntimeError: Too many open files. Communication with the workers is no longer possible. Please increase "
            "the limit using `ulimit -n` in the shell",
            "OSError: [Errno 24] Too many open files: '/data/shard-00017.tar'",
        ),
    ),
    Sign(
        "batch-ragged",
        r"stack expects each tensor to be equal size, but got (?P<first>\[[\d, ]{0,80}\]) at entry "
        r"(?P<at>\d{1,7}) and "
        r"(?P<other>\[[\d, ]{0,80}\]) at entry (?P<entry>\d{1,7})"
        r"|each element in list of batch should be of equal size|Trying to resize storage that is not resizable",
        (
            "RuntimeError: stack expects each tensor to be equal size, but got [3, 224, 224] at entry 0 and [1, "
            "224, 224] at entry 5",
            "RuntimeError: each element in list of batch should be of equal size",
            "RuntimeError: Trying to resize storage that is not resizable",
        ),
    ),
    Sign(
        "loader-wrapper",
        r"Caught \w{1,80} in (?:DataLoader worker process|pin memory thread|replica) ",
        ("KeyError: Caught KeyError in DataLoader worker process 1.",),
    ),
    Sign(
        "no-host-memory",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: you tried to allocate (?P<bytes>\d{1,20}) bytes"
        r"|Unrecoverable error detected: malloc\(size=(?P<called>\d{1,20})|Failed to malloc (?P<asked>\d{1,20}) bytes"
        r"|(?:calloc|malloc)\(\d{1,20} entries\) returned null"
        r"|^(?:NET/IB ?: |MemManager: )?Failed to allocate (?:memory|failure queue)"
        r"|(?P<nccl>^Allocation failed)"
        r"|^MemoryError\b|MemoryError: (?:Unable to allocate (?P<size>[\d.]{1,12} [KMGTP]?i?B)|std::bad_alloc)",
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 42949672960 bytes. Error code 12 (Cannot allocate memory)",
            "MemoryError",
            "elm4:311:340 [0] include/alloc.h:91 NCCL WARN Failed to malloc 4718592 bytes",
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 37.3 GiB for an array with shape "
            "(100000, 50000) and data type float64",
        ),
        words=("memory", "alloc", "allocation failed"),
    ),
    Sign(
        "no-memory-to-fork",
        r"(?:OSError|BlockingIOError): \[Errno (?P<errno>11|12)\] (?P<error>Cannot allocate memory|Resource "
        r"temporarily unavailable)",
        ("OSError: [Errno 12] Cannot allocate memory",),
    ),
)
