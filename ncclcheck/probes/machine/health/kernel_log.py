"""The lines of the kernel log that tell of failing hardware, and how long ago each was.

Recorded name: `kernel_log`, a list of such lines, as /dev/kmsg or `dmesg` gives them. /dev/kmsg is root's on most
machines, so the journal and the files of syslog are asked too.
"""

from __future__ import annotations

import os
import re
import time

from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine.access import Machine

_LOG = "/dev/kmsg"
_LONGEST_S = 1.0  # the ring is memory; a kernel that logs without end must not hold up: chosen
_JOURNAL = ("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic")
_JOURNAL_S = 2.0  # journalctl has an index of boots; a dead disk is not waited for: chosen
_FILES = ("/var/log/kern.log", "/var/log/messages", "/var/log/syslog")
_TAIL_BYTES = 8 * 2**20  # of a file of syslog: chosen, the last start of a usual node lies in it
_BOOT = "Linux version "
_OURS = (
    "NVRM", "SXid", "Hardware Error", "EDAC ", "Memory failure", "blocked for more than", "read-only",
    "forced readonly", "been shut down", "I/O error, dev",
)  # fmt: skip
_KMSG = re.compile(r"\d+,\d+,(\d{1,18}),", re.ASCII)
_DMESG = re.compile(r"\[\s*(\d{1,12}\.\d{1,9})\]", re.ASCII)


def lines(machine: Machine) -> list[str] | Unread:
    """Those since the machine was started; a ring buffer may have lost the first."""
    return machine.ask("kernel_log", list[str], lambda: _kernel_log(machine))


def uptime(machine: Machine) -> float | Unread:
    """Seconds since the kernel was started."""
    text = machine.line("/proc/uptime")
    try:
        return text if isinstance(text, Unread) else float(text.split()[0])
    except (ValueError, IndexError):
        return Unread("broken", f"/proc/uptime holds {text!r:.40}")


def hours(line: str, up: float | Unread) -> float | Unread:
    """How long ago: both forms count from the start of the kernel."""
    if isinstance(up, Unread):
        return up
    if match := _KMSG.match(line):
        seconds = int(match[1]) / 1e6
    elif match := _DMESG.match(line):
        seconds = float(match[1])
    else:
        return Unread("absent", "the line has no time since the start of the kernel")
    return round(max(0.0, up - seconds) / 3600, 2)


def _kernel_log(machine: Machine) -> list[str] | Unread:
    """Lines since the start of the kernel, from the first place that this user may read."""
    lines = _from_kernel()
    for source in (_from_journal, _from_files):
        if isinstance(lines, Unread) and (log := source(machine)) is not None:
            lines = log
    return lines


def _is_ours(line: str) -> bool:
    return any(word in line for word in _OURS)


def _from_journal(machine: Machine) -> list[str] | None:
    """None where the journal has no line of the kernel for this user: then it may not be read."""
    output = machine.run(_JOURNAL, _JOURNAL_S)
    if isinstance(output, Unread) or not output.out.strip():
        return None
    return [line for line in output.out.splitlines() if _is_ours(line)]


def _from_files(machine: Machine) -> list[str] | None:
    """The end of a file of syslog, from the last start of the kernel on; None where that is not in it."""
    for path in _FILES:
        try:
            size = os.stat(machine.path(path)).st_size
        except OSError:
            continue
        data = machine.read_bytes(path, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        text = "" if isinstance(data, Unread) else data.decode(errors="backslashreplace")
        if _BOOT in text:
            return [line for line in text[text.rindex(_BOOT) :].splitlines() if _is_ours(line)]
    return None


def _from_kernel() -> list[str] | Unread:
    """Those in /dev/kmsg, which gives one record a read and EAGAIN at its end."""
    try:
        log = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return Unread("denied", f"there is no {_LOG} here: a container without the host's kernel log")
    except OSError as error:
        return Unread("denied", f"{_LOG} may not be read by this user: {error.strerror}")
    until = time.monotonic() + _LONGEST_S
    lines: list[str] = []
    try:
        while time.monotonic() < until and (record := _record(log)) is not None:
            line = record.decode(errors="backslashreplace").partition("\n")[0]
            if _is_ours(line):
                lines.append(line)
    finally:
        os.close(log)
    return lines


def _record(log: int) -> bytes | None:
    """The next record; an empty one for a record that was overwritten before it could be read."""
    try:
        return os.read(log, 8192) or None
    except BrokenPipeError:
        return b""
    except BlockingIOError:
        return None
