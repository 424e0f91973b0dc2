"""Rules about software versions and their agreement between nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Node, Unread, at, replace, value_or
from ncclcheck.reports.judgement.findings import (
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
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nccl.variables import STARTUP_FILES
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements


@rule("VER001", "torch is installed", worst=State.FAIL, gates_job="by any failure")
def torch_installed(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether torch is installed in the Python that runs ncclcheck.

    ## Why it matters
    Everything that measures runs under torchrun. A job that starts in another environment than the one meant
    (no `conda activate` in the batch script, another Python on one node) fails in this way.

    ## How we know
    The import system is asked where torch is; torch itself is not imported. For `env` it is a note: facts need
    no torch.

    ## Fix
    - **you** start ncclcheck from the environment of the training job; or install torch there, by the line
      that pytorch.org shows for your CUDA.

    ## Source
    PyTorch, Get Started; Python library reference, importlib.
    """
    for node in cluster.nodes:
        torch = at(node, "stack.torch")
        if not isinstance(torch, Unread):
            yield fine(Where(node=node.name), f"torch {torch}", seen("torch/version.py", torch))
        elif torch.kind == "absent" and isinstance(path := at(node, "stack.torch_path"), str):
            yield _another_torch(cluster, node.name, path)
        elif torch.kind == "absent":
            yield _no_torch(cluster, node.name, torch, str(at(node, "stack.executable")))
        else:
            what = "whether torch is installed could not be read"
            yield not_read(Where(node=node.name), "stack.torch", torch, what)


def _no_torch(cluster: Cluster, node: str, torch: Unread, python: str) -> Finding:
    level = note if cluster.command in ("env", "logs") else fail
    return level(
        Where(node=node),
        "torch is not installed in the Python that runs ncclcheck",
        why="Without torch nothing can be measured.",
        owner="job",
        evidence=[seen(python, torch.why)],
        fix=[you("Use the Python of your training job, on every node.", "python -m ncclcheck env")],
    )


def _another_torch(cluster: Cluster, node: str, path: str) -> Finding:
    """A folder of that name that comes before the real one, or a real one that is not complete."""
    level = note if cluster.command in ("env", "logs") else fail
    folder, _, name = path.rpartition("/")
    again = you("Install torch again.", "python -m pip install --force-reinstall --no-cache-dir torch")
    rename = you("Rename it.", f"mv {quote(path)} {quote(f'{folder}/my_{name}')}  # on {node}")
    return level(
        Where(node=node),
        f"{path} is imported as torch, and is none: it has no version.py",
        why="Whoever imports torch gets this folder: PYTHONPATH names it first, or torch is not installed whole.",
        owner="job",
        evidence=[seen("stack.torch_path", path)],
        fix=[again if "-packages/" in path else rename],
    )


def _agree(
    cluster: Cluster, fact: str, subject: str, level: Callable[..., Finding], why: str, fix: list[Remedy]
) -> Iterator[Finding]:
    values = {node.name: str(at(node, fact)) for node in cluster.nodes}
    yield from disagreements(values, subject, fact, level=level, why=why, owner="node", fix=fix)


def _put_first(node: Node) -> str:
    """The torch that PYTHONPATH puts before the installed one; empty where it does not."""
    listed, path = value_or(at(node, "stack.hiding"), []), at(node, "stack.torch_path")
    return next(
        (
            hiding.path
            for hiding in listed
            if hiding.module == "torch" and hiding.by == "PYTHONPATH" and hiding.path == path
        ),
        "",
    )


def _other_torch(node: Node, path: str, usual: str) -> Finding:
    return fail(
        Where(node=node.name),
        f"PYTHONPATH puts another torch first there: {at(node, 'stack.torch')} in {path}; the others have {usual}",
        why="Every Python on this node imports it in place of the installed one: its ranks end, or hang.",
        owner="node",
        evidence=[seen("stack.torch_path", path)],
        fix=[
            you(
                "Take the folder out of PYTHONPATH on that node, in the shell or startup file that sets it.",
                f"grep -rsn PYTHONPATH {STARTUP_FILES}   # on {node.name}",
                f"unset PYTHONPATH   # on {node.name}",
            )
        ],
    )


