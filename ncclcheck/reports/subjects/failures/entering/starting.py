"""The start of an agent elsewhere, step by step: in which it stopped, and what that step waits for."""

from __future__ import annotations

from dataclasses import dataclass

from ncclcheck.probes.facts import Look, Silence
from ncclcheck.reports.judgement.findings import Remedy, admin, you
from ncclcheck.reports.subjects.nccl.variables import STARTUP_FILES

_NEXT = {
    "shell": "Python has not come to its first line",
    "python": "Python began and does not come to the end of `import ncclcheck`",
    "imported": "ncclcheck was imported, and Python's second start, as the agent, does not come to its first word",
}
_SLOW_S = 5.0  # for Python to come to its first line: HST018 warns of seconds, a healthy start takes 0.1; chosen
_SLEEPS = ("nanosleep",)


@dataclass(frozen=True)
class HeldStart:
    """words: the step and its time, and what it waits for; fix: what ends that."""

    words: str
    fix: tuple[Remedy, ...]


def unfinished(silence: Silence) -> HeldStart | None:
    """Where its last step is known, and it was not ended meanwhile."""
    if not silence.start:
        return None
    last = silence.start[-1]
    since = f" {silence.waited_s - last.at_s:.0f} s later" if silence.waited_s is not None else ""
    first = next((each.at_s for each in silence.start if each.step == "shell"), last.at_s)
    slow = next((each.at_s - first for each in silence.start if each.step == "python"), 0.0)
    came = f"the shell there ran our command after {first:.0f} s, and{since} {_NEXT[last.step]}"
    if slow >= _SLOW_S:
        came = f"Python takes {slow:.0f} s to come to its first line there{_then(silence)}"
    cause, fix = _cause(silence.look, last.step == "shell" or slow >= _SLOW_S)
    return HeldStart(f"{came}{f': {cause}' if cause else ''}", (*fix, _by_hand()))


def _then(silence: Silence) -> str:
    """What came after a slow start of Python."""
    return "" if silence.start[-1].step == "python" else ", and begins twice before it speaks"


def _cause(look: Look | None, in_pythons_start: bool) -> tuple[str, tuple[Remedy, ...]]:
    """What the second look saw there, that which explains most first."""
    if look is None:
        return "", ()
    variable, _, folder = look.hangs.partition(" ")
    if folder:
        return _dead_folder(look, variable, folder)
    if look.children:
        return f"it waits for a process that it started, {look.children[0]!r}", _customs(look)
    if look.custom and in_pythons_start:
        does = ", and which sleeps" if any(word in look.wchan for word in _SLEEPS) else ""
        return f"{' and '.join(look.custom)}, which each start of Python runs{does}", _customs(look)
    state = f"state {look.state}" + (f" in {look.wchan}" if look.wchan else "")
    reads = [name for name in look.files if name.startswith("/") and not name.startswith(("/dev/", "/proc/"))]
    if reads:
        return f"it has {reads[-1]} open ({state}){_on_mount(look, reads[-1])}", ()
    return (f"its process is in {state}", ()) if look.state in ("D", "S", "R") else ("", ())


def _dead_folder(look: Look, variable: str, folder: str) -> tuple[str, tuple[Remedy, ...]]:
    words = f"{variable} there leads to {folder}, and a look into it does not come back{_on_mount(look, folder)}"
    return words, (
        you(
            f"Start it without that folder: take it out of {variable} on that node.",
            f"ssh {{node}} \"grep -rsn '{variable}' {STARTUP_FILES}\"",
        )
        if variable != "HOME"
        else you("Use an account whose home folder answers."),
        admin(
            "See which mount does not answer, and restore its server, or detach it.",
            "timeout 2 df || findmnt -t nfs,nfs4,cifs,fuse,lustre,ceph   # on that node",
            *(f"umount -l {place}   # on that node" for place in _mounts(look, folder)[:1]),
        ),
    )


def _mounts(look: Look, path: str) -> list[str]:
    """The places of other hosts' file systems that a path is below, the longest first."""
    places = [mount.partition(" ")[2] for mount in look.mounts]
    return sorted((place for place in places if f"{path}/".startswith(f"{place}/")), key=len, reverse=True)


def _on_mount(look: Look, path: str) -> str:
    kinds = {mount.partition(" ")[2]: mount.partition(" ")[0] for mount in look.mounts}
    places = _mounts(look, path)
    return f", on the {kinds[places[0]]} mount {places[0]}" if places else ""


def _customs(look: Look) -> tuple[Remedy, ...]:
    if not look.custom:
        return ()
    return (you("Read it, and take out what waits there.", f"ssh {{node}} cat {look.custom[0]}"),)


def _by_hand() -> Remedy:
    return you(
        "See how long Python takes there: the second command leaves out what its start runs and finds by itself.",
        "time ssh {node} python3 -c pass",
        "time ssh {node} python3 -I -S -c pass",
    )


def tight(look: Look | None) -> str:
    """Limits of a login there under which a program dies without a word."""
    return f"; limits of a login there: {', '.join(look.tight)}" if look and look.tight else ""
