"""NCCL's RAS of the jobs on this host (2.24 and later): asked twice, and only where the question can do no harm.

A part of the streamed probe: standard library only, Python 3.6.
"""

import os
import re
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

from ncclcheck.probes.live.machine.proc import Proc

Raw = Dict[str, Any]
Version = Tuple[int, int, int]

PORT = 28028  # NCCL's own. Source: NCCL user guide, NCCL_RAS_ADDR
_TRIES = 16  # every process of a host listens on one port: the kernel may choose the one that is stopped
_HANDSHAKE_S = 0.5  # a healthy one answered in 1 to 4 ms here, on two busy cores
_ANSWER_S = 11.0  # RAS itself waits 5 s for silent peers, 5 more for those behind them
_SLOW_S = 8.0  # after that there is no time for a second question
_APART_S = 2.0  # between two questions: NCCL's launches of a step lie closer together
_LONG_APART_S = 6.0  # where ranks differ, which is no hang yet: as long as the looks at /proc are apart
_MOST_TEXT, _MOST_JSON = 4 * 2**20, 64 * 2**20  # bytes; JSON has 2.4 kB a rank and communicator (marin#7957)
_MOST_FOR_JSON = 20000  # ranks x communicators
_JSON_SINCE = (2, 28, 7)  # the command SET FORMAT is known
_DIAGNOSTICS_SINCE = (2, 31, 0)  # the command DIAGNOSTICS is known
_LISTENS = "0A"
_HEAD = 8 * 2**20  # bytes; libnccl has its version in the first 2 MiB (2.24 to 2.27)
_VERSION = re.compile(rb"NCCL version (\d{1,2})\.(\d{1,3})\.(\d{1,3})")
_SIZES = re.compile(r"^ *\d+ +(\d+) +\d+ +[\d-]+ +(\d+) +\d+ +[A-Z]+ +[A-Z,]+$", re.MULTILINE)


def refusal(version: Optional[Version], lost: bool, young: bool) -> str:
    """Why RAS of this version is not asked; empty where it is.

    lost: a rank is stopped or has ended. young: a process has just begun, or a communicator may be in the making.
    """
    if version is None:
        return "its version is not known, and some versions crash when they are asked"
    if version < (2, 24, 0):
        return "RAS came with NCCL 2.24"
    if (2, 26, 0) <= version < (2, 27, 0):
        return "2.26 may crash when it is asked while a communicator begins (NVIDIA/nccl#1669, #1718)"
    if version < (2, 29, 2) and lost:
        return "before 2.29.2 it may crash when it is asked while a rank does not answer (NVIDIA/nccl#1762)"
    if young:
        return "it may crash when it is asked while a communicator begins (NVIDIA/nccl#2346)"
    return ""


def version_of(proc: Proc, pid: str) -> Optional[Version]:
    """Of the libnccl that a process has mapped; None where it cannot be read, or where torch has it built in."""
    path = next(
        (line.split(None, 5)[5] for line in proc.text(pid, "maps").splitlines() if "/libnccl.so" in line), ""
    )
    if not path:
        return None
    try:
        with open(os.path.join(proc.root, pid, "root", path.strip().lstrip("/")), "rb") as library:
            match = _VERSION.search(library.read(_HEAD))
    except OSError:
        return None
    return (int(match.group(1)), int(match.group(2)), int(match.group(3))) if match else None


def listening(proc: Proc, pids: List[str], port: int) -> List[Tuple[str, str]]:
    """(address, pid) of those of these processes that listen on a port: where a question reaches this job."""
    doors = []
    for pid in pids:
        own = {proc.link(pid, "fd", name) for name in proc.names(pid, "fd")}
        for table in ("tcp", "tcp6"):
            for line in proc.text(pid, "net", table).splitlines()[1:]:
                row = line.split()
                if len(row) < 10 or row[3] != _LISTENS or f"socket:[{row[9]}]" not in own:
                    continue
                address, number = row[1].split(":")
                if int(number, 16) == port:
                    doors.append((address_of(address), pid))
    return doors


def address_of(text: str) -> str:
    """An address of /proc/net/tcp, words of the host's byte order; any address is asked as this host."""
    words = [text[at : at + 8] for at in range(0, len(text), 8)]
    raw = b"".join(int(word, 16).to_bytes(4, "little") for word in words)
    if not any(raw):
        return "127.0.0.1" if len(raw) == 4 else "::1"
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def port_of(address: str) -> int:
    """The port of NCCL_RAS_ADDR; its host is not used, since it is the job's word only."""
    number = address.rpartition(":")[2]
    return int(number) if re.match(r"\d{1,5}$", number) and int(number) < 65536 else PORT


