"""Agreement of what the job brings along: CUDA of torch, plugin files, variables outside of NCCL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Node, PluginFile, Unread, at, known, value_or, variables
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, admin, fail, note, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.addresses import to_itself
from ncclcheck.reports.subjects.nodes.agree.agreement import ValueGroups, disagreements, group
from ncclcheck.reports.text.words.fold import fold_names


@rule(
    "VER008",
    "torch is built for the same CUDA version on all nodes",
    worst=State.FAIL,
    needs=("stack.torch_cuda",),
    at_least=2,
    ground=("VER002",),
    between_machines=True,
)
def torch_cuda(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The CUDA version that torch was built for, on each node.

    ## Why it matters
    The version of torch may be the same and its CUDA not (conda, NGC images, a wheel from another index). Each
    brings another libnccl: cu11 and cu12 packages of one torch were mixed like this, and init hung.

    ## Seen as
    hangs, does not start

    ## How we know
    torch/version.py of the Python that runs ncclcheck; a torch without CUDA is left out (GPU001 speaks of it).

    ## Fix
    - **you** install torch from the same index on all nodes, or use one image.

    ## Source
    NVIDIA/nccl#1267; PyTorch, Get Started (index of each CUDA version).
    """
    values = {node.name: str(known(at(node, "stack.torch_cuda"))) for node in cluster.nodes}
    fix = [you("Install from the same index.",
               "python -m pip install torch --index-url https://download.pytorch.org/whl/cu128")]  # fmt: skip
    why = "Each CUDA build brings another NCCL; mixed ones hang in init."
    yield from disagreements(
        values, "the CUDA of torch", "torch/version.py", level=fail, why=why, owner="job", fix=fix
    )


