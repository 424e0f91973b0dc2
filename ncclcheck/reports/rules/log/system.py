"""LOG190: what the kernel, file systems, system libraries and Slurm's daemon say of a host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from shlex import quote

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.probes.facts.log.fields import first_named
from ncclcheck.reports.judgement.findings import Finding, Owner, Remedy, State, admin, you
from ncclcheck.reports.subjects.logs.logged import at_teller, cause, events_of, in_order, log_rule, own_exceptions

_REASONS = {
    "5": "an input/output error",
    "28": "it is full",
    "30": "it is read-only",
    "107": "the connection to its server was lost",
    "108": "its server has cut this client off",
    "110": "its server did not answer in time",
    "112": "its server is down",
    "116": "the server no longer knows the file (stale handle)",
}
_KERNEL = admin("Confirm, on that host: the kernel's own messages, and those before them.", "dmesg -T | tail -100")
_WITHOUT = you("Start again without this node.", "srun --exclude=NODE ...")


@log_rule("LOG190", "the hosts' kernels, file systems and system libraries work")
def system_works(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A line of the kernel, of the dynamic linker or of Slurm's daemon says that the host itself failed: a CPU that
    is stuck, a process that waits for storage, memory with an error that was not corrected, a file system that is
    gone, a C library that is too old, a slurmd that ended.

    ## Why it matters
    The rank on that host stops or dies without a word of its own; all others wait for it, and their time-outs name
    each other.

    ## Seen as
    hangs, dies, setting without effect

    ## How we know
    `BUG: soft lockup`, `INFO: task ... blocked for more than 120 seconds`, `Machine Check: 0 Bank 7: fe..` (the
    bit UC of its status is set: not corrected), `Kernel panic`, `nfs: server ... not responding`, `LustreError:
    ... rc = -N`, `I/O error, dev`, `EXT4-fs error`, `version GLIBC_2.29 not found`, `slurmd: fatal:`, `traps: ...
    general protection fault`; `[Errno 30] Read-only file system` and its like outside of an exception, which alone
    is a risk, and the cause where Hydra says that the job ended. Steps after it show that the job went on, and
    then it is a risk.

    ## Fix
    - **admin** what the line names: the storage, the memory module, the daemon's configuration; drain the node.
    - **you** run on a system, or in a container, that is as new as the one the program was built on.

    ## Source
    Linux kernel documentation, Softlockup detector and hung_task; Intel SDM, Machine-Check Architecture
    (IA32_MCi_STATUS); errno(3); ld.so(8); Slurm documentation, gres.conf.
    """
    excepted = {(own_exception.file, own_exception.line) for own_exception in own_exceptions(logs)}
    for sign, tell in _KINDS.items():
        events = [event for event in in_order(events_of(logs, sign)) if (event.file, event.line) not in excepted]
        if events:
            what, why, owner, fix = tell(events[0])
            quoted = "errno" in events[0].fields and not events_of(logs, "hydra-failed")
            yield cause(
                events, what, why=why, owner=owner, at=at_teller(logs, events), fix=fix,
                state=State.WARN if quoted else State.FAIL,
            )  # fmt: skip


_Said = tuple[str, str, Owner, list[Remedy]]


def _stuck(event: LogEvent) -> _Said:
    seconds = event.fields.get("seconds")
    return (
        f"a CPU was stuck in the kernel{f' for {seconds} s' if seconds else ''}",
        "Nothing else runs on that CPU meanwhile: the rank on it stops, and all others wait.",
        "node",
        [_KERNEL, admin("Look at the driver that the stack names; update it or the kernel, or reboot."), _WITHOUT],
    )


def _blocked(event: LogEvent) -> _Said:
    fields = event.fields
    return (
        f"the process {fields['task']} ({fields['pid']}) waited in the kernel for more than {fields['seconds']} "
        "s, as a rule for storage",
        "It cannot go on nor be killed until the call returns; all other ranks wait for it.",
        "node",
        [
            admin("Confirm, on that host: what it waits for.", f"cat /proc/{fields['pid']}/stack",
                  "dmesg -T | grep -A20 'blocked for more'"),
            admin("Look at the file system that the stack names, and at its server.",
                  "mount | grep -E 'nfs|lustre'"),
            _WITHOUT,
        ],
    )  # fmt: skip


def _machine(event: LogEvent) -> _Said:
    panic = event.fields.get("panic")
    what = (
        f"the kernel panicked: {panic}"
        if panic
        else "the host's memory or CPU had an error that was not corrected"
    )
    return (
        what,
        "The processes that used it die, or the whole host goes down.",
        "node",
        [
            admin("Confirm: which module.", "ras-mc-ctl --errors", "ipmitool sel list | tail"),
            admin("Drain the node, and exchange what the list names.",
                  "scontrol update nodename=NODE state=drain reason=hardware"),
            _WITHOUT,
        ],
    )  # fmt: skip


