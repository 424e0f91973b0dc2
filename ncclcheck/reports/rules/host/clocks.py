"""Rule about the clocks of the nodes: torchrun compares them without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from statistics import median

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, admin, fail, fine, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.links.reached import positions, required
from ncclcheck.reports.text.words.fold import fold_names


@rule(
    "HST009",
    "the nodes' clocks agree",
    worst=State.FAIL,
    at_least=2,
    between_machines=True,
    gates_job="by any failure",
)
def clocks(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How far apart the nodes' clocks are.

    ## Why it matters
    torchrun's rendezvous compares the times that its agents write down. With one clock 20 s behind, each agent
    takes the others for dead and starts a world of ONE rank: every node trains alone and ends with exit code 0.
    With one ahead, the job hangs at its exit. Logs of different nodes cannot be put in order either.

    ## Seen as
    hangs, does not start, dies

    ## How we know
    Each node asks its peers for their time, seven times, and keeps the fastest exchange, as NTP does; half its
    round trip is the uncertainty. More than 5 s (HST009.fail_s) from the majority is a failure, more than 1 s
    (HST009.warn_s) a warning. Of two nodes nothing shows which one is right.

    ## Fix
    - **admin** start NTP on every node and set the clock once: `chronyc makestep`, or
      `timedatectl set-ntp true`.
    - **you** leave the node out until then.

    ## Source
    Measured with torch 2.13: 8 of 8 runs with a clock 20 or 90 s behind gave worlds of one rank; torch's
    dynamic_rendezvous.py (keep-alives); chronyc(1), timedatectl(1), adjtimex(2).
    """
    reached = required(cluster)
    limits = cluster.policy.thresholds
    warn_s, fail_s = limits.get("HST009.warn_s", 1.0), limits.get("HST009.fail_s", 5.0)
    clocks = positions(reached)
    if len(clocks) < 2:
        raise NothingToJudge("no two nodes could compare their clocks")
    groups = _groups(clocks, warn_s)
    apart = max(clocks.values()) - min(clocks.values())
    if len(groups) == 1:
        yield fine(Where(), f"the clocks of {len(clocks)} nodes agree within {apart * 1000:.3g} ms")
    elif 2 * len(groups[0]) <= len(clocks):
        yield _draw(clocks, groups, failed=apart > fail_s)
    else:
        right = median(clocks[node] for node in groups[0])
        for node in (node for group in groups[1:] for node in group):
            yield _wrong(node, clocks[node] - right, groups[0], fail_s)


def _told(seconds: float) -> str:
    """A time zone's hours are known by their number."""
    if seconds < 600:
        return f"{seconds:.3g} s"
    if seconds < 7199:
        return f"{seconds / 60:.3g} minutes"
    return f"{seconds / 3600:.3g} hours" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} days"


def _groups(clocks: Mapping[str, float], apart: float) -> list[list[str]]:
    """Nodes whose clocks agree, the largest group first."""
    ordered = sorted(clocks, key=lambda node: clocks[node])
    groups = [[ordered[0]]]
    for node in ordered[1:]:
        if clocks[node] - clocks[groups[-1][-1]] > apart:
            groups.append([])
        groups[-1].append(node)
    return sorted(groups, key=lambda group: -len(group))


def _wrong(node: str, off: float, majority: list[str], fail_s: float) -> Finding:
    direction = "ahead of" if off > 0 else "behind"
    level = fail if abs(off) > fail_s else warn
    return level(
        Where(node=node),
        f"its clock is {_told(abs(off))} {direction} the other {len(majority)} nodes",
        why=_why(abs(off) > fail_s),
        owner="node",
        evidence=[seen("time asked of the peers", f"{off:+.3f} s against {fold_names(majority)}")],
        fix=_fix(node),
    )


def _draw(clocks: Mapping[str, float], groups: list[list[str]], *, failed: bool) -> Finding:
    base = clocks[groups[0][0]]
    shown = "; ".join(
        f"{fold_names(group)} {'-' if clocks[group[0]] < base else '+'}{_told(abs(clocks[group[0]] - base))}"
        for group in groups[:4]
    )
    apart = max(clocks.values()) - min(clocks.values())
    level = fail if failed else warn
    ahead = max(clocks, key=lambda node: clocks[node])
    behind = min(clocks, key=lambda node: clocks[node])
    return level(
        Where(node=ahead, peer=behind),
        f"the clock of {ahead} is {_told(apart)} ahead of that of {behind}; no majority says which one is right",
        why=_why(failed),
        owner="site",
        evidence=[seen("time asked of the peers", shown)],
        fix=[
            you("See which one is right.", f"for n in {ahead} {behind}; do ssh $n date -u; done; date -u"),
            *_fix(ahead),
        ],
    )


def _why(failed: bool) -> str:
    if failed:
        return "torchrun's agents take each other for dead: each starts a world of one rank and says nothing."
    return "Near 5 s torchrun's rendezvous breaks silently, and logs of different nodes cannot be compared."


def _fix(node: str) -> list[Remedy]:
    return [
        admin(
            "Set the clock once and keep it right. What reads the time there sees the step: a job that runs, or a "
            "database.",
            f"systemctl enable --now chronyd || systemctl enable --now chrony   # on {node}",
            f"chronyc makestep   # on {node}",
            f"chronyc tracking   # on {node}",
        ),
        you("Leave the node out until then.", f"#SBATCH --exclude={quote(node)}"),
    ]
