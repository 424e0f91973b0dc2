"""What NVML, the driver's own library, says where it does not answer for the GPUs of a host (LOG067)."""

from __future__ import annotations

from shlex import quote
from typing import NamedTuple

from ncclcheck.probes.facts import LogEvent
from ncclcheck.reports.judgement.findings import Finding, Where, admin, you
from ncclcheck.reports.subjects.logs.logged import cause
from ncclcheck.reports.subjects.logs.logged_node import on

# NVML's word -> what a container lacks.
_OF_CONTAINERS = {
    "UnknownError": "it has lost the right to their devices, or never had it",
    "Unknown": "it has lost the right to their devices, or never had it",
    "InsufficientPermissions": "it has no right to their devices",
    "NoPermission": "it has no right to their devices",
    "LibraryNotFound": "the driver's libraries were not given to it, or there is no driver",
    "NVMLSharedLibraryNotFound": "the driver's libraries were not given to it, or there is no driver",
}


def _of_a_container(where: Where, events: list[LogEvent], error: str) -> Finding:
    """What NVML says in a container that has no GPUs, or no more."""
    lacks = _OF_CONTAINERS[error.replace(" ", "")]
    lost = "lost" in lacks
    return cause(
        events,
        f"the process{on(where)} cannot ask the driver for its GPUs (NVML: {error}): in a container, {lacks}",
        why="docker with cgroups of systemd takes the devices away from running containers at every "
        "`systemctl daemon-reload`." if lost else "NCCL and the engines ask the driver's library for every GPU.",
        owner="node",
        fix=[
            admin("Confirm: it works on the host, and in a new container.", "nvidia-smi -L",
                  "docker run --rm --gpus all ubuntu nvidia-smi -L"),
            you("Start the container anew, with its GPUs.",
                "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility IMAGE"),
            *([admin("Keep it from coming back: hand the devices over by CDI, or take cgroupfs for docker.",
                     "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
                     """grep native.cgroupdriver=cgroupfs /etc/docker/daemon.json""")] if lost
              else [admin("Look at the devices' modes, and at who may use them.", "ls -l /dev/nvidia*")]),
        ],
        at=where,
    )  # fmt: skip


class _NvmlAnswer(NamedTuple):
    """What one of NVML's answers means, for a heading, and what to do about it."""

    means: str
    fix: str
    commands: tuple[str, ...]


_RESET = ("nvidia-smi --gpu-reset -i 0",)
# By nvmlErrorString(); those of containers are above. Source: NVML API reference, nvmlReturn_t
_ANSWERS = {
    "GPU requires restart": _NvmlAnswer("a GPU needs a reset", "Reset the GPU, or reboot the node.", _RESET),
    "Timeout": _NvmlAnswer(
        "a GPU does not answer the driver", "Reset the GPU, or reboot the node where that fails.", _RESET
    ),
    "Interrupt Request Issue": _NvmlAnswer(
        "interrupts of a GPU do not reach the driver",
        "Reboot the node; look at the slot and the firmware.",
        ("grep nvidia /proc/interrupts",),
    ),
    "Insufficient External Power": _NvmlAnswer(
        "a GPU lacks its power cable, or power", "Look at the cables and supplies of the node.", ("ipmitool sdr",)
    ),
    "Corrupted infoROM": _NvmlAnswer(
        "the memory in which a GPU keeps its own data is damaged",
        "Reset the GPU; where it stays, exchange it.",
        ("nvidia-smi -q | grep -i -A4 inforom",),
    ),
    "In use by another client": _NvmlAnswer(
        "another program holds the driver or the GPU", "End what holds it.", ("fuser -v /dev/nvidia*",)
    ),
    "Insufficient Memory": _NvmlAnswer(
        "the host had no memory for the driver", "Free memory of the host.", ("free -m",)
    ),
    "Insufficient Resources": _NvmlAnswer(
        "the driver has no more of what was asked for", "End other users of the GPUs.", ("fuser -v /dev/nvidia*",)
    ),
    "No GPUs were found": _NvmlAnswer(
        "the driver sees no GPU", "See whether the GPUs are on the bus.", ("lspci | grep -i nvidia",)
    ),
    "Driver Not Loaded": _NvmlAnswer("the driver is not loaded", "Load the driver.", ("modprobe nvidia",)),
    "The operating system has blocked the request": _NvmlAnswer(
        "the system forbids this process to ask",
        "See what forbids it: a cgroup of devices, or a policy.",
        ("ls -l /dev/nvidia*",),
    ),
    "The system is not ready for the request": _NvmlAnswer(
        "the driver, or its fabric of NVSwitches, is still starting",
        "Wait for it, and start its services.",
        ("systemctl status nvidia-fabricmanager nvidia-persistenced",),
    ),
    "Function Not Found": _NvmlAnswer(
        "the driver's library is older than what asks it",
        "Install a newer driver, or an older NCCL or torch.",
        ("nvidia-smi | head -4",),
    ),
    "Not Supported": _NvmlAnswer(
        "this GPU or virtual GPU cannot tell what was asked",
        "Ask the site for the profile of the virtual GPU.",
        ("nvidia-smi -q | grep -i virtualization",),
    ),
}


def not_told(where: Where, events: list[LogEvent]) -> Finding:
    """The driver's library refused to speak of the GPUs."""
    fields = events[0].fields
    call = fields.get("call", "NVML")
    error = (fields.get("error") or fields.get("init") or fields["kind"]).strip()
    if error.replace(" ", "") in _OF_CONTAINERS:
        return _of_a_container(where, events, error)
    if error == "Not Found" and "Handle" in call:
        return _of_another_container(where, events, call)
    known = _ANSWERS.get(error)
    return cause(
        events,
        f"the NVIDIA driver{on(where)} does not answer for its GPUs: {call} says {error!r}"
        + (f" ({known.means})" if known else ""),
        why="NCCL asks the driver's library (NVML) for every GPU, and does not start without an answer.",
        owner="node",
        fix=[
            admin("Confirm: the same question outside of the job.", "nvidia-smi -L", "lsmod | grep ^nvidia",
                  "dmesg -T | grep -iE 'nvrm|xid'"),
            admin(known.fix, *known.commands) if known
            else admin("Load the driver, or reboot the node; a container must be started with its GPUs.",
                       "modprobe nvidia", "docker run --gpus all IMAGE"),
            you("Start again without this node.", f"srun --exclude={quote(where.node or 'NODE')} ..."),
        ],
        at=where,
    )  # fmt: skip


def _of_another_container(where: Where, events: list[LogEvent], call: str) -> Finding:
    """A GPU that the driver does not show to this process, though it answers."""
    return cause(
        events,
        f"the driver{on(where)} does not know a GPU that NCCL asks for ({call}: Not Found): it may be hidden "
        "from this process (another container's, or by the scheduler's binding), or have fallen off the bus",
        why="Containers of one machine with the same host name and boot ID are one host to NCCL, which then looks "
        "for the GPUs of all of them.",
        owner="node",
        fix=[
            admin("Confirm: whether all GPUs are there, in each container and on the host.", "nvidia-smi -L",
                  "dmesg -T | grep -iE 'nvrm|xid'"),
            you("Under Slurm let each task see all GPUs of its node.", "srun --gpu-bind=none ..."),
            you("Give each container all GPUs of the job on that host, or a host ID of its own.",
                "docker run --gpus all IMAGE", "export NCCL_HOSTID=$(hostname)-$(readlink /proc/self/ns/mnt)"),
        ],
        at=where,
    )  # fmt: skip