@rule(
    "VER009",
    "NCCL plugins are the same files on all nodes",
    worst=State.FAIL,
    needs=("nccl.plugin_files",),
    at_least=2,
    between_machines=True,
)
def plugin_hashes(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The contents of the network, tuner and other plugins that NCCL would load.

    ## Why it matters
    Plugins of one name and different versions speak to each other over the network in their own way: the job hangs
    as it connects, or a tuner chooses another algorithm on one node than on the others, which hangs in the first
    collective. A pod that kept its old image, or a node that missed an update, is enough.

    ## Seen as
    hangs

    ## How we know
    SHA-256 of each file on each node, and the name and version in its own text. Where a file is missing altogether
    it is NCC008.

    ## Fix
    - **you** take the plugin from the image, the same on all nodes, and not from the host.
    - **admin** update the plugin on the node that differs.

    ## Source
    NVIDIA/nccl#1634; Google Cloud, GPUDirect-TCPXO (one plugin version in all pods).
    """
    names = {file.name for node in cluster.nodes for file in _files(node)}
    if not names:
        raise NothingToJudge("no plugin is found on any node")
    for name in sorted(names):
        values = _contents(cluster, name)
        if len(values) > 1:
            yield from disagreements(
                values,
                name,
                "SHA-256",
                level=fail,
                why="Different versions of a plugin are incompatible, or choose different algorithms.",
                owner="site",
                fix=[
                    you("Use the plugin of one image everywhere.", f"sha256sum {quote(_path(cluster, name))}"),
                    admin("Update it on the node that differs."),
                ],
            )


def _files(node: Node) -> list[PluginFile]:
    files: list[PluginFile] = known(at(node, "nccl.plugin_files"))
    return files


def _contents(cluster: Cluster, name: str) -> dict[str, str]:
    """The plugin of each node by its hash, before which its own name and version stand where these differ."""
    files = {node.name: file for node in cluster.nodes for file in _files(node) if file.name == name}
    hashes = {node: file.sha256[:12] for node, file in files.items() if not isinstance(file.sha256, Unread)}
    products = {node: value_or(files[node].product, "") for node in hashes}
    if len(set(products.values())) == 1:
        return hashes
    return {node: f"{products[node]} ({digest})" if products[node] else digest for node, digest in hashes.items()}


def _path(cluster: Cluster, name: str) -> str:
    return next(file.path for node in cluster.nodes for file in _files(node) if file.name == name)


_WARNED = ("PYTORCH_CUDA_ALLOC_CONF", "CUDA_DEVICE_MAX_CONNECTIONS")
# Each node's own: its rank and its address, and where it writes.
_OWN_TO_A_NODE = re.compile(r"PET_(NODE_RANK|LOCAL_ADDR|LOG_DIR|LOGS_SPECS|LOCAL_RANKS_FILTER|NPROC_PER_NODE)")
_RANKS = "PET_NPROC_PER_NODE"  # of a node by right, but a leftover where the other nodes do not set it at all
_ALONE = "PET_STANDALONE"
_MEETING = ("PET_RDZV_BACKEND", "PET_RDZV_ID")  # where they differ, torchrun's agents never meet
_NOTED = ("OMP_NUM_THREADS", "CUDA_MODULE_LOADING", "CUDA_DEVICE_ORDER")


@rule(
    "VER013",
    "the job's environment is the same on all nodes",
    worst=State.FAIL,
    needs=("job.variables", "stack.executable"),
    at_least=2,
    ground=("VER017",),
    between_machines=True,
)
def environment(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The interpreter's path, LD_LIBRARY_PATH, LD_PRELOAD, the number of devices in CUDA_VISIBLE_DEVICES, and
    variables of CUDA, OpenMP and torch's allocator, and PET_*, by which torchrun takes its options. NCCL's own are
    NCC005.

    ## Why it matters
    Ranks that were started by hand, or by a launcher that does not hand the environment over, take libraries from
    another place on one node, or start threads for every core there. The fault looks like one of that node. A
    PET_STANDALONE=1 that was left in a shell makes torchrun start a job of that node alone, whatever
    --rdzv-endpoint says, and the others wait for it until their time-out.

    ## Seen as
    hangs

    ## How we know
    The environment of the process that the launcher started on each node; the odd one out by majority. Of
    LD_LIBRARY_PATH each folder counts once. What it or LD_PRELOAD names and is not there on that node does not
    count: the loader passes over it. A file of LD_PRELOAD that is not there is a note. Another
    path of the interpreter is a note where Python and torch are of the same version on all nodes. PET_STANDALONE
    is a failure wherever there are several nodes, and so are a back end or an id of the rendezvous that differ.
    Any other PET_* that differs is a warning (an endpoint may have several names), but for the rank and address of
    each node, and for PET_NPROC_PER_NODE where every node sets it. ncclcheck hands none of them to its own
    torchrun. An LD_PRELOAD by which a node's connections are refused is NET006.

    ## Fix
    - **you** take out what one node alone has: its ~/.bashrc, ~/.ssh/environment or /etc/environment gives it.
    - **you** set what all need in the job script and let the launcher hand it over (`srun --export=ALL`,
      `mpirun -x NAME`), or in the image.

    ## Source
    srun(1), --export; ld.so(8); NVIDIA/nccl#969; torchrun (Elastic Launch), OMP_NUM_THREADS.
    """
    facts: list[tuple[str, Callable[..., Finding], Callable[[Node], str]]] = [
        ("the interpreter", note if _same_software(cluster) else warn, _interpreter),
        ("the number of devices in CUDA_VISIBLE_DEVICES", warn, _visible),
        ("LD_LIBRARY_PATH", warn, _searched),
        ("LD_PRELOAD", warn, _loaded),
        *((name, warn, _variable(name)) for name in _WARNED),
        *((name, note, _variable(name)) for name in _NOTED),
    ]
    why = "Ranks on that node use other libraries, devices or threads than the others."
    of_net006 = to_itself.preloaded(cluster)
    for subject, level, read in facts:
        apart = of_net006 if subject == "LD_PRELOAD" else {}
        values = {node.name: read(node) for node in cluster.nodes if node.name not in apart}
        if len(set(values.values())) > 1:
            fix = _fix(subject, group(values))
            yield from disagreements(values, subject, "environment", level=level, why=why, owner="job", fix=fix)
    yield from _passed_over(cluster)
    yield from _of_torchrun(cluster)


def _passed_over(cluster: Cluster) -> Iterator[Finding]:
    for node in cluster.nodes:
        for path in sorted({*_preloaded(node)} & {*value_or(at(node, "stack.not_there"), [])}):
            yield note(
                Where(node=node.name),
                f"LD_PRELOAD names {path}, which is not there",
                why="Nothing is loaded, and the loader writes an error into the output of every process.",
                owner="job",
                evidence=[seen("environment", f"LD_PRELOAD={variables(node)['LD_PRELOAD']}")],
                fix=[you("Take it out.", f"unset LD_PRELOAD  # on {node.name}")],
            )


def _of_torchrun(cluster: Cluster) -> Iterator[Finding]:
    """torchrun takes PET_X for its option --x where the command line does not give it."""
    settings = {node.name: variables(node) for node in cluster.nodes}
    alone = [name for name, given in settings.items() if given.get(_ALONE, "0").strip() not in ("", "0")]
    for node in alone:
        yield fail(
            Where(node=node),
            f"{_ALONE}={settings[node][_ALONE]}: torchrun starts a job of {node} alone there (--standalone), and "
            "does not meet the other nodes",
            why="torchrun then ignores --rdzv-endpoint: the other nodes wait until their time-out.",
            owner="job",
            evidence=[seen("environment", f"{_ALONE}={settings[node][_ALONE]}")],
            fix=[you("Take it out.", f"unset {_ALONE}  # on {node}")],
        )
    names = {name for given in settings.values() for name in given if name.startswith("PET_")}
    for name in sorted(names - {_ALONE}):
        values = {node: given.get(name, "not set") for node, given in settings.items()}
        left_over = name == _RANKS and "not set" in values.values()
        if len(set(values.values())) > 1 and (left_over or not _OWN_TO_A_NODE.fullmatch(name)):
            yield from disagreements(
                values,
                name,
                "environment",
                level=fail if name in _MEETING else warn,
                why=f"torchrun takes it for --{name[4:].lower().replace('_', '-')}, and all nodes need the same.",
                owner="job",
                fix=_fix(name, group(values)),
            )


def _fix(subject: str, grouping: ValueGroups[str]) -> list[Remedy]:
    """What most nodes have is right; without a majority, a variable that is set on a part is a leftover."""
    hand_over = you("Set it in the job script, and let the launcher hand it over.", "srun --export=ALL ...")
    apart = [(value, nodes) for value, nodes in grouping.groups if value != "not set"]
    given = len(apart) == len(grouping.groups) or grouping.majority not in (None, "not set")
    if given or not subject.isidentifier():
        return [hand_over]
    nodes = fold_names(name for _, names in apart for name in names)
    take_out = you(f"Take it out on {nodes}, or give all nodes the same.", f"unset {subject}  # on {nodes}")
    return [take_out, hand_over]


def _same_software(cluster: Cluster) -> bool:
    """Python and torch are of one version everywhere: conda here and a venv there then do the same."""
    versions = {(at(node, "stack.python"), at(node, "stack.torch")) for node in cluster.nodes}
    plain = all(_interpreter(node).endswith(")") for node in cluster.nodes)
    return (
        plain and len(versions) == 1 and not any(isinstance(version, Unread) for version in next(iter(versions)))
    )


def _interpreter(node: Node) -> str:
    """Its path. In one folder python, python3 and python3.11 are names of one file, where the version is one."""
    path, version = str(known(at(node, "stack.executable"))), at(node, "stack.python")
    folder, _, name = path.rpartition("/")
    if isinstance(version, Unread) or not re.fullmatch(r"python(3(\.\d+)?)?", name):
        return path
    return f"{folder}/python ({version})"


def _variable(name: str) -> Callable[[Node], str]:
    return lambda node: variables(node).get(name, "not set")


def _preloaded(node: Node) -> list[str]:
    """ld.so(8): blanks or colons between them."""
    return variables(node).get("LD_PRELOAD", "").replace(":", " ").split()


def _loaded(node: Node) -> str:
    absent = value_or(at(node, "stack.not_there"), [])
    return " ".join(path for path in _preloaded(node) if path not in absent) or "not set"


def _searched(node: Node) -> str:
    """The folders once each: Open MPI's mpirun puts its own before them again on each host it goes through."""
    value = variables(node).get("LD_LIBRARY_PATH")
    absent = value_or(at(node, "stack.not_there"), [])
    folders = [folder for folder in (value or "").split(":") if folder and folder not in absent]
    return ":".join(dict.fromkeys(folders)) or "not set"


def _visible(node: Node) -> str:
    value = variables(node).get("CUDA_VISIBLE_DEVICES")
    return "not set" if value is None else str(len([device for device in value.split(",") if device.strip()]))
