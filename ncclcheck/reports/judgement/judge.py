"""Rules over a Cluster -> Verdicts. What is unread becomes `unknown`, what raises becomes one visible line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ncclcheck.probes.facts import NOT_RECORDED, Cluster, Crash, Node, NotKnown, Unread, at, replace
from ncclcheck.reports.judgement.findings import (
    OLDER,
    Finding,
    State,
    UnreadFact,
    Verdict,
    Where,
    admin,
    fail,
    not_read,
    seen,
    unknown,
    worst,
)
from ncclcheck.reports.judgement.rule import OWN_FAMILIES, NothingToJudge, Rule, all_rules
from ncclcheck.reports.subjects.nodes.fixes import doing_without, one_voice, set_in

# Families that no command judges but their own; preflight judges a script that it was given.
_OF_ONE_ALONE = ("hang", "box", "script")
_UNSEEN = {"denied", "no_tool", "recorded", "timed_out", "broken"}


@dataclass
class _JudgedCluster:
    """The cluster before the judge, and what has been found so far."""

    cluster: Cluster
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    crashes: list[Crash] = field(default_factory=list)
    _gaps: dict[str, dict[str, Unread]] = field(default_factory=dict)

    def gaps(self, needs: tuple[str, ...]) -> dict[str, tuple[str, Unread]]:
        """For each node that lacks one of these facts the first that it lacks."""
        return {name: (need, fact) for need in reversed(needs) for name, fact in self._gaps_at(need).items()}

    def _gaps_at(self, path: str) -> dict[str, Unread]:
        """Looked at once: many rules need the same facts, and nodes may be thousands."""
        if path not in self._gaps:
            facts = [(node.name, at(node, path)) for node in self.cluster.nodes]
            self._gaps[path] = {name: fact for name, fact in facts if type(fact) is Unread}
        return self._gaps[path]


@dataclass
class _Subjects:
    """The cluster as a rule's body may see it, and what was taken out of it."""

    cluster: Cluster
    count: int = 0
    unseen: list[Finding] = field(default_factory=list)
    absent: str = ""
    grounded: str = ""


def judge(cluster: Cluster, rules: Iterable[Rule] | None = None) -> list[Verdict]:
    """One verdict a rule, sorted by code. Never raises for what a rule does."""
    case = _JudgedCluster(cluster)
    for rule in sorted(_of(cluster) if rules is None else rules, key=lambda r: (r.last, bool(r.ground), r.code)):
        case.verdicts[rule.code] = _judge_one(rule, case)
    fitted = [doing_without.fitted(cluster, verdict) for _, verdict in sorted(case.verdicts.items())]
    verdicts = [set_in.fitted(cluster, verdict) for verdict in fitted]
    return one_voice.fitted([_required(cluster, verdict) for verdict in verdicts])


def _of(cluster: Cluster) -> list[Rule]:
    """Of logs, a script and a job that hangs nothing else is judged: no node is there to require anything of."""
    own = OWN_FAMILIES.get(cluster.command)
    others = {*_OF_ONE_ALONE} - ({"script"} if cluster.measurements.script is not None else set())
    return [rule for rule in all_rules() if (rule.code.startswith(own) if own else rule.family not in others)]


def _covers(cluster: Cluster) -> set[str]:
    """The commands whose rules are judged: preflight runs the others' parts."""
    if cluster.command == "tune":
        return {"tune", "bench"}
    if cluster.command != "preflight":
        return {cluster.command}
    read = cluster.measurements
    return {"preflight", "bench", "smoke", *(["data"] if read.data else []), *(["script"] if read.script else [])}


def _judge_one(rule: Rule, case: _JudgedCluster) -> Verdict:
    if rule.commands and not _covers(case.cluster) & {*rule.commands}:
        return _verdict(rule, [], f"judged by {' and '.join(rule.commands)} only")
    if rule.between_machines and case.cluster.job.simulated:
        return _verdict(rule, [], "simulated nodes are one machine")
    subjects = _select(rule, case)
    if subjects.count < rule.at_least:
        return _verdict(rule, subjects.unseen, _too_few(rule, subjects))
    try:
        findings = [*subjects.unseen, *rule.body(subjects.cluster)]
    except NothingToJudge as nothing:
        return _verdict(rule, subjects.unseen, str(nothing))
    except NotKnown as missing:
        return _verdict(rule, [*subjects.unseen, _unseen(Where(), rule.code, missing.unread)], None)
    except Exception as error:
        case.crashes.append(Crash(code=rule.code, error=f"{type(error).__name__}: {error}"))
        return _verdict(rule, [*subjects.unseen, _crashed(rule, error)], None)
    return _verdict(rule, findings, None, passed=True)


def _verdict(rule: Rule, findings: list[Finding], reason: str | None, *, passed: bool = False) -> Verdict:
    findings = _with_older_said_once(findings)
    states = [finding.state for finding in findings]
    state = worst([*states, State.OK] if passed else states)
    return Verdict(
        code=rule.code,
        title=rule.title,
        state=state,
        reason=reason if state is State.SKIPPED else None,
        url=f"docs/checks/{rule.code}.md",
        findings=sorted(findings, key=lambda f: f.state.rank),
    )


def _with_older_said_once(findings: list[Finding]) -> list[Finding]:
    """Facts that the document lacks, for its ncclcheck did not read them: once a node, in the same words."""
    lacking = {f.where.node: None for f in findings if _is_of_older(f)}
    kept = [f for f in findings if not _is_of_older(f)] if lacking else findings
    return [*kept, *map(_older, lacking)]


