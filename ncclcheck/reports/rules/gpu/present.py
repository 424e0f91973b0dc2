"""Rules about GPUs: those that are here can be used, and there are as many as required."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ncclcheck.probes.facts import Cluster, Node, Unread, at, value_or, variables
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    not_read,
    note,
    seen,
    you,
)
from ncclcheck.reports.judgement.required import RequiredCount, required, too_few
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl.variables import as_version
from ncclcheck.reports.subjects.nodes.cards import given_by_slurm

_SLURM = ("SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS")
_NONE_GIVEN = {"", "-1", "NoDevFiles"}


@rule("GPU001", "the GPUs present are usable", worst=State.FAIL, gates_job="by any failure")
def usable(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether CUDA, and the torch that is installed, can use the GPUs of a node that has signs of some: a PCI
    function of NVIDIA, /dev/nvidia*, or GPUs that Slurm has given.

    ## Why it matters
    A program that finds no usable GPU often goes on with gloo on the CPU without a word. The usual reasons are
    a container that was started without its GPUs, a torch without CUDA, a driver that is older than the CUDA
    that torch was built for, and a fabric manager that is not running (CUDA error 802).

    ## Seen as
    does not start, setting without effect

    ## How we know
    PCI vendor 0x10de of class 0x0300 or 0x0302, the device files, and the answers of cuInit, cuDeviceGetCount
    and cuDriverGetVersion of libcuda.so.1, asked in a process of its own; torch/version.py for torch's CUDA.
    A driver of the same CUDA major version is new enough (CUDA 11 and later). It is a note where the job was
    given none (CUDA_VISIBLE_DEVICES empty or -1, a Slurm job without GPUs), asks for gloo, or has a torch for
    AMD's ROCm. Under WSL2 there is neither a PCI function nor a device file, and cuDeviceGetCount alone shows it.

    ## Fix
    - **you** `docker run --gpus all`, `srun --gpus-per-node=8`; a torch wheel for CUDA.
    - **admin** `nvidia-smi` on the host; the NVIDIA Container Toolkit; a newer driver; the fabric manager.

    ## Source
    CUDA driver API, cuInit and error codes; CUDA compatibility guide; NVIDIA/nccl-tests#264, NVIDIA/nccl#554,
    pytorch/pytorch#18690.
    """
    nodes = [node for node in cluster.nodes if _signs(node) or _hidden(node)]
    if not nodes:
        raise NothingToJudge("no NVIDIA GPU on any node")
    for node in nodes:
        yield _judge(cluster, node)


def _list(node: Node, fact: str) -> list[str]:
    """A list of names, or none where it is not known: what is not known is judged in `_hidden`."""
    return value_or(at(node, fact), [])


def _signs(node: Node) -> list[Evidence]:
    all_evidence = (
        [seen("/sys/bus/pci/devices", ", ".join(_list(node, "gpus.pci")))] if _list(node, "gpus.pci") else []
    )
    if devices := _list(node, "gpus.devices"):
        all_evidence.append(seen("/dev", ", ".join(devices)))
    if not all_evidence and (count := value_or(at(node, "gpus.usable"), 0)):
        all_evidence.append(seen("cuDeviceGetCount", count))
    env = variables(node)
    return all_evidence + [seen(name, env[name]) for name in _SLURM if env.get(name, "") not in ("", "0")]


def _hidden(node: Node) -> Unread | None:
    """Why GPUs of a node could not be seen, where that is not for there being none."""
    facts = (at(node, "gpus.pci"), at(node, "gpus.devices"))
    return next((fact for fact in facts if isinstance(fact, Unread) and fact.kind != "absent"), None)


def _judge(cluster: Cluster, node: Node) -> Finding:
    count: Any = at(node, "gpus.usable")
    where, signs = Where(node=node.name), _signs(node)
    if not signs and (hidden := _hidden(node)):
        return _unknown(where, "whether there are GPUs could not be read", hidden, signs)
    if reason := _not_wanted(cluster, node, count):
        return note(where, f"its GPUs are not used: {reason}", evidence=signs)
    if problem := _torch_problem(node):
        return _failed(where, problem[0], [*signs, *problem[1]], problem[2])
    if isinstance(count, Unread):
        return _unseen(where, count, signs)
    if count == 0:
        return _none_usable(node, where, signs)
    there = max(len(_list(node, "gpus.devices")), given_by_slurm(node))
    text = f"{count} GPU{'s' if count > 1 else ''} can be used"
    if count < there and "CUDA_VISIBLE_DEVICES" not in variables(node):
        return note(
            where, f"{text}, {there} are here", why="With MIG CUDA shows one; else one is lost.", evidence=signs
        )
    return fine(where, text, *signs)


def _not_wanted(cluster: Cluster, node: Node, count: int | Unread) -> str:
    """Why it is right that none is used."""
    env = variables(node)
    if env.get("CUDA_VISIBLE_DEVICES", "all") in _NONE_GIVEN:
        return f"CUDA_VISIBLE_DEVICES={env['CUDA_VISIBLE_DEVICES']!r}"
    if "SLURM_JOB_ID" in env and count == 0 and not any(env.get(name, "") not in ("", "0") for name in _SLURM):
        return "the Slurm job was given none"
    if "+rocm" in value_or(at(node, "stack.torch"), "") and not _list(node, "gpus.pci"):
        return "its torch is for ROCm, and AMD's GPUs are not judged"
    return "gloo was asked for" if cluster.job.backend_asked == "gloo" else ""