@rule(
    "VER002",
    "the torch version is the same on all nodes",
    worst=State.FAIL,
    needs=("stack.torch",),
    at_least=2,
    between_machines=True,
)
def torch_version(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The version of torch, with its build (`+cu128`, `+cpu`), on all nodes.

    ## Why it matters
    Ranks of different torch versions speak to each other without checking it: they bring different NCCL
    versions, bucket gradients differently and change how the store is used. The job hangs in init, or later in
    a collective, and no message names the reason.

    ## Seen as
    hangs, does not start

    ## How we know
    torch/version.py of the Python that runs ncclcheck on each node; the odd one out by majority. Nodes that come
    by ssh have the PYTHONPATH that their own login shell sets beside the one of the launcher.

    ## Fix
    - **you** one environment or image for all nodes; recreate it on the node that differs.

    ## Source
    pytorch/pytorch#108212; NVIDIA/nccl#1267 (what a mixed libnccl looks like).
    """
    others = [node for node in cluster.nodes if not _put_first(node)]
    usual = {str(at(node, "stack.torch")) for node in others}
    if len(usual) == 1:
        (version,) = usual
        yield from (
            _other_torch(node, path, version)
            for node in cluster.nodes
            if (path := _put_first(node)) and str(at(node, "stack.torch")) != version
        )
        cluster = replace(cluster, nodes=others)
    yield from _agree(
        cluster,
        "stack.torch",
        "torch",
        fail,
        "Different versions of torch bring different NCCL versions and hang without naming the reason.",
        [you("Install the same version on the node that differs.", "python -m pip install torch==VERSION")],
    )


@rule(
    "VER003",
    "the Python version is the same on all nodes",
    worst=State.WARN,
    needs=("stack.python",),
    at_least=2,
    between_machines=True,
)
def python_version(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The version of the Python that runs ncclcheck on each node.

    ## Why it matters
    Objects that ranks send to each other (`broadcast_object_list`, checkpoints, data loaders) are pickled, and
    pickled code is not portable between minor versions. Mostly it shows that one node uses another environment
    than the others.

    ## How we know
    platform.python_version() on each node. Another minor version is a warning, another patch release a note.

    ## Fix
    - **you** one environment or image for all nodes; name the interpreter by its full path in the job script.

    ## Source
    Python library reference, pickle and marshal; pytorch/pytorch#108212.
    """
    minors = {".".join(str(at(node, "stack.python")).split(".")[:2]) for node in cluster.nodes}
    yield from _agree(
        cluster,
        "stack.python",
        "Python",
        warn if len(minors) > 1 else note,
        "What one rank pickles the other may not be able to read; one node may use another environment.",
        [
            you(
                "Name the interpreter by its full path in the job script.",
                "/path/to/env/bin/python -m ncclcheck env",
            )
        ],
    )


@rule(
    "VER004",
    "the ncclcheck version is the same on all nodes",
    worst=State.WARN,
    needs=("stack.ncclcheck",),
    at_least=2,
    between_machines=True,
)
def own_version(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The version of ncclcheck itself on each node.

    ## Why it matters
    Facts of an older version may lack what a newer rule judges, and a measurement may mean something else.

    ## How we know
    Each agent says its version with its facts. Versions that cannot talk to each other at all are refused before.

    ## Fix
    - **you** install the same version everywhere, or put one copy on a shared file system and use PYTHONPATH.

    ## Source
    ncclcheck, CHANGELOG and README (installing into an image that may not be changed).
    """
    yield from _agree(
        cluster,
        "stack.ncclcheck",
        "ncclcheck",
        warn,
        "Facts and measurements of different versions cannot be compared with certainty.",
        [you("Install the same version.", "python -m pip install --upgrade ncclcheck")],
    )


@rule(
    "VER005",
    "the NVIDIA driver version is the same on all nodes",
    worst=State.WARN,
    needs=("stack.driver",),
    at_least=2,
    between_machines=True,
)
def driver_version(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The version of NVIDIA's kernel driver on nodes that have it.

    ## Why it matters
    Features that all ranks must agree on hang on the driver: NVLS, cuMem, DMA-BUF. Where one node lacks one,
    NCCL falls back on that node, or fails in init. A node that was reinstalled last is the usual suspect.

    ## Seen as
    hangs, does not start

    ## How we know
    /proc/driver/nvidia/version on each node; the odd one out by majority.

    ## Fix
    - **admin** the same driver everywhere, the fabric manager with exactly its version, then a reboot.
    - **you** leave the node out until then.

    ## Source
    NVIDIA/nccl-tests#264 (fabric manager of another version), NVIDIA/nccl#554; pytorch/pytorch#108212.
    """
    yield from _agree(
        cluster,
        "stack.driver",
        "NVIDIA driver",
        warn,
        "Ranks must agree on what their drivers can do; with another driver NCCL may fall back or fail there.",
        [
            admin("Install the same driver and fabric manager, then reboot.", "cat /proc/driver/nvidia/version"),
            you("Leave the node out until then.", "#SBATCH --exclude=NODE"),
        ],
    )
