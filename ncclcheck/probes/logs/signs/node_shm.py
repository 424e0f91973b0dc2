"""Memory that the ranks of a node share: /dev/shm, and NCCL's cuMem memory of the host."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

SIGNS = (
    Sign(
        "shm-extend",
        r"rror: failed to extend (?P<path>/dev/shm/\S{1,80}) to (?P<bytes>\d{1,20}) bytes"
        r"(?:, error: (?P<error>[A-Za-z][A-Za-z ,/-]{1,60}[a-z]))?",
        (
            "elm4:311:340 [2] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-a8QmZt to "
            "33030532 "
            "bytes, error: No space left on device (28)",
            "elm4:311:340 [2] misc/shmutils.cc:70 NCCL WARN Error: failed to extend /dev/shm/nccl-a8QmZt to "
            "9637892 bytes",
        ),
    ),
    Sign(
        "shm-call",
        r"Call to (?P<call>posix_fallocate|fallocate|ftruncate|shm_open|open|mkstemp|mmap) failed ?: "
        r"(?P<error>No space left on device|Cannot allocate memory|Permission denied|Operation not permitted|"
        r"Read-only file system|No such file or directory|Operation not supported)",
        (
            "elm4:311:340 [2] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
            "elm4:311:340 [2] include/shm.h:26 NCCL WARN Call to shm_open failed : Permission denied",
            "elm4:311:340 [2] misc/shmutils.cc:81 NCCL WARN Call to open failed: No such file or directory",
        ),
    ),
    Sign(
        "shm-segment",
        r"Error while (?P<doing>creating|attaching to) shared memory segment "
        r"(?P<path>.{0,160}?) \(size (?P<bytes>-?\d{1,20})\)"
        r"(?:, error: (?P<error>[A-Za-z][A-Za-z ,/-]{1,60}[a-z]))?",
        (
            "elm4:311:340 [2] misc/shmutils.cc:132 NCCL WARN Error while attaching to shared memory segment "
            "/dev/shm/nccl- "
            "(size 0), error: No such file or directory (2)",
            "elm4:311:340 [2] include/shm.h:51 NCCL WARN Error while creating shared memory segment "
            "nccl-shm-send-5c1f-0-1-2 (size 9637888)",
        ),
    ),
    Sign(
        "shm-create",
        r"(?:rror: failed to create shared memory file |Could not map )"
        r"(?P<path>\S{1,120}?)(?: size (?P<bytes>\d{1,20}))?, error:? (?P<error>[A-Za-z][A-Za-z ,/-]{1,60}[a-z])",
        (
            "elm4:311:340 [2] misc/shmutils.cc:60 NCCL WARN Error: failed to create shared memory file "
            "/dev/shm/nccl-XXXXXX, error Permission denied (13)",
            "elm4:311:340 [2] misc/shmutils.cc:106 NCCL WARN Error: Could not map /dev/shm/nccl-xQLCY8 size 9637892, "
            "error: Cannot allocate memory (12)",
        ),
    ),
    Sign(
        "shm-unlink",
        r"unlink shared memory (?P<path>/dev/shm/\S{1,80}) failed, error: "
        r"(?P<error>[A-Za-z][A-Za-z ,/-]{1,60}[a-z])",
        (
            "elm4:311:340 [2] misc/shmutils.cc:160 NCCL WARN unlink shared memory /dev/shm/nccl-Jh71Qe "
            "failed, error: "
            "No such file or directory (2)",
            "elm4:311:340 [2] misc/shmutils.cc:99 NCCL WARN unlink shared memory /dev/shm/nccl-Jh71Qe failed, "
            "error: "
            "No such file or directory",
        ),
    ),
    Sign(
        "cumem-host-fallback",
        r"cuMem host allocations do not appear to be working",
        (
            "elm4:311:340 [2] NCCL INFO cuMem host allocations do not appear to be working; falling back to a "
            "/dev/shm/ "
            "based implementation. This could be due to the container runtime disabling NUMA support. To "
            "disable this "
            "warning, set NCCL_CUMEM_HOST_ENABLE=0",
        ),
    ),
    Sign(
        "shm-passed-on",
        r"(?:transport/shm|allocator|misc/shmutils)\.cc:\d{1,5}(?: \(\S{1,80}\))? -> [1-5]\b",
        (
            "elm4:311:340 [2] NCCL INFO transport/shm.cc:590 -> 1",
            "elm4:311:340 [2] NCCL INFO transport/shm.cc:233 (shmSendSetup) -> 2",
            "elm4:311:340 [2] NCCL INFO allocator.cc:119 -> 1 [Async thread]",
        ),
    ),
    Sign(
        "shm-frame",
        r"\bin (?P<function>ncclShm\w{2,40}) ?\(|\((?P<symbol>ncclShm\w{2,40})\+0x",
        (
            "#0 0x00007f6b59544f3b in ncclShmOpen(char*, unsigned long, void**, void**, int, void**) ()",
            "/usr/lib/libnccl.so.2(ncclShmOpen+0x1f)[0x7f1a5c05f2c1]",
        ),
        words=("ncclshm",),
    ),
)
