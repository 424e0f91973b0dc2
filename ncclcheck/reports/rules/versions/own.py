"""What one node has for itself: variables and packages that explain its failure, and files that hide modules."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Hiding, Unread, at
from ncclcheck.reports.culprit.own import Accused, accused
from ncclcheck.reports.judgement.findings import Finding, State, Where, fail, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.failures.limits.cut_libraries import REINSTALL
from ncclcheck.reports.subjects.nccl.variables import as_version
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements
from ncclcheck.reports.text.words.fold import fold_names

# Of Python's own modules those that torch.distributed.run, torch.distributed and torch.utils.data import, without
# those that are part of the interpreter: sys.modules after their import, torch 2.13 on Python 3.11.
_IMPORTED = frozenset((
    *("argparse", "array", "ast", "asyncio", "base64", "binascii", "bisect", "bz2", "calendar", "cmath"),
    *("collections", "concurrent", "contextlib", "contextvars", "copy", "copyreg", "csv", "ctypes"),
    *("dataclasses", "datetime", "difflib", "dis", "email", "encodings", "enum", "fcntl", "fnmatch"),
    *("functools", "gettext", "glob", "grp", "gzip", "hashlib", "heapq", "http", "importlib", "inspect"),
    *("ipaddress", "json", "keyword", "linecache", "locale", "logging", "lzma", "math", "mmap"),
    *("multiprocessing", "numbers", "opcode", "operator", "pathlib", "pickle", "pickletools", "pkgutil"),
    *("platform", "pprint", "queue", "quopri", "random", "re", "reprlib", "select", "selectors"),
    *("shutil", "signal", "socket", "ssl", "string", "struct", "subprocess", "tarfile", "tempfile"),
    *("textwrap", "threading", "timeit", "token", "tokenize", "traceback", "types", "typing"),
    *("unittest", "urllib", "uuid", "warnings", "weakref", "zipfile", "zlib", "torch", "numpy"),
    *("typing_extensions", "filelock", "sympy", "networkx", "jinja2", "fsspec"),
))  # fmt: skip
_NUMPY_2_SINCE = (2, 3, 0)  # torch 2.3.0, release notes: built for numpy 2


@rule(
    "VER017",
    "no node fails because of something only it has",
    worst=State.FAIL,
    over="",
    between_machines=True,
    commands=("bench", "smoke"),
)
def own_environment(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Where a rank or a torchrun of one node died by itself, or one node is slow by itself: variables, libraries and
    packages of that node that the others do not have, and that are known to bring such a failure about.

    ## Why it matters
    What a shell's startup file, sshd, a daemon or an image gives to one node alone ends or slows ranks there, and
    all other nodes hang or wait. What the ranks say points at torch, gloo or the network.

    ## Seen as
    hangs, slow

    ## How we know
    Nodes that failed are compared with those that did not: what the healthy ones agree on, and the failed one has
    otherwise. What the last words of the failure mention is named. Without such words, a crash points at what
    loads or changes libraries (LD_PRELOAD, LD_LIBRARY_PATH, MALLOC_*, PYTHON*), and a slow node at what slows a
    process (OMP_*, MALLOC_*). A signal from outside (SIGKILL, SIGTERM), a limit or a lost network accuses no
    variable. A difference without a failure is VER013 at most.

    ## Fix
    - **you** take the variable out of that node's environment, or give it the value of the others; install the
      package as it is on the others.

    ## Source
    ld.so(8), mallopt(3), Python's documentation (Environment variables); NVIDIA/nccl#1267.
    """
    if not cluster.run.started_job:
        raise NothingToJudge("no job was started")
    yield from map(_accusation, accused(cluster))


def _accusation(suspect: Accused) -> Finding:
    failure = suspect.failure
    make = warn if failure.mild else fail
    return make(
        Where(node=failure.node),
        suspect.what,
        why="All other nodes wait for this one; what they print is a consequence.",
        owner="node",
        evidence=[
            *(seen(each.source, f"{each.here}; the others: {each.others}") for each in suspect.differences),
            *([seen("last words", failure.words)] if failure.words else []),
        ],
        fix=[fix for each in suspect.differences for fix in each.fix],
    )


