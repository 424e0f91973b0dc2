"""Files around NCCL: those that variables name, its log, and the packages that bring a libnccl."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, NamedFile, Node, Wheel, at, known, value_or
from ncclcheck.reports.judgement.findings import Evidence, Finding, State, Where, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl.settings import nodes_with
from ncclcheck.reports.subjects.nccl.variables import as_version


@rule(
    "NCC011",
    "the files named in NCCL variables are usable",
    worst=State.WARN,
    needs=("nccl.named_files",),
)
def named_files(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_TOPO_FILE, NCCL_GRAPH_FILE, NCCL_TUNER_CONFIG_FILE and NCCL_IBVERBS_LIB, which are read; NCCL_DEBUG_FILE
    and the dump files of NCCL and of torch's Flight Recorder, which are written.

    ## Why it matters
    NCCL goes on without a file that it cannot open. A topology file that was not mounted into the container makes
    a cloud machine look like one without PCIe switches, and costs much of its bandwidth. A log or a dump that
    cannot be written is missed when the job has already hung.

    ## Seen as
    hangs, slow

    ## How we know
    Each path on each node: readable, or its directory writable. NCCL and torch do not replace `~`. What follows
    a `%` is not known before the job.

    ## Fix
    - **you** mount the file into the container, or correct the path; make the directory before the job starts.
    - **admin** put the file on the node, or take the variable out of the image.

    ## Source
    NCCL user guide, NCCL_TOPO_FILE and NCCL_DEBUG_FILE; NCCL user guide, troubleshooting, topology detection.
    """
    listed = [(node, known(at(node, "nccl.named_files"))) for node in cluster.nodes]
    if not any(files for _, files in listed):
        raise NothingToJudge("no variable names a file")
    for node, files in listed:
        yield from (_unusable(node, file) for file in files if not file.fits)


def _unusable(node: Node, file: NamedFile) -> Finding:
    problem = "cannot be written" if file.output else "cannot be read"
    tilde = "; ~ is not replaced" if file.path.startswith("~") else ""
    return warn(
        Where(node=node.name),
        f"{file.name}={file.path} {problem}{tilde}",
        why="NCCL and torch go on without it and hardly say so.",
        owner="job",
        evidence=[seen("access(2)", f"{file.path}: no")],
        fix=[
            you(
                "Mount it into the container, make its directory, or correct the path.",
                f"ls -l {quote(file.path)}",
            )
        ],
    )


@rule("NCC012", "every process writes its own NCCL log", worst=State.WARN, needs=("job.variables",))
def log_file(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_DEBUG_FILE without `%p` in its name.

    ## Why it matters
    Every process truncates the file when it opens it, and all of them write to it. What remains is a mixture of
    the last ones, in which the rank that failed first is mostly missing. On a shared file system the hosts
    overwrite each other as well, so `%h` belongs there too.

    ## How we know
    The name. `%p` is the process id, `%h` the host.

    ## Fix
    - **you** `export NCCL_DEBUG_FILE=/tmp/nccl.%h.%p`.

    ## Source
    NCCL user guide, NCCL_DEBUG_FILE.
    """
    for settings in nodes_with(cluster, "NCCL_DEBUG_FILE"):
        path = settings.text("NCCL_DEBUG_FILE")
        if path and "%p" not in path and not path.startswith("/dev/"):
            yield warn(
                settings.where,
                f"NCCL_DEBUG_FILE={path} is one file for all processes",
                why="Every process empties it when it starts: the log of the rank that failed is lost.",
                owner="job",
                evidence=settings.evidence("NCCL_DEBUG_FILE"),
                fix=[you("Put host and process into the name.", "export NCCL_DEBUG_FILE=/tmp/nccl.%h.%p")],
            )


@rule(
    "NCC035",
    "exactly one installed package provides the libnccl that torch needs",
    worst=State.WARN,
    needs=("nccl.wheels",),
)
def one_wheel(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The Python packages nvidia-nccl-cu11, -cu12 and -cu13 beside torch, and the version that torch asks for.

    ## Why it matters
    All of them install the same file, `nvidia/nccl/lib/libnccl.so.2`. With two the one that came last wins, and
    `pip list` does not show which. With an older libnccl than torch was built for, `import torch` ends with
    `undefined symbol: ncclCommRegister`; with another one on some nodes the job hangs.

    ## Seen as
    hangs, does not start, dies

    ## How we know
    The names of the dist-info directories beside torch, and Requires-Dist in torch's own metadata. A newer NCCL
    than the one asked for is fine.

    ## Fix
    - **you** uninstall all of them and install the one that torch asks for, on every node.

    ## Source
    pytorch/pytorch#119072; rapidsai/cugraph#4465; rwth-i6/returnn#1802; NVIDIA/nccl#1267.
    """
    listed = [(node, known(at(node, "nccl.wheels"))) for node in cluster.nodes]
    if not any(wheels for _, wheels in listed):
        raise NothingToJudge("no package brings a libnccl")
    for node, wheels in listed:
        if len(wheels) > 1:
            yield _wrong(node, wheels, f"{len(wheels)} packages write the same libnccl.so.2: {_named(wheels)}")
        elif wheels and (older := _older_than_wanted(node, wheels[0])):
            yield _wrong(node, wheels, older)


def _named(wheels: list[Wheel]) -> str:
    return ", ".join(f"{wheel.name} {wheel.version}" for wheel in wheels)


def _older_than_wanted(node: Node, wheel: Wheel) -> str:
    wanted = value_or(at(node, "nccl.wanted"), "")
    have, want = as_version(wheel.version), as_version(wanted)
    return f"{wheel.name} is {wheel.version}, torch asks for {wanted}" if have and want and have < want else ""


def _wrong(node: Node, wheels: list[Wheel], what: str) -> Finding:
    evidence: list[Evidence] = [seen("site-packages", _named(wheels))]
    wanted = value_or(at(node, "nccl.wanted"), "")
    if wanted:
        evidence.append(seen("torch's metadata", f"nvidia-nccl {wanted}"))
    names = " ".join(quote(wheel.name) for wheel in wheels)
    keep = quote(f"{wheels[-1].name}{f'=={wanted}' if wanted else ''}")
    return warn(
        Where(node=node.name),
        what,
        why="Which libnccl is used is then a matter of chance, or it lacks what torch calls.",
        owner="job",
        evidence=evidence,
        fix=[you("Install one only.", f"python -m pip uninstall -y {names}", f"python -m pip install {keep}")],
    )
