"""DAT004 and DAT008: samples that come out wrong because another worker reads at the same time."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.data import Content, Made
from ncclcheck.probes.facts.data.content import Contest, Wrong
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    State,
    Where,
    fail,
    fine,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.data import examined
from ncclcheck.reports.subjects.data.opened import own_in_workers

_DATA = ("data",)
_ATOMIC = """temporary = f"{path}.{os.getpid()}.tmp"
torch.save(value, temporary)
os.replace(temporary, path)"""


@rule(
    "DAT004",
    "a sample's content does not depend on other workers",
    worst=State.FAIL,
    over="",
    ground=("DAT005",),
    commands=_DATA,
)
def races(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The same samples, read by one process alone and by several workers at once.

    ## Why it matters
    Workers that share an offset, a connection, shared memory or a scratch file give wrong samples, mostly without
    any error. Nobody sees it: the loss falls a little slower.

    ## Seen as
    slow, wrong results

    ## How we know
    All random generators are seeded by index before each read, so a sample has one content only, augmented or
    not. Workers that start together read the same samples in orders of their own; each part of a sample is
    compared with what one process alone gets. One difference is proof. No difference bounds the rate: fewer
    than three in so many reads. Parts that no seed controls are left out (DAT012), and so are those that
    depend on the order (DAT006). A race of threads within one worker shows when the same samples agree once
    each pool has one thread.

    ## Fix
    - **you** let each worker open, allocate and write its own; see DAT005 for what it shares.

    ## Source
    PyTorch, torch.utils.data, Multi-process data loading; mehta-lab/VisCy#417; fork(2).
    """
    for node, made, content in examined.samples(cluster):
        if content.raced:
            yield _threads(node, content)
        elif content.stress is None:
            yield _unseen(node, content)
        elif content.stress.wrong or _hangs(content, content.stress):
            yield _wrong(node, made, content, content.stress)
        elif not _settled(content):
            yield _unseen(node, content)
        else:
            yield fine(Where(node=node), _passed(content.stress), seen("seed", content.seed))


def _passed(stress: Contest) -> str:
    return (
        f"{stress.reads} reads by {stress.workers} workers at once gave what one alone gets: at this load fewer "
        f"than 1 in {max(1, stress.reads // 3)} is wrong"
    )


def _settled(content: Content) -> bool:
    return any(leaf.kind in ("fixed", "random", "private") and not leaf.reread for leaf in content.leaves)


def _hangs(content: Content, contest: Contest) -> bool:
    """Workers that died or hung though no sample does that to a lone reader."""
    alone = content.stuck is not None or any(unreadable.kind != "raised" for unreadable in content.unreadable)
    return bool(contest.stuck) and not alone


def _wrong(node: str, made: Made, content: Content, contest: Contest) -> Finding:
    first = contest.examples[0] if contest.examples else None
    return fail(
        Where(node=node, device=_leaf(first)),
        f"{contest.wrong} of {contest.reads} reads by {contest.workers} workers at once are wrong: {_told(first)}"
        if first
        else f"a worker gave no answer while {contest.workers} read at once, though each sample alone can be read",
        why="Training sees other samples than the dataset holds, and which ones changes from run to run.",
        owner="job",
        evidence=_evidence(contest),
        fix=own_in_workers(made, content),
    )


def _leaf(wrong: Wrong | None) -> str | None:
    return wrong.leaf or None if wrong else None


def _told(wrong: Wrong) -> str:
    if wrong.error:
        return f"sample {wrong.index} raised {wrong.error}"
    other = f" (that is sample {wrong.of_index})" if wrong.of_index is not None else ""
    leaf = f", part {wrong.leaf}," if wrong.leaf else ""
    return (
        f"sample {wrong.index}{leaf} is {wrong.got or 'empty'} in worker {wrong.worker}{other}; one process alone "
        f"gets {wrong.alone}"
    )


def _evidence(contest: Contest) -> list[Evidence]:
    all_evidence = [
        seen(f"worker {wrong.worker}, sample {wrong.index}", _told(wrong)) for wrong in contest.examples[:4]
    ]
    return all_evidence + [seen("worker that gave no answer", text[:1500]) for text in contest.stuck[:2]]


