"""What is asked of a job that seems to hang: only suspects and one healthy rank, and only what cannot hurt.

A part of the streamed probe: standard library only, Python 3.6. `--passive` leaves all of it out. Flight
Recorder's pipe is written to where the rank itself holds it open. A signal goes to a rank only where it has a
handler for it and the job's owner says, by --stacks-signal, that this handler is faulthandler's: its default
would end the rank.
"""

import os
import signal
import stat
import time
from typing import Any, Dict, List, Optional

from ncclcheck.probes.live import records
from ncclcheck.probes.live.machine.proc import Proc, fields, number
from ncclcheck.probes.live.records import Taken

Raw = Dict[str, Any]

PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_SUSPECTS = 7  # and one healthy rank
_DUMP_S = 8.0  # torch looks into the pipe once a second; with stacks it took 1 to 6 s on two busy cores
_STACKS_S = 1.0  # for faulthandler to write all threads, once the main thread is scheduled: chosen
_MOST_STACK = 64 * 1024  # bytes of what it wrote: chosen, hundreds of threads' frames
_STACK_LINES = 12  # frames, the innermost: chosen, from torch's collective up to the training loop
# The only ones that a program may keep for itself; all others have a meaning to torchrun, Slurm or the kernel.
SIGNALS = {"USR1": int(signal.SIGUSR1), "USR2": int(signal.SIGUSR2)}


def chosen(ranks: List[Raw]) -> List[Raw]:
    """The ranks that do what few do, and one of the others; the first ones where nobody differs."""
    kinds: Dict[Any, List[Raw]] = {}
    for rank in ranks:
        kinds.setdefault((rank["state"], rank["wchan"], rank["cpu"] > 0.5), []).append(rank)
    few = sorted(kinds.values(), key=len)
    if len(few) < 2:
        return ranks[: _SUSPECTS + 1]
    return [process for same in few[:-1] for process in same][:_SUSPECTS] + few[-1][:1]


def dumps(proc: Proc, ranks: List[Raw], taken: Taken) -> List[str]:
    """Let ranks write their Flight Recorder down, by the pipe that torch made for that; read what they wrote."""
    asked, problems = [], []
    for rank in ranks:
        prefix = rank["env"].get(PIPE, "")
        if not prefix:
            continue
        path = "{}{}.pipe".format(prefix, rank["rank"])
        if trigger(proc, rank, path):
            asked.append((rank, time.time()))
        else:
            problems.append("rank {}: {} is not a pipe that it holds open".format(rank["rank"], path))
    end = time.time() + _DUMP_S
    waiting = list(asked)
    while waiting and time.time() < end:
        time.sleep(0.2)
        waiting = [(process, at) for process, at in waiting if not fresh(proc, process, at)]
    records.files(proc, [process for process, _ in asked if (process, _) not in waiting], taken)
    problems += ["rank {} wrote no dump in {:.0f} s".format(process["rank"], _DUMP_S) for process, _ in waiting]
    return problems


def trigger(proc: Proc, raw: Raw, path: str) -> bool:
    """One byte into the pipe, where it is one, of the rank's own user, and the rank has it open."""
    pid = raw["pid"]
    place = records.beside(proc, pid, path)
    descriptor = records.opened(place, records.owner(proc, pid), os.O_WRONLY, stat.S_ISFIFO)
    if descriptor is None:
        return False
    try:
        same = os.fstat(descriptor)
        if not any(is_same(proc, pid, name, same) for name in proc.names(str(pid), "fd")):
            return False
        return os.write(descriptor, b"1") == 1
    except OSError:
        return False
    finally:
        os.close(descriptor)


def is_same(proc: Proc, pid: int, name: str, file: os.stat_result) -> bool:
    """Whether a descriptor of a process is this file."""
    try:
        other = os.stat(os.path.join(proc.root, str(pid), "fd", name))
    except OSError:
        return False
    return (other.st_dev, other.st_ino) == (file.st_dev, file.st_ino)


def fresh(proc: Proc, raw: Raw, since: float) -> bool:
    """Whether a dump of this rank was written since, and is no longer growing."""
    for name in records.dump_names(raw):
        try:
            inode = os.stat(records.beside(proc, raw["pid"], name))
        except (OSError, ValueError):
            continue
        if inode.st_mtime >= since - 0.01 and inode.st_size and time.time() - inode.st_mtime > 0.3:
            return True
    return False


def stacks(proc: Proc, ranks: List[Raw], word: str) -> List[str]:
    """Have faulthandler write the stacks of ranks whose handler of this signal is known to be its own."""
    problems = []
    for rank in ranks:
        begun = size_of(proc, rank)
        problem = sent(proc, rank, SIGNALS[word])
        if problem:
            problems.append("rank {}: {}".format(rank["rank"], problem))
            continue
        time.sleep(_STACKS_S)
        rank["stack"] = written(proc, rank, begun)
        if not rank["stack"]:
            problems.append(
                "rank {}: SIG{} was sent; its stack is in the output of the job".format(rank["rank"], word)
            )
    return problems


def sent(proc: Proc, raw: Raw, wanted: int) -> str:
    """Send it, or say why it was not sent. Who would die of it, and who is no longer the same, gets none."""
    pid = raw["pid"]
    door = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    try:
        if fields(proc.text(str(pid), "stat"))[19] != raw["start"]:
            return "it has ended"
        if not records.handles(proc, pid, wanted):
            return "it has no handler for this signal, which would end it: nothing was sent"
        if door is not None and hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(door, wanted)
        else:
            os.kill(pid, wanted)
    except OSError as error:
        return error.strerror or "it could not be sent"
    finally:
        if door is not None:
            os.close(door)
    return ""


def size_of(proc: Proc, raw: Raw) -> Optional[int]:
    """The length of the file that its standard error goes to; None where that is no file."""
    try:
        inode = os.stat(os.path.join(proc.root, str(raw["pid"]), "fd", "2"))
    except OSError:
        return None
    return inode.st_size if stat.S_ISREG(inode.st_mode) else None


def written(proc: Proc, raw: Raw, since: Optional[int]) -> List[str]:
    """What faulthandler wrote of its current thread since then, the innermost frame first."""
    if since is None:
        return []
    try:
        with open(os.path.join(proc.root, str(raw["pid"]), "fd", "2"), "rb") as file:
            file.seek(since)
            text = file.read(_MOST_STACK).decode(errors="replace")
    except OSError:
        return []
    block = text.partition("Current thread ")[2].partition("\n\n")[0].partition("\nThread ")[0]
    lines = [line.strip()[:200] for line in block.splitlines()[1:] if line.startswith("  File ")]
    return [frame(line) for line in lines[:_STACK_LINES]]


def frame(line: str) -> str:
    """`File "a.py", line 3 in f` as py-spy writes it: `f (a.py:3)`."""
    path, _, rest = line.partition('", line ')
    return "{} ({}:{})".format(rest.partition(" in ")[2] or "?", path.rpartition('"')[2], number(rest))