def _older(node: str | None) -> Finding:
    finding = unknown(Where(node=node), OLDER, why=_WHY_OLDER, fix=[_RUN_THIS])
    return replace(finding, unread=UnreadFact(path="", kind=NOT_RECORDED.kind, reason=NOT_RECORDED.why))


def _is_of_older(finding: Finding) -> bool:
    return isinstance(finding.unread, UnreadFact) and finding.unread.reason == NOT_RECORDED.why


def _too_few(rule: Rule, subjects: _Subjects) -> str:
    if subjects.grounded:
        return f"its ground failed: {subjects.grounded}"
    if subjects.absent:
        return subjects.absent
    if rule.at_least > 1 and subjects.count:
        return f"needs {rule.at_least} {_noun(rule)}, has {subjects.count}"
    return f"no {_noun(rule)} to judge"


def _noun(rule: Rule) -> str:
    return rule.over.rsplit(".", 1)[-1]


def _select(rule: Rule, case: _JudgedCluster) -> _Subjects:
    """Take out of the cluster what the rule may not judge, and count what is left."""
    cluster = replace(case.cluster, crashes=case.crashes) if rule.last else case.cluster
    if not rule.over.startswith("nodes"):
        return _Subjects(cluster, len(at(cluster, rule.over)) if rule.over else 1)
    subjects = _Subjects(cluster)
    fallen, gaps = _fallen(rule, case.verdicts), case.gaps(rule.node_needs)
    kept: list[Node] = []
    for node in cluster.nodes:
        if node.name in fallen or None in fallen:
            subjects.grounded = fallen.get(node.name) or fallen[None]
        elif node.name in gaps:
            _leave_out(subjects, Where(node=node.name), *gaps[node.name])
        else:
            kept.append(_with_known_items(rule, node, subjects) if rule.below else node)
    subjects.cluster = replace(cluster, nodes=kept)
    if not rule.below:
        subjects.count = len(kept)
    return subjects


def _fallen(rule: Rule, before: dict[str, Verdict]) -> dict[str | None, str]:
    """Nodes on which a ground of this rule failed, with the code."""
    verdicts = [before[code] for code in rule.ground if code in before]
    return {f.where.node: v.code for v in verdicts for f in v.findings if f.state is State.FAIL}


def _with_known_items(rule: Rule, node: Node, subjects: _Subjects) -> Node:
    """The node without those of its listed subjects that cannot be judged."""
    listed = at(node, rule.below)
    items = [item for item in listed if _is_known(rule, node, item, subjects)]
    subjects.count += len(items)
    return node if len(items) == len(listed) else _with_list(node, rule.below.split("."), items)


def _is_known(rule: Rule, node: Node, item: object, subjects: _Subjects) -> bool:
    for need in rule.item_needs:
        fact = at(item, need) if "." in need else getattr(item, need)
        if type(fact) is Unread:
            where = Where(node=node.name, device=getattr(item, "name", None))
            _leave_out(subjects, where, need, fact)
            return False
    return True


def _leave_out(subjects: _Subjects, where: Where, need: str, fact: Unread) -> None:
    if fact.kind in _UNSEEN:
        subjects.unseen.append(_unseen(where, need, fact))
    else:
        subjects.absent = fact.why


def _with_list(subject: Node, path: list[str], items: list[object]) -> Node:
    if len(path) == 1:
        return replace(subject, **{path[0]: items})
    return replace(subject, **{path[0]: _with_list(getattr(subject, path[0]), path[1:], items)})


_WHY_OLDER = "This ncclcheck judges what the one that wrote the document did not read."
_RUN_THIS = admin("Run this ncclcheck on the nodes, to have it judged.")
_HELP = {
    "denied": "Run it as a user who may read this, to have it judged.",
    "no_tool": "Install what is missing on that node, to have it judged.",
    "recorded": "Read the live machine, or record this too, to have it judged.",
    "timed_out": "Look at why this does not answer on that node.",
    "broken": "Look at what stands there; if it is right, report it with the file of --save.",
}


def _unseen(where: Where, need: str, fact: Unread) -> Finding:
    return not_read(where, need, fact, fix=[admin(_HELP.get(fact.kind, _HELP["broken"]))])


def _crashed(rule: Rule, error: Exception) -> Finding:
    return unknown(
        Where(),
        f"{rule.code} could not be judged: {type(error).__name__}: {error}",
        owner="tool",
        why="A defect of ncclcheck, not of the cluster.",
        evidence=[seen(rule.code, repr(error))],
        fix=[admin("Report it with the file of --save; the run stays unfinished (exit 3) until it is fixed.")],
    )


def _required(cluster: Cluster, verdict: Verdict) -> Verdict:
    """`--require CODE`: absence and `unknown` of this rule are failures."""
    asked = any(r.count is None and r.what == verdict.code for r in cluster.policy.require)
    if not asked or verdict.state not in (State.SKIPPED, State.UNKNOWN):
        return verdict
    why = verdict.reason or "; ".join(f.what for f in verdict.findings)
    finding = fail(
        Where(),
        f"{verdict.code} is required and was not judged: {why}",
        owner="site",
        why="The site requires proof of this: absent and unknown count as failed.",
        evidence=[seen("--require", verdict.code)],
        fix=[admin("Make it visible on every node, or take it out of the requirements.")],
    )
    return replace(verdict, state=State.FAIL, reason=None, findings=[finding, *verdict.findings])