def _torch_problem(node: Node) -> tuple[str, list[Evidence], list[Remedy]] | None:
    """What torch itself lacks, whatever the driver can do."""
    torch, cuda, driver = (at(node, fact) for fact in ("stack.torch", "stack.torch_cuda", "gpus.driver_cuda"))
    if isinstance(torch, Unread):
        return None
    if isinstance(cuda, Unread):
        what = f"torch {torch} was built without CUDA and can use no GPU"
        wheel = you(
            "Install a torch for CUDA (pytorch.org, Get Started).", "python -m pip install --force-reinstall torch"
        )
        return (what, [seen("torch/version.py", cuda.why)], [wheel]) if cuda.kind == "absent" else None
    needed, offered = as_version(cuda), as_version(driver)
    if needed is None or offered is None or offered[0] >= needed[0]:
        return None
    return (
        f"the driver is for CUDA {driver}, torch {torch} needs CUDA {needed[0]}",
        [seen("cuDriverGetVersion", driver), seen("torch/version.py", f"cuda {cuda}")],
        [
            you(f"Install a torch that was built for CUDA {offered[0]} (pytorch.org, Get Started)."),
            admin("Install a newer driver.", "nvidia-smi --query-gpu=driver_version --format=csv"),
        ],
    )


def _unseen(where: Where, count: Unread, signs: list[Evidence]) -> Finding:
    evidence = [*signs, seen("libcuda.so.1", count.why)]
    if count.kind in ("no_tool", "absent"):
        return _failed(
            where, "CUDA's driver library is not here, although there are signs of GPUs", evidence, _map_it()
        )
    return _unknown(where, "whether CUDA can use its GPUs could not be read", count, signs)


def _unknown(where: Where, what: str, fact: Unread, signs: list[Evidence]) -> Finding:
    return not_read(
        where,
        "GPU",
        fact,
        what,
        why="A GPU that cannot be seen may be broken, and a driver that does not answer may hang the job.",
        signs=signs,
        fix=[admin("Look at the driver.", "nvidia-smi", "dmesg | grep -iE 'nvrm|xid'")],
    )


def _none_usable(node: Node, where: Where, signs: list[Evidence]) -> Finding:
    error = value_or(at(node, "gpus.cuda_error"), "") or "cuDeviceGetCount gave 0"
    evidence = [*signs, seen("cuInit", error)]
    if "(802)" in error:
        fabric = admin(
            "Start the fabric manager of exactly the driver's version.", "systemctl restart nvidia-fabricmanager"
        )
        return _failed(where, f"CUDA can use no GPU: {error}", evidence, [fabric])
    if not _list(node, "gpus.devices"):
        return _failed(where, f"CUDA can use no GPU ({error}), and there is no /dev/nvidia*", evidence, _map_it())
    look = admin(
        "Look at the driver on the host.",
        "nvidia-smi",
        "cat /proc/driver/nvidia/version",
        "dmesg | grep -iE 'nvrm|xid'",
    )
    return _failed(where, f"CUDA can use no GPU: {error}", evidence, [look, *_map_it()])


def _map_it() -> list[Remedy]:
    return [
        you(
            "Ask for the GPUs: from the container runtime, or from the job system.",
            "docker run --gpus all ...",
            "srun --gpus-per-node=8 ...",
        ),
        admin(
            "Install the driver, and for containers the toolkit.",
            "nvidia-ctk runtime configure",
            "modprobe nvidia && nvidia-smi",
        ),
    ]


def _failed(where: Where, what: str, evidence: list[Evidence], fix: list[Remedy]) -> Finding:
    why = "The job would silently run on the CPU, or not start."
    return fail(where, what, why=why, owner="node", evidence=evidence, fix=fix)


@rule("GPU002", "every node has the required GPUs", worst=State.FAIL)
def required_gpus(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The number of GPUs that CUDA can use on each node, against `--require gpu=N`, or the site file.

    ## Why it matters
    A GPU that has fallen off the bus is not in any list any more: without a number that is expected nobody
    misses it until torchrun counts its ranks.

    ## How we know
    cuDeviceGetCount of libcuda.so.1. What could not be read counts as missing, for the site asks for proof.

    ## Fix
    - **you** ask the job system or the container runtime for all of them.
    - **admin** `nvidia-smi -L`, `dmesg | grep -i xid` (79 is a GPU that fell off the bus); drain the node.

    ## Source
    CUDA driver API, cuDeviceGetCount; NVIDIA GPU deployment guide, Xid errors.
    """
    wanted = required(cluster, "gpu")
    for node in cluster.nodes:
        count = RequiredCount(node.name, "GPU", wanted, at(node, "gpus.usable"), "cuDeviceGetCount")
        if count.enough:
            yield fine(count.where, f"{count.actual} GPUs", seen("cuDeviceGetCount", count.actual))
            continue
        yield too_few(
            count,
            why="The job needs a rank on each of them.",
            fix=[
                you("Ask for all of them.", "srun --gpus-per-node=8 ...", "docker run --gpus all ..."),
                admin("Find the missing one.", "nvidia-smi -L", "dmesg | grep -i xid"),
            ],
        )