class Talk:
    """One conversation. Raises OSError where nobody answers in time."""

    def __init__(self, address: str, port: int) -> None:
        self.link = socket.create_connection((address, port), _HANDSHAKE_S)
        self.kept = b""

    def line(self, question: str) -> str:
        """Send a line, read one: the server's buffer holds few, so the next is sent only then."""
        self.link.sendall(question.encode() + b"\n")
        while b"\n" not in self.kept:
            more = self.link.recv(4096)
            if not more or len(self.kept) > 65536:
                raise OSError("it closed the connection")
            self.kept += more
        answer, _, self.kept = self.kept.partition(b"\n")
        return answer.decode(errors="replace").strip()

    def rest(self, question: str, limit: int) -> Tuple[str, bool]:
        """Send the last line, read to the end of the connection; whether it was cut."""
        self.link.settimeout(_ANSWER_S)
        self.link.sendall(question.encode() + b"\n")
        end, pieces, size = time.time() + _ANSWER_S, [self.kept], len(self.kept)
        while size <= limit:
            if time.time() > end:
                raise OSError(f"its answer did not end in {_ANSWER_S:.0f} s")
            more = self.link.recv(2**16)
            if not more:
                break
            pieces.append(more)
            size += len(more)
        return b"".join(pieces)[:limit].decode(errors="replace"), size > limit


def status(address: str, port: int, json: bool = False) -> Raw:
    """One STATUS. tries: how often somebody had to be asked until somebody answered."""
    begun, problem = time.time(), ""
    for tries in range(1, _TRIES + 1):
        talk = None
        try:
            talk = Talk(address, port)
            greeted = talk.line("CLIENT PROTOCOL 2")
            if not greeted.startswith("SERVER PROTOCOL"):
                raise OSError("what listens there is no RAS")
            talk.line("TIMEOUT 5")
            form = "json" if json and talk.line("SET FORMAT json") == "OK" else "text"
            text, cut = talk.rest("VERBOSE STATUS", _MOST_JSON if form == "json" else _MOST_TEXT)
            return {
                "text": text,
                "form": form,
                "cut": cut,
                "tries": tries,
                "seconds": round(time.time() - begun, 3),
                "problem": "" if text.strip() else "it gave an empty answer",
            }
        except OSError as error:
            problem = str(error) or type(error).__name__
            if isinstance(error, ConnectionRefusedError):
                break
        finally:
            if talk is not None:
                talk.link.close()
    passed = round(time.time() - begun, 3)
    return {"text": "", "form": "text", "cut": False, "tries": tries, "seconds": passed, "problem": problem}


def diagnostics(address: str, port: int) -> str:
    """The text of DIAGNOSTICS (2.31 and later); empty where nothing comes."""
    try:
        talk = Talk(address, port)
        try:
            return talk.rest("DIAGNOSTICS", _MOST_TEXT)[0]
        finally:
            talk.link.close()
    except OSError:
        return ""


def asked(proc: Proc, ranks: List[Raw], lost: bool, young: bool, always: bool) -> Raw:
    """The first answer of one job, or why there is none. ranks: its processes here, with their environment."""
    pids = [str(rank["pid"]) for rank in ranks]
    version = next(filter(None, (version_of(proc, pid) for pid in pids[:2])), None)
    env = ranks[0]["env"]
    port = port_of(env.get("NCCL_RAS_ADDR", ""))
    look: Raw = {
        "job": ranks[0]["job"],
        "scope": ranks[0]["scope"],
        "version": ".".join(map(str, version)) if version else "",
        "port": port,
        "looks": [],
        "apart_s": 0.0,
        "diagnostics": "",
        "problem": "",
    }
    own = proc.link("self", "ns", "net")
    near = [pid for pid in pids if not proc.live or proc.link(pid, "ns", "net") == own]
    doors = listening(proc, near, port)
    careful = not always or version is None or version < (2, 24, 0)
    if env.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        look["problem"] = "it is switched off: NCCL_RAS_ENABLE=0"
    elif not near:
        look["problem"] = "the job is in another network namespace than this look"
    elif careful and (version is None or doors):
        look["problem"] = refusal(version, lost, young)
    if not look["problem"] and not doors:
        look["problem"] = "no rank here listens on its port {}".format(port)
    if not look["problem"]:
        look["address"] = doors[0][0]
        _first(look, version)
    return look


def _first(raw: Raw, version: Optional[Version]) -> None:
    """Text; and where RAS knows JSON, and it would not be too long, that."""
    first = status(raw["address"], raw["port"])
    if not first["problem"] and version is not None and version >= _JSON_SINCE:
        sizes = sum(int(comms) * int(ranks) for comms, ranks in _SIZES.findall(first["text"]))
        first = status(raw["address"], raw["port"], json=True) if sizes < _MOST_FOR_JSON else first
    raw["looks"].append(first)
    raw["problem"] = first["problem"]
    raw["until"] = time.time() + (
        _LONG_APART_S if "MISMATCH" in first["text"] or first["form"] == "json" else _APART_S
    )
    raw["begun"] = time.time()


def asked_again(raw: Raw, active: bool) -> None:
    """The second answer, some time after the first. active: and DIAGNOSTICS, for which ranks look at GPUs."""
    if not raw["looks"] or raw["problem"] or raw["looks"][0]["seconds"] > _SLOW_S:
        return
    time.sleep(max(0.0, raw["until"] - time.time()))
    raw["apart_s"] = round(time.time() - raw["begun"], 1)
    raw["looks"].append(status(raw["address"], raw["port"], json=raw["looks"][0]["form"] == "json"))
    version = tuple(int(part) for part in raw["version"].split(".")) if raw["version"] else (0,)
    if active and version >= _DIAGNOSTICS_SINCE:
        raw["diagnostics"] = diagnostics(raw["address"], raw["port"])