def _threads(node: str, content: Content) -> Finding:
    leaves = ", ".join(leaf or "the sample" for leaf in content.raced)
    example = next((leaf.example for leaf in content.leaves if leaf.leaf in content.raced and leaf.example), None)
    values = f"index {example.index}: {example.first} or {example.second}" if example else "they differ"
    return fail(
        Where(node=node),
        f"threads inside one worker disturb each other: {leaves} differs from read to read ({values})",
        why="Threads that write attributes of the dataset read what another one wrote.",
        owner="job",
        evidence=[
            seen("with one thread a pool", "the same in every try"),
            seen("threads started", content.threads),
        ],
        fix=[you("Hand values over as arguments and results, not through self.", "pool.map(load, paths)")],
    )


_KINDS = {
    "fixed": "always the same",
    "random": "random, by the global generators",
    "private": "random, by a generator of the dataset",
    "hidden": "depends on what was read before",
    "uncontrolled": "changes under the same seed",
}


def _unseen(node: str, content: Content) -> Finding:
    why = content.unseen[0] if content.unseen else "no part of a sample is the same twice for one index and seed"
    kinds = ", ".join(f"{leaf.leaf or 'the sample'}: {_KINDS[leaf.kind]}" for leaf in content.leaves[:6])
    return unknown(
        Where(node=node),
        f"whether workers disturb each other could not be seen: {why}",
        why="A sample that changes by itself cannot be distinguished from one that another worker changed.",
        owner="job",
        evidence=[seen("parts of a sample", kinds)],
    )


@rule("DAT008", "files created on first read are written atomically", worst=State.FAIL, commands=_DATA)
def first_touch(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Caches on disk that a dataset fills when a sample is read for the first time.

    ## Why it matters
    All workers and all ranks start at once and find the file missing or half written: one reads what another has
    not finished. The sample is wrong or fails, in the first epoch on a new machine only.

    ## Seen as
    wrong results

    ## How we know
    Before anything else is read, workers read the same samples in the same order from one start; what they got
    is compared with each other and with later reads of one process: a difference is a failure. A file that
    several workers read, and that was written meanwhile under that very name and without a lock, is a warning.
    Files that come by `os.replace` pass. A warm cache hides it: try with an empty cache folder.

    ## Fix
    - **you** write to a temporary name in the same folder, then `os.replace`; or fill the cache beforehand.

    ## Source
    rename(2); huggingface/lighteval#1102, ms-swift#10121, OLMo-core#651.
    """
    for node, made, content in examined.contents(cluster):
        touch, stress = content.first_touch, content.stress
        explained = stress is not None and bool(stress.wrong)
        if touch is not None and (touch.wrong and not explained):
            yield _half_written(node, content, touch)
        elif content.written and not made.locks and not explained:
            yield _in_place(node, content)
        elif touch is not None and not explained:
            yield fine(Where(node=node), f"{touch.reads} first reads by {touch.workers} workers at once agree")


def _half_written(node: str, content: Content, touch: Contest) -> Finding:
    files = [seen("written in place and read by others", written.path) for written in content.written[:3]]
    return fail(
        Where(node=node, device=_leaf(touch.examples[0])),
        f"{touch.wrong} of {touch.reads} first reads are wrong, later ones are not: {_told(touch.examples[0])}",
        why="A worker reads a file that another is still writing: wrong samples at the first start.",
        owner="job",
        evidence=[*_evidence(touch), *files],
        fix=[you("Write under a temporary name, then rename.", _ATOMIC)],
    )


def _in_place(node: str, content: Content) -> Finding:
    first = content.written[0]
    return warn(
        Where(node=node),
        f"{first.path} is written in place while {first.readers} workers read it, without a lock",
        why="A worker that comes a moment later reads half a file.",
        owner="job",
        evidence=[seen("files", ", ".join(written.path for written in content.written[:4]))],
        fix=[you("Write under a temporary name, then rename.", _ATOMIC)],
    )