def _storage(event: LogEvent) -> _Said:
    fields = event.fields
    if "errno" in fields:
        return _refused(event)
    reason = _REASONS.get(fields.get("rc", "").removeprefix("= -"))
    if server := fields.get("server"):
        what = f"the NFS server {server} did not answer"
    elif reason:
        what = f"Lustre failed: {reason} (rc {fields['rc']})"
    else:
        what = f"the disk or file system {first_named(fields, 'device', 'ext', 'xfs')} failed"
    return (
        what,
        "What reads or writes there stops or fails, on this rank alone; the others wait for it.",
        "node",
        [
            admin("Confirm, on that host.", "dmesg -T | grep -iE 'nfs|lustre|i/o error|ext4|xfs'", "df -h"),
            admin("Bring the server or the disk back; free space where it is full."),
            you("Write checkpoints elsewhere until then."),
        ],
    )


def _refused(event: LogEvent) -> _Said:
    """What a program quotes of the system's answer to its own call."""
    number, path = event.fields["errno"], event.fields.get("path", "")
    read_only = number == "30"
    return (
        f"the file system{f' at {path}' if path else ''} refused a call: {_REASONS[number]} (errno {number})",
        "Nothing can be written there, or made beside it: the rank that tries fails, and the others wait for it."
        if read_only
        else "What reads or writes there fails, on this rank alone; the others wait for it.",
        "job" if read_only else "node",
        [
            you("Confirm, on that host and in its container: how it is mounted.",
                f"findmnt -T {quote(path or '/PATH')} -o TARGET,SOURCE,OPTIONS"),
            you("Write to a file system that is mounted for writing (rw)."),
            admin("Mount it for writing." if read_only else "Bring its server or disk back, and mount it anew.",
                  *([] if read_only else ["dmesg -T | tail -100"])),
        ],
    )  # fmt: skip


def _library(event: LogEvent) -> _Said:
    version, by = event.fields["version"], event.fields.get("by", "")
    newer = (
        you("Let a newer libstdc++ be found first.", "conda install -c conda-forge libstdcxx-ng")
        if not version.startswith("GLIBC_")
        else you("The C library cannot be updated by itself: take a build for this system, or run in a container.")
    )
    return (
        f"the system's C library is too old{f' for {by}' if by else ''}: it has no {version}",
        "The program was built on a newer system than the one it runs on.",
        "job",
        [
            you("Confirm, on that host: what is there.", "ldd --version | head -1",
                *([f"ldd {quote(by)} | grep 'not found'"] if by else [])),
            newer,
        ],
    )  # fmt: skip


def _slurmd(event: LogEvent) -> _Said:
    why = event.fields["why"].strip()
    gpu = "gres.conf" in why or "/dev/nvidia" in why
    return (
        f"Slurm's daemon did not start on the node: {why[:140]}",
        "Slurm runs nothing on a node without its daemon.",
        "site",
        [
            admin("Confirm, on that node.", "slurmd -C", *(["ls -l /dev/nvidia*"] if gpu else [])),
            *([admin("Load the driver before slurmd starts, or correct gres.conf.", "nvidia-smi -L",
                     "systemctl restart slurmd")] if gpu
              else [admin("Correct what the line names, and start it.", "systemctl restart slurmd")]),
        ],
    )  # fmt: skip


def _trap(event: LogEvent) -> _Said:
    fields = event.fields
    opcode = "opcode" in fields["trap"]
    where = f" in {fields['library']}" if "library" in fields else ""
    why = (
        "The library was built for another kind of CPU (AVX-512, say), or gives up on purpose (ud2)."
        if opcode
        else "A library read or wrote where it must not, or the host's memory is broken."
    )
    what = "ran an instruction that this CPU does not have" if opcode else "died of a general protection fault"
    return (
        f"{fields['program']} {what}{where}",
        why,
        "job",
        [
            you("Confirm: Python's stack at that time.", "export PYTHONFAULTHANDLER=1",
                *(["lscpu | grep -i flags"] if opcode else [])),
            you("Install that library anew, built for this CPU and this release of torch."),
        ],
    )  # fmt: skip


_KINDS: dict[str, Callable[[LogEvent], _Said]] = {
    "machine-check": _machine,
    "slurm-daemon-ended": _slurmd,
    "file-server-lost": _storage,
    "task-blocked": _blocked,
    "kernel-lockup": _stuck,
    "system-library-old": _library,
    "kernel-trap": _trap,
}
