"""A node that fails by itself, beside what it alone has: the difference that bears on the failure is its cause."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import Cluster, Node, Unread, at, variables
from ncclcheck.probes.facts.run.course import signal_name
from ncclcheck.reports.culprit import words
from ncclcheck.reports.culprit.alone import late_ranks, slow_nodes, slow_ranks
from ncclcheck.reports.culprit.machines import share_cores
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.judgement.findings import Culprit, Remedy, Where, you
from ncclcheck.reports.subjects.failures import last_words, lost
from ncclcheck.reports.subjects.failures.last_words import WordsMeaning
from ncclcheck.reports.subjects.links.reached import closed_to
from ncclcheck.reports.subjects.nccl.variables import STARTUP_FILES, assigned, reference

# Each node's own by nature, or without effect on whether and how fast a rank runs.
_NO_MATTER = re.compile(
    r"(?:SLURM|PET|MASTER|TORCHELASTIC|OMPI_COMM|GROUP|KUBERNETES)_\w+|(?:LOCAL_|NODE_)?RANK|(?:LOCAL_)?WORLD_SIZE"
    r"|PYTHON(?:DONTWRITEBYTECODE|UNBUFFERED|HASHSEED|NOUSERSITE|FAULTHANDLER|UTF8|SAFEPATH|BREAKPOINT|_\w+)"
    r"|TORCH_(?:HOME|CUDA_ARCH_LIST|NVCC_FLAGS|HUB|EXTENSIONS_DIR)|CUDA_(?:HOME|PATH|ROOT|VERSION|CACHE_PATH)\w*"
)
# Threads, allocators, checks, and what is loaded beside the program: they slow a process that runs.
_SLOWS = re.compile(
    r"LD_\w+|(?:OMP|KMP|GOMP|MKL|OPENBLAS|BLIS|GOTO|ATEN|DNNL|ONEDNN|GLOO)_\w+|(?:TC)?MALLOC_\w+|GLIBC_TUNABLES"
    r"|[ALT]SAN_\w+|PYTHON(?:MALLOC|DEVMODE|TRACEMALLOC|VERBOSE|OPTIMIZE|DEBUG)|CUDA_LAUNCH_BLOCKING|PYTORCH_\w+"
    r"|TORCH_(?:DISTRIBUTED_DEBUG|CPP_LOG_LEVEL|LOGS|SHOW_CPP_STACKTRACES)"
)
# They end a process without a word of their own.
_CRASHES = re.compile(rf"{last_words.LIBRARIES}|GOMP_\w+|TCMALLOC_\w+|[ALT]SAN_\w+|PYTHON\w+")
# Sent by others, or by a limit.
_FROM_OUTSIDE = {"SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGXCPU", "SIGXFSZ"}
_LEAST_MARK = 4  # letters of a value that tell something where they stand in an exception
_SURE, _LIKELY = 0.97, 0.8  # an order: its last words name the difference, or it is known to do such a thing
_HALF = 50.0  # per cent, from which a late or slow rank is a failure: BEN003.fail_percent, BEN015.fail_percent


@dataclass(frozen=True)
class OwnFailure:
    """How a node failed by itself. words: all that is known of its words; slow: it runs, and the others wait."""

    node: str
    how: str
    explains: str
    words: str = ""
    meaning: WordsMeaning | None = None
    slow: bool = False
    mild: bool = False


@dataclass(frozen=True)
class UnlikeOthers:
    """What a node has unlike all sound ones. name: of a variable; marks: what a dying process would say of it."""

    here: str
    others: str
    source: str
    fix: tuple[Remedy, ...]
    marks: tuple[str, ...]
    name: str = ""

    def is_named_in(self, text: str) -> bool:
        """Whether the words of a failure speak of it."""
        return any(mark.lower() in text.lower() for mark in self.marks)


@dataclass(frozen=True)
class Accused:
    """A node that failed, and what it alone has that bears on it."""

    failure: OwnFailure
    differences: list[UnlikeOthers]

    @property
    def named(self) -> bool:
        """Whether the last words of the failure name it."""
        return any(difference.is_named_in(self.failure.words) for difference in self.differences)

    @property
    def what(self) -> str:
        """`LD_PRELOAD=/x.so, which no other node has: torchrun itself was killed by SIGABRT`."""
        alone = ", ".join(difference.here for difference in self.differences)
        return f"{alone}, unlike the nodes that do not fail; here {self.failure.how}"


@derived
def accused(cluster: Cluster) -> list[Accused]:
    """Nodes that failed where others did not, each with the differences that bear on it."""
    failures = _failures(cluster)
    failed = {failure.node for failure in failures}
    sound = [node for node in cluster.nodes if node.name not in failed]
    if not sound or cluster.job.simulated:
        return []
    by_name = {node.name: node for node in cluster.nodes}
    cases = [
        Accused(failure, _bearing(failure, [*_differences(by_name[failure.node], sound)]))
        for failure in failures
        if failure.node in by_name
    ]
    return [case for case in cases if case.differences]


def by_own_environment(cluster: Cluster) -> list[Culprit]:
    """The same as culprits, and nodes of which the last words name a file that hides a module."""
    cases = accused(cluster)
    own = [_culprit(case.failure, "VER017", case.what, _SURE if case.named else _LIKELY) for case in cases]
    rest = [failure for failure in _failures(cluster) if failure.node not in {each.failure.node for each in cases}]
    return own + [
        _culprit(failure, "VER018", f"{path}: {failure.how}", _SURE)
        for failure in rest
        if (path := _hides(cluster, failure))
    ]


def _culprit(failure: OwnFailure, code: str, why: str, confidence: float) -> Culprit:
    return Culprit(
        kind="node",
        names=[failure.node],
        where=[Where(node=failure.node)],
        confidence=confidence,
        explains=[code, failure.explains],
        why=why,
    )


def _hides(cluster: Cluster, failure: OwnFailure) -> str:
    """The file in place of a module that the last words of a failure name."""
    lists = [at(node, "stack.hiding") for node in cluster.nodes if node.name == failure.node]
    paths = [file.path for listed in lists if not isinstance(listed, Unread) for file in listed]
    return next((path for path in paths if path in failure.words), "")


def _failures(cluster: Cluster) -> list[OwnFailure]:
    """Of each node one: a process of it died by itself; where none did, it is slow by itself."""
    run = cluster.run
    if closed_to(cluster) or run.stopped_by == "signal":
        return []
    late = lost.late(run)
    code = "RUN002" if (late and late[0].phase == "start") or not run.ranks else "RUN003"
    failures = [
        OwnFailure(end.node, lost.ending(cluster, end), code, end.detail, lost.meaning(end))
        for end in lost.killed(run)
        if signal_name(-(end.exit or 0)) not in _FROM_OUTSIDE
    ]
    if not failures and not lost.killed(run):
        failures = [*_ranks_that_died(cluster, code)] or [
            OwnFailure(end.node, lost.ending(cluster, end), code, end.detail, lost.meaning(end))
            for end in run.ends
            if end.detail and end.exit and not lost.gave_up(end) and not late_elsewhere(cluster, end.node)
        ]
    return [*{failure.node: failure for failure in reversed(failures or [*_slow(cluster)])}.values()]


def late_elsewhere(cluster: Cluster, node: str) -> bool:
    """Whether ranks of other nodes alone are known to have failed: what this one says follows from it."""
    late = [rank for rank in lost.late(cluster.run) if rank.error or rank.first]
    return bool(late) and all(rank.node != node for rank in late)


def _ranks_that_died(cluster: Cluster, code: str) -> Iterator[OwnFailure]:
    run = cluster.run
    for rank in lost.by_themselves(lost.late(run)):
        if signal_name(-(rank.exit or 0)) in _FROM_OUTSIDE:
            continue
        detail = rank.error or "\n".join(end.detail for end in run.ends if end.node == rank.node)
        how = f"rank {rank.rank}, {lost.how(rank)}, {lost.where(rank)}"
        yield OwnFailure(rank.node, how, code, detail, lost.meaning_of(rank, run))


def _slow(cluster: Cluster) -> Iterator[OwnFailure]:
    for late_rank in late_ranks(cluster):
        how = f"rank {late_rank.fact.rank} {words.late(late_rank)}"
        yield OwnFailure(late_rank.fact.node, how, "BEN003", slow=True, mild=100 * late_rank.share < _HALF)
    if not share_cores(cluster):
        for code, slows in (("BEN015", slow_ranks(cluster)), ("BEN016", slow_nodes(cluster))):
            for slow in slows:
                yield OwnFailure(slow.node, words.slow(slow), code, slow=True, mild=slow.percent >= _HALF)


def _bearing(failure: OwnFailure, differences: Sequence[UnlikeOthers]) -> list[UnlikeOthers]:
    """Those that its words name; else those that are known to do such a thing."""
    if named := [difference for difference in differences if difference.is_named_in(failure.words)]:
        return named
    if failure.slow:
        return [difference for difference in differences if _SLOWS.fullmatch(difference.name)]
    if failure.meaning is not None:
        bears = failure.meaning.bears
        return [
            difference
            for difference in differences
            if bears and difference.name and re.fullmatch(bears, difference.name)
        ]
    if re.search(r"\w(?:Error|Exception)\b", failure.words):
        return [
            difference
            for difference in differences
            if difference.name and f"{difference.name.partition('_')[0].lower()} " in f"{failure.words.lower()} "
        ]
    return [difference for difference in differences if _CRASHES.fullmatch(difference.name)]


def _differences(node: Node, sound: Sequence[Node]) -> Iterator[UnlikeOthers]:
    """Where the healthy nodes agree and this one differs."""
    mine, theirs = variables(node), [variables(node) for node in sound]
    for name in sorted({*mine, *(name for each in theirs for name in each)}):
        values = {each.get(name) for each in theirs}
        if len(values) == 1 and mine.get(name) not in values and not _is_no_matter(name):
            yield _of_variable(node.name, name, mine.get(name), values.pop())
    yield from _installed(node, sound)


def _is_no_matter(name: str) -> bool:
    known = reference().get(name)
    own_by_nature = known is not None and known.component == "nccl" and known.mismatch == "per-node-ok"
    return own_by_nature or bool(_NO_MATTER.fullmatch(name))


def _of_variable(node: str, name: str, here: str | None, others: str | None) -> UnlikeOthers:
    find = you(
        "Where no job script sets it, find what does on that node.",
        f"grep -rsn {quote(name)} {STARTUP_FILES}  # on {node}",
    )
    if others is None:
        fix = you("Take it out of that node's environment.", f"unset {quote(name)}  # on {node}")
    else:
        text = "Give it the value that the other nodes have."
        fix = you(
            text, f"export {assigned(name, others) if _is_plain(others) else f'{name}={others!r}'}  # on {node}"
        )
    marks = [mark for mark in (here, others) if mark and len(mark) >= _LEAST_MARK and not mark.isdigit()]
    return UnlikeOthers(
        here=f"{name} is not set" if here is None else assigned(name, here),
        others="not set" if others is None else assigned(name, others),
        source="environment",
        fix=(fix, find),
        marks=(name, *marks),
        name=name,
    )


def _is_plain(value: str) -> bool:
    return bool(re.fullmatch(r"[\w./:,=+-]+", value))


# Facts of what is installed: what they are called, and what a dying process would say of them.
_INSTALLED = (
    ("stack.torch_libraries", "torch's libraries of {} bytes", ("libtorch", "libc10")),
    ("stack.numpy", "numpy {}", ("numpy", "_array_api")),
    ("stack.python", "Python {}", ("bad magic number", "cpython-3")),
    ("stack.preloaded", "/etc/ld.so.preload with {}", ("ld.so.preload",)),
    ("stack.customised", "{}, which every Python runs first", ("site module", "sitecustomize", "usercustomize")),
)


def _installed(node: Node, sound: Sequence[Node]) -> Iterator[UnlikeOthers]:
    for path, words_for_it, marks in _INSTALLED:
        here, others = _read(node, path), {_read(node, path) for node in sound}
        if len(others) == 1 and here not in others and "" not in (here, *others):
            other = next(iter(others))
            yield UnlikeOthers(
                here=words_for_it.format(here),
                others=words_for_it.format(other),
                source=path,
                fix=(_as_there(path, here, other, node.name),),
                marks=(*marks, *(part for part in here.split() if "/" in part)),
                name="LD_PRELOAD" if path == "stack.preloaded" else "",
            )


def _read(node: Node, path: str) -> str:
    """A fact as text; "none" where it is known to be absent, empty where it is not known."""
    value = at(node, path)
    if isinstance(value, Unread):
        return "none" if value.kind == "absent" else ""
    return (" ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)


def _as_there(path: str, here: str, other: str, node: str) -> Remedy:
    if path == "stack.preloaded":
        return Remedy(
            who="admin", text="Take it out of that file.", commands=[f"cat /etc/ld.so.preload  # on {node}"]
        )
    if path == "stack.customised":
        return you("Rename it, or correct it.", f"mv {quote(here)} {quote(here)}.off  # on {node}")
    if path == "stack.numpy" and other != "none":
        return you("Install the numpy of the others.", f"python -m pip install numpy=={other}  # on {node}")
    if path == "stack.numpy":
        return you("The others have none.", f"python -m pip uninstall -y numpy  # on {node}")
    if path == "stack.torch_libraries":
        return you(
            "Install torch again there: its files are not those of the others.",
            f"python -m pip install --force-reinstall --no-cache-dir --no-deps torch  # on {node}",
        )
    return you("Use the same environment on all nodes.", "python -m ncclcheck env")