@rule("VER018", "no local file shadows a module of Python or torch", worst=State.FAIL, ground=("VER002",))
def hidden_modules(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Files and packages in the working directory, or in a folder of PYTHONPATH, that have the name of a module which
    torch imports: queue.py, random.py, types.py, logging/, torch/.

    ## Why it matters
    `python train.py` looks in the script's folder first, `python -m` in the working directory, and every Python in
    PYTHONPATH: the user's queue.py is imported in place of Python's own, and torch ends with an ImportError or an
    AttributeError about something else. Where one node alone has the file, the job dies on that node.

    ## Seen as
    dies

    ## How we know
    The names in these folders, on each node, compared with the modules that `import torch` loads. A folder
    without an __init__.py hides nothing. It is a warning; a failure where the error of a rank or of torchrun names
    the file, or where ranks died on its node and PYTHONPATH puts it first for every process. A package in
    PYTHONPATH that is none of Python's own is mostly meant: it is reported where such an error names it. ncclcheck
    itself imports Python's own modules first.

    ## Fix
    - **you** rename the file.

    ## Source
    Python tutorial, The Module Search Path; Python documentation, PYTHONPATH and sys.path.
    """
    hidden: dict[tuple[str, str, str, bool], list[str]] = {}
    known = 0
    for node in cluster.nodes:
        listed = at(node, "stack.hiding")
        if isinstance(listed, Unread):
            continue
        known += 1
        for hiding in listed:
            named = _named_in_failure(cluster, node.name, hiding)
            if hiding.module in _IMPORTED and (named or not _is_vendored(hiding)):
                key = (hiding.module, hiding.path, hiding.by, named)
                hidden.setdefault(key, []).append(node.name)
    if not known:
        raise NothingToJudge("the folders of the job were not looked at")
    for (module, path, by, named), nodes in hidden.items():
        everywhere = len(nodes) == len(cluster.nodes) > 1
        make = fail if named else warn
        for name in nodes[:1] if everywhere else nodes:
            yield make(
                Where() if everywhere else Where(node=name),
                f"{path} hides the module {module}" + (" on all nodes" if everywhere else ""),
                why=f"{by[0].upper()}{by[1:]} comes first: whoever imports {module}, torch too, gets this file.",
                owner="job",
                evidence=[seen(by, f"{path} on {fold_names(nodes)}")],
                fix=[you("Rename it.", _renamed(path))],
            )


def _renamed(path: str) -> str:
    """The line that renames a file or a folder."""
    folder, _, name = path.rpartition("/")
    return f"mv {quote(path)} {quote(f'{folder}/my_{name}')}"


def _named_in_failure(cluster: Cluster, node: str, hiding: Hiding) -> bool:
    """Whether what died there speaks of the file, or something died and the file is on every path."""
    run = cluster.run
    errors = [rank.error for rank in run.ranks if rank.node == node and rank.error]
    errors += [end.detail for end in run.ends if end.node == node and end.detail and end.exit]
    if _is_vendored(hiding):
        return any(re.search(rf"\b{re.escape(hiding.module)}\b", error) for error in errors)
    return any(hiding.path in error for error in errors) or (bool(errors) and hiding.by == "PYTHONPATH")


def _is_vendored(hiding: Hiding) -> bool:
    """A package on PYTHONPATH that is none of Python's own is mostly meant to be there."""
    return hiding.by == "PYTHONPATH" and hiding.module not in sys.stdlib_module_names


@rule(
    "VER019",
    "torch's files and numpy are the same on all nodes",
    worst=State.WARN,
    needs=("stack.torch",),
    at_least=2,
    ground=("VER002", "VER017"),
    between_machines=True,
)
def same_files(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The size of torch's shared libraries where its version is the same, the version of numpy, and whether that
    numpy fits that torch.

    ## Why it matters
    An installation that was interrupted, or a disk that was full, leaves libraries that are cut short: the version
    is right, and the import ends with "file too short" or a bus error. torch before 2.3 was built for numpy 1:
    with numpy 2 `tensor.numpy()` fails, in data loaders first. Without numpy on one node, its loaders fail there.

    ## Seen as
    dies

    ## How we know
    The sizes of libtorch*.so and libc10*.so, and the metadata of numpy, of the Python that runs ncclcheck on each
    node. Another numpy that fits too is not reported.

    ## Fix
    - **you** install the same again on the node that differs, without pip's cache.

    ## Source
    torch 2.3.0, release notes (numpy 2); pip documentation, --no-cache-dir; pytorch/pytorch#107302.
    """
    sizes = {
        node.name: s for node in cluster.nodes if not isinstance(s := at(node, "stack.torch_libraries"), Unread)
    }
    if len({*sizes.values()}) > 1:
        yield from disagreements(
            sizes,
            "the size of torch's libraries in bytes",
            "libtorch*.so, libc10*.so",
            level=warn,
            why="The version is the same and the files are not: an installation is not complete, or another one.",
            owner="node",
            fix=[REINSTALL],
        )
    yield from _numpy(cluster)


def _numpy(cluster: Cluster) -> Iterator[Finding]:
    """Missing where others have it, or of another major version than the others or than torch was built for."""
    facts = {node.name: at(node, "stack.numpy") for node in cluster.nodes}
    majors = {
        name: "missing" if isinstance(version, Unread) else f"{version.partition('.')[0]}.x"
        for name, version in facts.items()
        if not isinstance(version, Unread) or version.kind == "absent"
    }
    if len({*majors.values()}) > 1:
        yield from disagreements(
            majors,
            "numpy",
            "metadata of numpy",
            level=warn,
            why="Data loaders and checkpoints that pass numpy arrays work on some nodes and fail on others.",
            owner="node",
            fix=[you("Install the version of the other nodes there.", "python -m pip install 'numpy==VERSION'")],
        )
    for node in cluster.nodes:
        torch, numpy = as_version(at(node, "stack.torch")), as_version(facts[node.name])
        if torch and numpy and torch < _NUMPY_2_SINCE and numpy >= (2, 0, 0):
            yield warn(
                Where(node=node.name),
                f"torch {at(node, 'stack.torch')} was built for numpy 1, and numpy is {facts[node.name]}",
                why="tensor.numpy() and torch.from_numpy() raise `Numpy is not available`.",
                owner="job",
                evidence=[seen("metadata of numpy", facts[node.name])],
                fix=[you("Install numpy 1.", "python -m pip install 'numpy<2'")],
            )
