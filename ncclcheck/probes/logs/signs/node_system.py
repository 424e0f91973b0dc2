"""What the kernel, file systems, system libraries and Slurm's daemon say of a host that is at fault."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

SIGNS = (
    Sign(
        "kernel-lockup",
        r"BUG: soft lockup - CPU#\d{1,4} stuck for (?P<seconds>\d{1,6})s|Watchdog detected hard LOCKUP"
        r"|rcu: INFO: rcu_\w{1,20} (?:self-)?detected (?:expedited )?stall",
        (
            "watchdog: BUG: soft lockup - CPU#33 stuck for 22s! [python:88123]",
            "[81324.5] NMI watchdog: Watchdog detected hard LOCKUP on cpu 12",
            "[81324.5] rcu: INFO: rcu_sched self-detected stall on CPU",
        ),
        words=("soft lockup", "hard lockup", "rcu: info"),
    ),
    Sign(
        "task-blocked",
        r"INFO: task (?P<task>[^:\s]{1,40}):(?P<pid>\d{1,10}) blocked for more than (?P<seconds>\d{1,6}) seconds",
        ("[81324.5] INFO: task python:41211 blocked for more than 120 seconds.",),
    ),
    Sign(  # of a bank's status bit 61 says that it was not corrected
        "machine-check",
        r"Machine Check(?: Exception)?: \d{1,3} Bank \d{1,3}: [abef][0-9a-f]{15}\b"
        r"|EDAC .{0,60}\b(?:UE|[Uu]ncorrect\w{1,6})\b|Kernel panic - not syncing(?:: (?P<panic>.{3,120}))?",
        (
            "[88123.4] mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: fe00000000800400",
            "[88123.4] EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0",
            "[88123.4] Kernel panic - not syncing: Fatal hardware error!",
        ),
        words=("machine check", "edac ", "kernel panic"),
    ),
    Sign(
        "file-server-lost",
        r"nfs: server (?P<server>\S{1,120}) not responding|LustreError: .{0,300}\brc (?P<rc>= -(?:5|28|30|107|108|110|112))\b"
        r"|I/O error, dev (?P<device>\w{1,20}), sector|EXT4-fs error \(device (?P<ext>[\w-]{1,40})\)"
        r"|(?<!Error: )\[Errno (?P<errno>(?:30|116)(?=\])|(?:5|107|108)(?=\] [^:]{5,60}: '/))\] [^:]{5,60}(?:: '(?P<path>/[^']{1,200})')?"
        r"|XFS \((?P<xfs>[\w-]{1,40})\): .{0,120}(?:[Ss]hutting down|shut down)",
        (
            "[81324.5] nfs: server 10.0.0.9 not responding, still trying",
            "LustreError: 11-0: scratch-OST0004-osc-ffff: operation ost_write to node 10.0.1.4@o2ib failed: rc = -28",
            "[81324.5] blk_update_request: I/O error, dev nvme1n1, sector 12345",
            "[81324.5] EXT4-fs error (device nvme1n1p1): ext4_find_entry:1455: inode #2: comm python",
            "Warning: no lock for /scratch/run/step_1: [Errno 30] Read-only file system: '/scratch'",
            "[81324.5] XFS (md0): Filesystem has been shut down due to log error (0x2).",
        ),
        words=("not responding", "lustreerror", "i/o error, dev", "ext4-fs error", "xfs (", "[errno "),
    ),
    Sign(
        "system-library-old",
        r"version [`'\"‘](?P<version>(?:GLIBC|GLIBCXX|CXXABI)_[\d.]{1,12})['\"’] not found(?: \(required by (?P<by>[^)]{1,200}))?",
        (
            "python: /lib/x86_64-linux-gnu/libm.so.6: version `GLIBC_2.29' not found (required by /opt/nccl/lib/libnccl.so.2)",
        ),
    ),
    Sign(
        "slurm-daemon-ended",
        r"slurmd: fatal: (?P<why>.{3,200})",
        ("slurmd: fatal: can't stat gres.conf file /dev/nvidia0: No such file or directory",),
    ),
    Sign(
        "kernel-trap",
        r"traps: (?P<program>[\w./-]{1,40})\[\d{1,10}\] (?P<trap>trap invalid opcode|general protection(?: fault)?)"
        r"(?:.{0,160} in (?P<library>[^\s\[]{1,120}))?",
        (
            "[81324.5] traps: python[4711] trap invalid opcode ip:7f2b61 sp:7ffe21 error:0 in libtorch_cpu.so[7f2b60+a000]",
            "[81324.5] traps: python3[4711] general protection fault ip:55d1 sp:7ffe error:0 in python3.10[55d0+2000]",
        ),
    ),
)
