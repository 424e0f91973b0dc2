"""Rule about one working directory for all nodes, as files prove it that each node makes for the others."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Unread, at, value_or
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
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nodes.agree.together import DirectoryGroups, groups
from ncclcheck.reports.text.words.fold import fold_names

_WHY = "The script, its data or a part of a checkpoint may exist on one node and not on the other."
_MOST_GROUPS = 8  # of nodes with one directory each: chosen, beyond 8 each node has its own and a few show it


@rule(
    "STO006",
    "the working directory is the same directory on all nodes",
    worst=State.FAIL,
    at_least=2,
    between_machines=True,
)
def same_place(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether a file that one node makes in the working directory is there on the other nodes.

    ## Why it matters
    Ranks take for granted that they stand in one directory: one writes a checkpoint and all read it, or each
    writes its part of one. Where a mount is missing, an empty or old directory of the same path stands in its
    place: that node runs an old script, misses its data, or keeps its part of the checkpoint where nobody looks.

    ## How we know
    Each node makes an empty file of a random name (`.ncclcheck-...`). When all have done so, each looks for those
    of the others, up to a second long; in more than 64 nodes, for those of some. The files are removed at once,
    also where ncclcheck is killed, unless all processes of a node are killed together.
    A node that does not see what most see is a failure where they have a network file system and it has a local
    one, else a warning. A directory of its own for every node is a warning; a note in containers, where the same
    path is a part of the image. Where no file can be made nothing is known.

    ## Fix
    - **you** start the job in a directory of the shared file system (`cd` there, `#SBATCH --chdir=`); leave the
      node out until its mount is back; in pods, write checkpoints to a volume that all of them mount.
    - **admin** mount on the node what the others have, and let the job system's prolog check the mount.

    ## Source
    mount(8), nfs(5) (close-to-open consistency, lookupcache), open(2) (O_EXCL), sbatch(1); PyTorch documentation,
    Distributed checkpoint.
    """
    grouping = groups(cluster)
    if not grouping.marks and not grouping.unread:
        raise NothingToJudge("the nodes did not look for each other's files")
    yield from (_unread(node, fact) for node, fact in grouping.unread.items() if fact.kind != "absent")  # STO007
    yield from _not_writable(grouping)
    yield from _late(grouping)
    if (
        grouping.unread
        and not grouping.together
        and all(fact.kind == "absent" for fact in grouping.unread.values())
    ):
        raise NothingToJudge("its ground failed: STO007")
    boxed = all(value_or(at(node, "container.runtimes"), []) for node in cluster.nodes)
    for run in grouping.apart:
        if len(run.together) == 1:
            yield _one_place(run)
        elif run.main:
            yield from _odd(run)
        else:
            yield _many_places(run, boxed=boxed)


def _unread(node: str, fact: Unread) -> Finding:
    return not_read(
        Where(node=node), "a file in the working directory", fact,
        "it was not seen whether other nodes have its working directory", fix=[_remedy(fact)],
    )  # fmt: skip


def _remedy(fact: Unread) -> Remedy:
    if "Permission denied" in fact.why:
        return you("Start the job in a directory that your user may write to.", "ls -ld .", "id")
    return admin("Look at why this file system does not answer.", "findmnt -T .")


def _not_writable(grouping: DirectoryGroups) -> Iterator[Finding]:
    """Where a node made no file, and none that others made was looked for there."""
    for node, marks in grouping.marks.items():
        if isinstance(marks.written_s, Unread) and node not in grouping.known:
            yield _unread(node, marks.written_s)


def _late(grouping: DirectoryGroups) -> Iterator[Finding]:
    """One of two nodes saw the other's file, so that it is there: the other way it was only late."""
    for node in sorted({a for a, _ in grouping.late}):
        peers = [b for a, b in grouping.late if a == node]
        yield note(
            Where(node=node),
            f"files that {fold_names(peers)} made in {grouping.path(node)} were not seen here within a second",
            why="What another rank has just written may be seen late here: attributes of files are cached.",
            evidence=[seen(grouping.path(node), grouping.mounted(node))],
            fix=[admin("See which times the mount has.", "findmnt -T . -o OPTIONS")],
        )


def _one_place(grouping: DirectoryGroups) -> Finding:
    nodes = grouping.together[0]
    paths = sorted({grouping.path(node) for node in nodes} - {""})
    took = [m.written_s for m in grouping.marks.values() if not isinstance(m.written_s, Unread)]
    slowest = f"made within {max(took) * 1e3:.3g} ms" if took else "seen"
    what = f"{' and '.join(paths[:3])} is one directory on {len(nodes)} nodes"
    return fine(Where(), what, seen("a file of each node", slowest))


def _odd(grouping: DirectoryGroups) -> Iterator[Finding]:
    """Every node that does not see what the main group sees."""
    theirs, most, evidence = grouping.path(grouping.main[0]), fold_names(grouping.main), _evidence(grouping)
    for node in (node for group in grouping.together if group is not grouping.main for node in group):
        path = grouping.path(node)
        other = f" ({theirs} there)" if theirs and path and theirs != path else ""
        level = fail if grouping.is_local(node) and grouping.on_network(grouping.main) else warn
        yield level(
            Where(node=node),
            f"its working directory {path or '.'} on {grouping.mounted(node)} is not the one of {most}{other}",
            why=_WHY,
            owner="node",
            evidence=evidence,
            fix=[
                you("Leave the node out until then, or start the job where all nodes see the same.",
                    "findmnt -T .", "#SBATCH --exclude=NODE"),
                admin("Mount what the others have.", "mount -a", f"findmnt -T {quote(theirs or '.')}"),
            ],
        )  # fmt: skip


def _many_places(grouping: DirectoryGroups, *, boxed: bool) -> Finding:
    nodes = [node for group in grouping.together for node in group]
    alone = len(nodes) == len(grouping.together)
    shown = f"each of {fold_names(nodes)} has a working directory of its own"
    parts = "; ".join(fold_names(group) for group in grouping.together)
    what = shown if alone else f"the working directory differs, and no group of nodes is the largest: {parts}"
    if len({grouping.path(group[0]) for group in grouping.together} - {""}) > 1:
        return _elsewhere(grouping)
    if alone and boxed and not grouping.on_network(nodes):
        return note(Where(), f"{shown}, as part of its container", why=_WHY, evidence=_evidence(grouping))
    return warn(
        Where(),
        what,
        why=_WHY,
        owner="job",
        evidence=_evidence(grouping),
        fix=[
            you("Start the job in a directory that all nodes mount, or write checkpoints to one.", "findmnt -T ."),
            admin("Give all nodes one file system for jobs."),
        ],
    )


def _elsewhere(grouping: DirectoryGroups) -> Finding:
    """Paths that differ are no image's: somebody typed the command, or a launcher went, elsewhere."""
    groups_at = [(group, grouping.path(group[0]) or "unknown") for group in grouping.together[:_MOST_GROUPS]]
    return warn(
        Where(),
        "the command was started in different directories: "
        + "; ".join(f"{path} on {fold_names(group)}" for group, path in groups_at),
        why=_WHY,
        owner="job",
        evidence=_evidence(grouping),
        fix=[you("Start it in the same directory on every node.", f"cd {quote(groups_at[0][1])}")],
    )


def _evidence(grouping: DirectoryGroups) -> list[Evidence]:
    """What is mounted there, group by group."""
    shown = grouping.together[:_MOST_GROUPS]
    return [
        seen(f"files of {fold_names(group)}", f"seen by {fold_names(group)} only; on {grouping.mounted(group[0])}")
        for group in shown
    ]
