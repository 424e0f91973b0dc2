"""What the job system and the user gave to this process.

Recorded names: `environment`, a JSON object of variable names and values; `master`, a Resolution of MASTER_ADDR;
`port_holders`, a list of PortHolder for MASTER_PORT. Only the families below leave the process, and never a name
that may hold a secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import psutil

from ncclcheck.probes.facts import JobFacts, PortHolder, Resolution, Unread, Variable
from ncclcheck.probes.facts.guard.secrets import is_secret, masked
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.environment.origins import origins
from ncclcheck.probes.machine.host.host import resolved

_FAMILIES = (
    "NCCL_",
    "CUDA_",
    "TORCH_",
    "TORCHELASTIC_",
    "PYTORCH_",
    "GLOO_",
    "UCX_",
    "FI_",
    "OFI_NCCL_",
    "SLURM_",
    "OMP_",
    "OMPI_COMM_",
    "PET_",
    "MASTER_",
)
_NAMES = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "KUBERNETES_SERVICE_HOST",
}
# What the loader, Python, the C library and the libraries of threads take from the environment, each for itself:
# told of a node beside the families, and handed to no other.
_OF_A_PROCESS = (
    *("LD_", "PYTHON", "MALLOC_", "GLIBC_TUNABLES", "TCMALLOC_", "ASAN_", "LSAN_", "TSAN_"),
    *("TORCH", "C10", "CUBLAS_", "CUDNN_", "NVIDIA_", "I_MPI_", "MPICH_", "IBV_", "RDMAV_", "MLX5_"),
    *("RES_OPTIONS", "HOSTALIASES", "LOCALDOMAIN"),
    *("KMP_", "MKL_", "OPENBLAS_", "GOMP_", "GOTO_", "BLIS_", "ATEN_", "DNNL_", "ONEDNN_"),
)
# Given by who starts a job, for this one alone: no file is looked for.
_BY_LAUNCHERS = ("SLURM_", "TORCHELASTIC_", "OMPI_COMM_", "PET_", "MASTER_")
_NAMES_GIVEN = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"}
_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
# Where launchers say that a process is (launch/joining/launchers.py): told of a node, and handed to no other.
_PLACES = {
    *("JOB_COMPLETION_INDEX", "LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "VC_TASK_INDEX"),
    *("FLUX_JOB_ID", "FLUX_JOB_NNODES", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"),
    *("PALS_RANKID", "PALS_NODEID", "PALS_LOCAL_RANKID", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_SIZE"),
}
_OWN = {*_TEMPORARY, *_PLACES}
_NOT_TOLD = {"PYTHONPATH", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX", "PYTHONHISTFILE"}
_LAUNCHERS = ("srun", "sbatch", "kubectl", "mpirun", "docker")


def probe(machine: Machine) -> JobFacts:
    """The variables that may be reported, and the launchers on PATH."""
    env = machine.ask("environment", dict[str, str], _environment)
    if isinstance(env, Unread):
        return JobFacts(variables=env, launcher_programs=env, master=env, port_holders=env)
    listed = sorted(_told(env).items())
    asked = {
        name: value for name, value in listed if not name.startswith(_BY_LAUNCHERS) and name not in _NAMES_GIVEN
    }
    places = origins(machine, asked, env.get("HOME", ""))
    return JobFacts(
        variables=[Variable(name=name, value=value, set_in=places.get(name, "")) for name, value in listed],
        launcher_programs=[name for name in _LAUNCHERS if _on_path(machine, name, env.get("PATH", ""))],
        master=machine.ask("master", Resolution, lambda: _master(env.get("MASTER_ADDR", ""))),
        port_holders=machine.ask("port_holders", list[PortHolder], lambda: _holders(env.get("MASTER_PORT", ""))),
    )


def _master(host: str) -> Resolution | Unread:
    return resolved(host) if host else Unread("absent", "MASTER_ADDR is not set")


def _holders(port: str) -> list[PortHolder] | Unread:
    """Listeners on MASTER_PORT, without ours and those above us: torchrun holds it for this very job."""
    if not port.isdecimal():
        return Unread("absent", "MASTER_PORT is not set" if not port else f"MASTER_PORT={port} is no port")
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    listeners = [e for e in psutil.net_connections("tcp") if e.status == psutil.CONN_LISTEN and e.pid not in ours]
    sockets = [(entry.laddr, entry.pid) for entry in listeners if entry.laddr and entry.laddr.port == int(port)]
    return [PortHolder(port=where.port, pid=pid or 0, name=_name(pid), address=where.ip) for where, pid in sockets]


def _name(pid: int | None) -> str:
    try:
        return psutil.Process(pid).name() if pid else "another user's process"
    except psutil.Error:
        return "a process that is gone"


def _told(env: Mapping[str, str]) -> dict[str, str]:
    """What is reported: the families, and what bears on a process of this node alone."""
    own = {name: masked(value) for name, value in env.items() if name.startswith(_OF_A_PROCESS) or name in _OWN}
    own = {name: value for name, value in own.items() if name not in _NOT_TOLD and not is_secret(name)}
    return environment_of_families(env) | own


def environment_of_families(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that may leave this process: the families of the field, and nothing secret."""
    return {name: masked(value) for name, value in env.items() if _may_leave(name)}


def _may_leave(name: str) -> bool:
    return not is_secret(name) and (name in _NAMES or name.startswith(_FAMILIES))


def _environment() -> dict[str, str]:
    pairs = os.environb.items()
    return {
        name.decode(errors="backslashreplace"): value.decode(errors="backslashreplace") for name, value in pairs
    }


def _on_path(machine: Machine, program: str, path: str) -> bool:
    folders = (folder for folder in path.split(":") if folder.startswith("/"))
    return any(machine.exists(f"{folder}/{program}") for folder in folders)
