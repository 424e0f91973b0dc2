"""What the job system and the user gave to this process.

Recorded name: `environment`, a JSON object of variable names and values. Only the families below leave the
process, and never a name that may hold a secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ncclcheck.probes.facts import JobFacts, Unread, Variable
from ncclcheck.probes.machine import Machine

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
_SECRET = ("JWT", "TOKEN", "KEY", "SECRET", "PASS")
_NO_SECRET = {"NCCL_IB_PKEY"}  # the index of a partition key, not a key
_LAUNCHERS = ("srun", "sbatch", "kubectl", "mpirun", "docker")


def probe(machine: Machine) -> JobFacts:
    """The variables that may be reported, and the launchers on PATH."""
    env = machine.ask("environment", dict[str, str], _environment)
    if isinstance(env, Unread):
        return JobFacts(variables=env, launcher_programs=env)
    listed = sorted(environment_of_families(env).items())
    return JobFacts(
        variables=[Variable(name=name, value=value) for name, value in listed],
        launcher_programs=[name for name in _LAUNCHERS if _on_path(machine, name, env.get("PATH", ""))],
    )


def environment_of_families(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that may leave this process: the families of the field, and nothing secret."""
    return {name: value for name, value in env.items() if _may_leave(name)}


def _may_leave(name: str) -> bool:
    if name in _NO_SECRET:
        return True
    secret = any(word in name.upper() for word in _SECRET)
    return not secret and (name in _NAMES or name.startswith(_FAMILIES))


def _environment() -> dict[str, str]:
    pairs = os.environb.items()
    return {
        name.decode(errors="backslashreplace"): value.decode(errors="backslashreplace") for name, value in pairs
    }


def _on_path(machine: Machine, program: str, path: str) -> bool:
    folders = (folder for folder in path.split(":") if folder.startswith("/"))
    return any(machine.exists(f"{folder}/{program}") for folder in folders)
