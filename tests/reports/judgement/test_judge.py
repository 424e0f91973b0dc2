"""The judge, with rules made for the test: what is unread is unknown, what raises is one line, nothing hides."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from ncclcheck.base.exits import of_outcome
from ncclcheck.probes.facts import NOT_RECORDED, Cluster, Host, Job, Node, Policy, Requirement, Unread, at, replace
from ncclcheck.reports.judgement import decision
from ncclcheck.reports.judgement.derived import derived
from ncclcheck.reports.judgement.findings import OLDER, Finding, State, Where, fail, seen, you
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import NothingToJudge, Rule, all_rules
from ncclcheck.reports.text.groups import blocks
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options


def _rule(code: str, body: object, **changes: object) -> Rule:
    given: dict[str, object] = {
        "title": "all is well", "worst": State.FAIL, "over": "nodes", "needs": (), "at_least": 1, "ground": (),
        "between_machines": False, "commands": (), "last": False, **changes,
    }  # fmt: skip
    return Rule(code=code, body=body, **given)  # type: ignore[arg-type]


def _bad(cluster: Cluster) -> Iterator[Finding]:
    for node in cluster.nodes:
        if at(node, "host.cores") == 0:
            yield fail(
                Where(node=node.name),
                "bad",
                why="because",
                owner="node",
                evidence=[seen("x", 1)],
                fix=[you("mend")],
            )


def _node(name: str, cores: object = 4) -> Node:
    return Node(name=name, host=Host(cores=cores))  # type: ignore[arg-type]


UNREAD = {kind: Unread(kind, "why") for kind in ("absent", "denied", "no_tool", "recorded", "timed_out", "broken")}


def _state(cluster: Cluster, *rules: Rule) -> State:
    return judge(cluster, rules)[0].state


def test_ok_fail_and_skipped() -> None:
    rule = _rule("NET001", _bad, needs=("host.cores",))
    assert _state(Cluster(nodes=[_node("a")]), rule) is State.OK
    assert _state(Cluster(nodes=[_node("a"), _node("b", 0)]), rule) is State.FAIL
    assert _state(Cluster(), rule) is State.SKIPPED


@pytest.mark.parametrize("kind", UNREAD)
def test_an_unread_fact_is_never_ok(kind: str) -> None:
    rule = _rule("NET001", _bad, needs=("host.cores",))
    expected = State.SKIPPED if kind == "absent" else State.UNKNOWN
    assert _state(Cluster(nodes=[_node("a", UNREAD[kind])]), rule) is expected
    verdict = judge(Cluster(nodes=[_node("a", UNREAD[kind]), _node("b")]), [rule])[0]
    assert verdict.state is (State.OK if kind == "absent" else State.UNKNOWN)


def test_a_whole_unread_subject_is_unknown() -> None:
    rule = _rule("NET001", _bad, needs=("host.cores",))
    assert _state(Cluster(nodes=[Node(name="a", host=UNREAD["timed_out"])]), rule) is State.UNKNOWN


def test_a_rule_that_raises_is_one_unknown_line_and_run004() -> None:
    def raises(_: Cluster) -> Iterator[Finding]:
        raise KeyError("oops")
        yield

    run004 = next(rule for rule in all_rules() if rule.code == "RUN004")
    verdicts = {v.code: v for v in judge(Cluster(nodes=[_node("a")]), [_rule("NET001", raises), run004])}
    assert verdicts["NET001"].state is State.UNKNOWN
    assert "KeyError" in verdicts["NET001"].findings[0].what
    assert verdicts["RUN004"].state is State.UNKNOWN
    outcome = decision.outcome(list(verdicts.values()))
    assert (outcome, of_outcome(outcome, strict=False)) == ("incomplete", 3)


def test_nothing_to_judge_is_skipped_with_its_reason() -> None:
    def nothing(_: Cluster) -> Iterator[Finding]:
        raise NothingToJudge("no such thing")
        yield

    verdict = judge(Cluster(nodes=[_node("a")]), [_rule("NET001", nothing)])[0]
    assert (verdict.state, verdict.reason) == (State.SKIPPED, "no such thing")


def test_ground_and_counts() -> None:
    ground = _rule("NET001", _bad, needs=("host.cores",))
    above = _rule("NET002", lambda _: iter(()), ground=("NET001",))
    verdicts = judge(Cluster(nodes=[_node("a", 0)]), [above, ground])
    assert verdicts[1].state is State.SKIPPED
    assert "NET001" in (verdicts[1].reason or "")
    assert judge(Cluster(nodes=[_node("a", 0), _node("b")]), [above, ground])[1].state is State.OK
    two = _rule("NET003", lambda _: iter(()), at_least=2)
    assert _state(Cluster(nodes=[_node("a")]), two) is State.SKIPPED


def test_the_first_fact_that_a_node_lacks_is_told_in_the_order_of_the_nodes() -> None:
    rule = _rule("NET001", _bad, needs=("host.cores", "host.memory"))
    lacking = Node(name="a", host=Host(cores=4, memory=UNREAD["denied"]))
    nodes = [lacking, _node("b", UNREAD["denied"]), Node(name="c", host=UNREAD["broken"])]
    verdict = judge(Cluster(nodes=nodes), [rule])[0]
    assert [(f.where.node, f.what.split()[0]) for f in verdict.findings] == [
        ("a", "host.memory"), ("b", "host.cores"), ("c", "host.cores")
    ]  # fmt: skip


def test_what_is_derived_stays_with_its_node_alone() -> None:
    asked: list[str] = []

    @derived
    def cores(node: Node) -> object:
        asked.append(node.name)
        return at(node, "host.cores")

    node = _node("a", 4)
    changed = replace(node, host=Host(cores=8))
    assert [cores(node), cores(node), cores(changed), cores(changed)] == [4, 4, 8, 8]
    assert asked == ["a", "a"]
    assert msgspec.json.decode(msgspec.json.encode(node), type=Node) == node == _node("a", 4)


def test_simulated_nodes_do_not_stand_for_machines() -> None:
    rule = _rule("NET003", lambda _: iter(()), between_machines=True)
    assert _state(Cluster(nodes=[_node("a")], job=Job(simulated=True)), rule) is State.SKIPPED


def test_required_absence_fails() -> None:
    policy = Policy(require=[Requirement(what="NET001")])
    rule = _rule("NET001", _bad, needs=("host.cores",))
    assert _state(Cluster(nodes=[_node("a", UNREAD["absent"])], policy=policy), rule) is State.FAIL
    assert _state(Cluster(nodes=[_node("a")], policy=policy), rule) is State.OK


def test_ignored_is_a_note_that_stays() -> None:
    verdicts = judge(Cluster(nodes=[_node("a", 0)]), [_rule("NET001", _bad)])
    ignored = decision.select(verdicts, (), ("NET",))
    assert ignored[0].state is State.NOTE
    assert "was FAIL" in ignored[0].findings[0].what
    assert decision.outcome(ignored) == "ok"


@pytest.mark.parametrize(
    ("outcome", "code", "strict"),
    [("fail", 1, 1), ("incomplete", 3, 1), ("warn", 0, 1), ("unknown", 0, 1), ("ok", 0, 0)],
)
def test_exit_codes(outcome: str, code: int, strict: int) -> None:
    assert of_outcome(outcome, strict=False) == code
    assert of_outcome(outcome, strict=True) == strict


def test_a_fail_without_remedy_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="remedy"):
        fail(Where(), "x", why="y", owner="node", evidence=[seen("a", 1)], fix=[])


@pytest.mark.parametrize("command", ["env", "bench"])
def test_every_rule_on_an_empty_cluster_says_nothing_bad(command: str) -> None:
    for verdict in judge(Cluster(command=command)):
        assert verdict.state in (State.SKIPPED, State.OK), verdict
        assert verdict.state is State.SKIPPED or verdict.code == "RUN004", verdict


@pytest.mark.parametrize("command", ["env", "bench"])
def test_every_rule_on_unread_nodes_claims_nothing(command: str) -> None:
    nodes = [Node(name="a"), Node(name="b")]
    for verdict in judge(Cluster(command=command, nodes=nodes, job=Job(nodes_asked=2, nodes_answered=2))):
        if not verdict.code.startswith("RUN"):
            assert verdict.state in (State.SKIPPED, State.UNKNOWN), verdict


def test_what_an_older_document_lacks_is_said_once_a_node_and_in_the_same_words() -> None:
    """Whichever fact it is, of whichever device: a report folds all of it into one block."""
    older = [replace(_node(name), gpus=NOT_RECORDED, host=NOT_RECORDED) for name in ("n1", "n2")]
    rules = [_rule(f"HST99{i}", _bad, needs=(need,)) for i, need in enumerate(("host.cores", "gpus.cards"))]
    for verdict in judge(Cluster(nodes=older, job=Job(launcher="local", nodes_asked=2)), rules):
        assert [(f.where.node, f.what) for f in verdict.findings] == [("n1", OLDER), ("n2", OLDER)]
        assert verdict.state is State.UNKNOWN
    story = finish.Story(started="2026-01-01T00:00:00+00:00", seconds=1.0)
    document = finish.make(
        Cluster(nodes=older, job=Job(launcher="local", nodes_asked=2)), Options(command="env"), story
    )
    lacking = [block for block in blocks(document, [State.UNKNOWN]) if block.places[0].what == OLDER]
    (both,) = [block for block in lacking if block.places[0].where == "n[1-2]"]
    assert len(both.codes) > 1
