"""Which processes are of jobs, and which rank each has.

A part of the streamed probe: standard library only, Python 3.6.
"""

import os
import re
import socket
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ncclcheck.probes.live import present, unranked
from ncclcheck.probes.live.machine.proc import Proc, Raw, age, fields, number, status

MOST_PROCESSES = 4096  # of jobs, their helpers among them; a node has 8 to 16 ranks, each with tens of workers
_MOST_UNSEEN = 32  # processes of other users that are named: chosen, the reason is one
_MULTIPROCESSING = re.compile(r"multiprocessing\.(spawn|forkserver|resource_tracker)|compile_worker")
# Variables that tell rank and size, of the first pair that is there. torchrun, mpirun (Open MPI), flux run,
# MPICH and PALS, srun.
_NAMES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_LOCALS = (("LOCAL_RANK", "LOCAL_WORLD_SIZE"), ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"))
# What is read of the environment that a process has by now.
_VARIABLES = (
    *(name for two in (*_NAMES, *_LOCALS) for name in two),
    *("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"),
    *("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LAUNCHERS = (
    "torchrun",
    "torch.distributed",
    "slurmstepd",
    "flux-shell",
    "palsd",
    "deepspeed",
    "mpirun",
    "mpiexec",
    "hydra_pmi_proxy",
    "orted",
    "prted",
    "raylet",
    "accelerate",
)
# Programs whose children are ranks, in a command.
_AGENTS = re.compile(
    r"/(torchrun|deepspeed|accelerate|horovodrun)\b|torch\.distributed\.(run|launch|elastic)|"
    r"deepspeed\.launcher|accelerate\.commands"
)
_LIBRARIES = (("nccl", "libnccl"), ("rccl", "librccl"), ("torch", "libtorch_cpu"), ("cuda", "libcuda.so"))


def find(proc: Proc, job: str = "", inside: bool = False) -> Tuple[List[Raw], List[Raw]]:
    """Processes with a rank, and those of Python that could be ones and may not be read.

    inside: the environment that a process has by now is read too, as a debugger reads it.
    """
    ranked: List[Raw] = []
    loose: List[Raw] = []
    unseen: List[Raw] = []
    own = ours(proc)
    for name in sorted((name for name in proc.names() if name.isdigit() and name not in own), key=int):
        command = proc.text(name, "cmdline").replace("\0", " ").strip()
        environ = proc.text(name, "environ")
        if not environ and is_hidden(proc, name, command):
            if len(unseen) < _MOST_UNSEEN:
                user = number(status(proc, name).get("Uid"))
                unseen.append({"pid": int(name), "command": command[:80], "user": user})
            continue
        process = member(proc, name, command, environ, job, inside)
        if process and len(ranked) + len(loose) < MOST_PROCESSES:
            (loose if process["rank"] is None else ranked).append(process)
    unranked.join(
        proc, ranked, loose, lambda pid: known(proc, pid, proc.text(pid, "cmdline").replace("\0", " "), {})
    )
    choose(ranked)
    return ranked, unseen


def is_hidden(proc: Proc, pid: str, command: str) -> bool:
    """Whether it is a process of Python that may not be looked into."""
    python = re.search(r"python|pt_main", command.partition(" ")[0])
    return bool(python and proc.names(pid) and not proc.names(pid, "fd"))


def ours(proc: Proc) -> List[str]:
    """This process and those that it comes from: a shell in a container has the variables of its ranks too."""
    pids = [str(os.getpid())] if proc.live else []
    while pids and pids[-1] not in ("", "0", "1") and len(pids) < 64:
        pids.append(fields(proc.text(pids[-1], "stat"))[1])
    return pids


def member(proc: Proc, pid: str, command: str, environ: str, job: str, inside: bool) -> Optional[Raw]:
    """What a process tells of its place in a job; the rank is None where it uses torch or NCCL and tells none."""
    env = dict(line.partition("=")[::2] for line in environ.split("\0"))
    python = re.search(
        "python|pt_main|^ray::", os.path.basename(proc.link(pid, "exe")) + "\n" + command[:200], re.M
    )
    libraries = mapped(proc, pid) if python or pair(env, _NAMES) else []
    if libraries and inside:
        env.update(present.environment(proc, pid, _VARIABLES))
    names = pair(env, _NAMES)
    if job and env.get("SLURM_JOB_ID") != job:
        return None
    if not libraries and (names is None or names[0] == "SLURM_PROCID"):  # any task of Slurm has one
        return None
    return known(proc, pid, command, env, libraries)


def known(proc: Proc, pid: str, command: str, env: Dict[str, str], libraries: Sequence[str] = ()) -> Raw:
    """The record of one process."""
    names, locals_ = pair(env, _NAMES), pair(env, _LOCALS)
    address, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    step = "Slurm step {}.{}".format(env.get("SLURM_JOB_ID", ""), env.get("SLURM_STEP_ID", ""))
    rank, world = (int(env[names[0]]), int(env[names[1]])) if names else (None, 1)
    expected = [rank - int(env[locals_[0]]), int(env[locals_[1]])] if locals_ and rank is not None else []
    named = names[0] if names else ""
    slurm, place = (
        env.get("SLURM_JOB_ID", ""),
        " ".join(filter(None, [socket.gethostname() if proc.live else "", proc.link(pid, "ns", "net")])),
    )
    alone = address in _LOOPBACK or not address
    return {
        "host": socket.gethostname() if proc.live else "",
        "pid": int(pid),
        "parent": int(fields(proc.text(pid, "stat"))[1] or 0),
        "orphan": orphaned(proc, pid, command, bool(libraries)),
        "rank": rank,
        "rank_by": "environment",
        "stores": [],
        "agent": bool(_AGENTS.search(command[:400])),
        "elastic": "TORCHELASTIC_RUN_ID" in env,
        "world": world,
        "expected": [0, world] if address in _LOOPBACK else expected,
        "job": "{}:{}".format(address, port) if address else step if "SLURM_JOB_ID" in env else named,
        # What keeps jobs of the same address apart: Slurm's job, and for a loopback address the network namespace.
        "scope": " ".join(filter(None, [slurm, place if alone else ""])),
        "slurm": slurm,
        "place": place,
        "port": int(port) if port.isdigit() else 0,
        "launcher": launcher(proc, pid),
        "command": command[:200],
        "libraries": list(libraries),
        "dumps": env.get("TORCH_FR_DUMP_TEMP_FILE") or env.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE") or "",
        "age_s": age(proc, pid),
        "begun": number(fields(proc.text(pid, "stat"))[19]),
        "helper": False,
    }


def orphaned(proc: Proc, pid: str, command: str, library: bool) -> bool:
    """Whether it is a process that a rank has left behind: a worker of a loader, a program that it began.

    Its parent and the leader of its process group are gone. A forked child has its parent's connections and none
    of the threads that served them; a rank that lost its launcher, as under nohup, has those threads.
    """
    stat = fields(proc.text(pid, "stat"))
    if _MULTIPROCESSING.search(command):
        return stat[1] == "1" or not proc.text(stat[1], "stat")
    if stat[2] == pid or proc.text(stat[2], "stat") or not adopted(proc, stat[1]):
        return False
    if not library:
        return True
    serving = [
        tid for tid in proc.names(pid, "task") if tid != pid and "poll" in proc.text(pid, "task", tid, "wchan")
    ]
    links = [proc.link(pid, "fd", name) for name in proc.names(pid, "fd")]
    return not serving and len(proc.names(pid, "task")) < 5 and any(link.startswith("socket:[") for link in links)


def adopted(proc: Proc, parent: str) -> bool:
    """Whether a parent is one that takes orphans: process 1, or what has no rank and is no launcher."""
    return parent in ("0", "1") or not re.search(r"\bRANK=|\bLOCAL_RANK=", proc.text(parent, "environ"))


def pair(env: Dict[str, str], known: Tuple[Tuple[str, str], ...]) -> Optional[Tuple[str, str]]:
    """The first two variables that both hold a number."""
    return next(
        (two for two in known if all(re.match(r"\d{1,9}$", env.get(variable, "")) for variable in two)), None
    )


def mapped(proc: Proc, pid: str) -> List[str]:
    """The libraries of interest that it has mapped."""
    maps = proc.text(pid, "maps")
    return [name for name, file in _LIBRARIES if file in maps]


def launcher(proc: Proc, pid: str) -> str:
    """The first ancestor that starts ranks."""
    for _ in range(16):
        pid = fields(proc.text(pid, "stat"))[1]
        if pid in ("", "0", "1"):
            return ""
        command = proc.text(pid, "cmdline")
        known = next((name for name in _LAUNCHERS if name in command), "")
        if known:
            return "torchrun" if known == "torch.distributed" else known
    return ""


def choose(processes: List[Raw]) -> None:
    """Of the processes that have one rank its own is the topmost that uses torch or NCCL; the others help it."""
    ranks: Dict[Any, List[Raw]] = {}
    for process in processes:
        ranks.setdefault((process["job"], process["scope"], process["rank"]), []).append(process)
    for same in ranks.values():
        own = [candidate for candidate in same if not candidate["orphan"]]
        using = [candidate for candidate in own if candidate["libraries"]] or own
        pids = {candidate["pid"] for candidate in using}
        top = min(using, key=lambda candidate: (candidate["parent"] in pids, candidate["pid"])) if using else None
        for process in same:
            process["helper"] = process is not top
