"""Rules about tcp://, file:// and what starts the ranks: raised, not raised, and not judged."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ncclcheck.probes.facts import FileInit, InitSeen, Job, Measurements, Node, TcpInit
from ncclcheck.probes.facts.data.resources import Pickled
from ncclcheck.probes.facts.run.init import host_and_port
from ncclcheck.reports.judgement.findings import Verdict
from tests.helpers import clusters
from tests.helpers.clusters import LO, nic, node, states_of

CODES = ("INI001", "INI002", "INI003", "INI004", "INI005", "INI006", "INI007", "INI008")
NODES = [node("a", LO, nic("eth0", "10.1.0.1/24")), node("b", LO, nic("eth0", "10.1.0.2/24"))]
URL, PATH = "tcp://10.1.0.1:23456", "file:///shared/init"


def verdict(code: str, *nodes: Node, **facts: Any) -> Verdict:
    """Of `smoke`, which has all of these rules."""
    return clusters.verdict(code, *nodes, command="smoke", **facts)


def _tcp(
    code: str,
    lead: dict[str, Any],
    other: dict[str, Any],
    url: str = URL,
    *,
    more: InitSeen | None = None,
    **job: Any,
) -> Verdict:
    """Node a has rank 0; both are well but for what is given. more: a third node."""
    host, port = host_and_port(url.removeprefix("tcp://"))
    well = {"host": host, "port": port, "addresses": ["10.1.0.1"], "connect": "ok"}
    seen = [
        InitSeen(node="b", tcp=TcpInit(**{**well, **other})),
        InitSeen(node="a", tcp=TcpInit(**{**well, "hosts": True, "own": True, "listened": "ok", **lead})),
    ]
    given = {"start": "spawn", "init_method": url, "nodes_asked": 2, **job}
    return verdict(
        code, *NODES, job=Job(**given), measurements=Measurements(init=[*seen, *([more] if more else [])])
    )


def _file(code: str, lead: dict[str, Any], other: dict[str, Any]) -> Verdict:
    well = {"path": PATH.removeprefix("file://"), "filesystem": "nfs4", "sees": ["a", "b"]}
    seen = [InitSeen(node=name, file=FileInit(**{**well, **of})) for name, of in (("a", lead), ("b", other))]
    job = Job(start="spawn", init_method=PATH, nodes_asked=2)
    return verdict(code, *NODES, job=job, measurements=Measurements(init=seen))


def _commands(judged: Verdict) -> str:
    return "\n".join(line for finding in judged.findings for fix in finding.remedies for line in fix.commands)


def _said(judged: Verdict) -> str:
    return "\n".join(finding.what for finding in judged.findings)


@pytest.mark.parametrize(
    ("init", "field"),
    [
        ({"tcp": {"host": "", "port": 4000}}, "tcp.host"),
        ({"tcp": {"host": "a b", "port": 4000}}, "tcp.host"),
        ({"tcp": {"host": "a", "port": 0}}, "tcp.port"),
        ({"tcp": {"host": "a", "port": 70000}}, "tcp.port"),
        ({"tcp": {"host": "a", "port": ""}}, "tcp.port"),
        ({"tcp": {"port": 4000}}, "tcp"),
        ({"file": {"path": "shared/init"}}, "file.path"),
        ({"file": {"path": "/"}}, "file.path"),
    ],
)
def test_a_saved_place_that_is_none_is_refused_by_its_field(init: dict[str, Any], field: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert({"init": [{"node": "a", **init}]}, Measurements)
    assert f"$.init[0].{field}" in str(refused.value)


def test_a_saved_loopback_without_addresses_is_judged() -> None:
    judged = _tcp("INI001", {}, {"addresses": [], "own": True, "loopback": True}, "tcp://head:4000")
    assert states_of(judged) == [("fail", "b")]


@pytest.mark.parametrize("code", CODES)
def test_nothing_is_judged_without_an_init_method(code: str) -> None:
    assert verdict(code, *NODES).state.value == "skipped"


@pytest.mark.parametrize("code", ["INI001", "INI002", "INI003"])
def test_nothing_is_judged_of_tcp_where_a_file_is_used(code: str) -> None:
    assert _file(code, {}, {}).state.value == "skipped"


@pytest.mark.parametrize("code", ["INI004", "INI005", "INI006"])
def test_nothing_is_judged_of_a_file_where_tcp_is_used(code: str) -> None:
    assert _tcp(code, {}, {}).state.value == "skipped"


@pytest.mark.parametrize("code", ["INI001", "INI002", "INI003", "INI007"])
def test_a_sound_tcp(code: str) -> None:
    assert _tcp(code, {}, {}).state.value == "ok"


@pytest.mark.parametrize("code", ["INI004", "INI005", "INI006", "INI007"])
def test_a_sound_file(code: str) -> None:
    assert _file(code, {}, {}).state.value == "ok"


@pytest.mark.parametrize("url", ["tcp://localhost:23456", "tcp://127.0.0.1:23456", "tcp://[::1]:23456"])
def test_loopback_leads_another_node_to_itself(url: str) -> None:
    loopback = {"addresses": ["127.0.0.1"], "own": True, "loopback": True}
    judged = _tcp("INI001", loopback, {**loopback, "connect": "refused"}, url)
    assert states_of(judged) == [("fail", "b")]
    assert "b itself (127.0.0.1), and rank 0 runs on a" in _said(judged)
    assert "tcp://10.1.0.1:23456" in _commands(judged)


def test_loopback_on_simulated_nodes_is_one_machine() -> None:
    loopback = {"addresses": ["127.0.0.1"], "own": True, "loopback": True}
    for code in ("INI001", "INI003"):
        assert _tcp(code, loopback, loopback, "tcp://localhost:4000", simulated=True).state.value == "ok"


def test_an_address_of_the_other_node() -> None:
    at = {"addresses": ["10.1.0.2"]}
    judged = _tcp(
        "INI001", {**at, "own": False, "connect": "refused"}, {**at, "own": True}, "tcp://10.1.0.2:23456"
    )
    assert sorted(states_of(judged)) == [("fail", "a"), ("fail", "b")]
    assert "is no address of a, where rank 0 runs" in _said(judged)
    assert "10.1.0.2 is an address of b, and rank 0 runs on a" in _said(judged)


def test_an_address_of_nobody_that_leads_to_rank_0_is_fine() -> None:
    """NAT, or a Service of Kubernetes."""
    at = {"addresses": ["192.0.2.9"]}
    assert _tcp("INI001", {**at, "own": False, "connect": "ok"}, at, "tcp://192.0.2.9:4000").state.value == "ok"
    assert _tcp("INI001", {**at, "own": False, "connect": "timed_out"}, at).state.value == "fail"


def test_a_name_that_does_not_resolve() -> None:
    judged = _tcp("INI001", {}, {"addresses": [], "unresolved": "Name or service not known"}, "tcp://head:4000")
    assert states_of(judged) == [("fail", "b")]
    assert "getent hosts head" in _commands(judged)


@pytest.mark.parametrize(
    ("listened", "words"),
    [("in use", "is in use on a"), ("denied", "may not open"), ("failed", "cannot be opened")],
)
def test_a_port_that_cannot_be_opened(listened: str, words: str) -> None:
    judged = _tcp("INI002", {"listened": listened, "detail": "python, pid 4711"}, {})
    assert states_of(judged) == [("fail", "a")]
    assert words in _said(judged)
    assert "tcp://10.1.0.1:23467" in _commands(judged)
    assert ("sport = :23456" in _commands(judged)) is (listened == "in use")


@pytest.mark.parametrize("number", [443, 40000, 65535])
def test_the_other_port_is_one_that_a_user_may_open(number: int) -> None:
    judged = _tcp("INI002", {"listened": "in use", "detail": "?"}, {}, f"tcp://10.1.0.1:{number}")
    assert "tcp://10.1.0.1:23456" in _commands(judged)


def test_a_node_of_rank_0_that_said_nothing_is_not_judged() -> None:
    assert _tcp("INI002", {"listened": ""}, {}).state.value == "skipped"
    assert _tcp("INI003", {"listened": ""}, {"connect": "refused"}).state.value == "skipped"


@pytest.mark.parametrize("outcome", ["timed_out", "refused", "unreachable", "stranger", "failed"])
def test_a_node_that_does_not_reach_the_port(outcome: str) -> None:
    judged = _tcp("INI003", {}, {"connect": outcome, "connect_detail": "said so"})
    assert states_of(judged) == [("fail", "b")]
    assert judged.findings[0].where.peer == "a"
    assert ("something else answers" in _said(judged)) is (outcome == "stranger")


def test_a_node_is_at_fault_only_where_another_one_reaches_the_port() -> None:
    """`preflight` goes on without a node that is at fault."""
    assert [finding.owner for finding in _tcp("INI003", {}, {"connect": "timed_out"}).findings] == ["site"]
    third = InitSeen(node="c", tcp=TcpInit(host="10.1.0.1", port=23456, addresses=["10.1.0.1"], connect="ok"))
    judged = _tcp("INI003", {}, {"connect": "timed_out"}, more=third)
    assert [(finding.where.node, finding.owner) for finding in judged.findings] == [("b", "node")]


def test_a_closed_way_is_not_told_beside_its_own_cause() -> None:
    """Behind INI002 nobody can connect; a node that INI001 names goes to itself."""
    closed = {"connect": "refused"}
    assert _tcp("INI003", {"listened": "in use"}, closed).state.value == "skipped"
    assert _tcp("INI003", {"unresolved": "no"}, closed).state.value == "skipped"
    assert _tcp("INI003", {}, {"own": True, "loopback": True, **closed}).state.value == "ok"
    assert _tcp("INI003", {"own": False, **closed}, closed).state.value == "skipped"


def test_a_node_that_has_not_looked_is_not_accused() -> None:
    assert states_of(_tcp("INI003", {}, {"connect": ""})) != [("fail", "b")]


def test_a_stale_file() -> None:
    stale = {"kind": "file", "bytes": 812, "age_s": 7300.0, "owner": "mara"}
    judged = _file("INI004", stale, stale)
    assert states_of(judged) == [("fail", None)]
    assert "812 bytes of mara, written 2 h ago" in _said(judged)
    assert "rm -- /shared/init" in _commands(judged)


def test_an_empty_file_is_as_good_as_none() -> None:
    assert _file("INI004", {"kind": "file", "bytes": 0}, {}).state.value == "ok"


@pytest.mark.parametrize("kind", ["folder", "link", "other"])
def test_what_is_no_file(kind: str) -> None:
    judged = _file("INI004", {"kind": kind, "bytes": 0}, {})
    assert states_of(judged) == [("fail", "a")]
    assert ("rm --" in _commands(judged)) is (kind == "link")


def test_folders_that_are_not_one() -> None:
    judged = _file("INI005", {"sees": ["a"], "missing": ["b"]}, {"sees": ["b"], "missing": ["a"]})
    assert [finding.state.value for finding in judged.findings] == ["fail"]
    assert "a does not see in /shared what b has made there" in _said(judged)


def test_a_folder_that_one_node_cannot_write() -> None:
    """The other one does not see its file either, which is no second fault."""
    judged = _file("INI005", {"missing": ["b"]}, {"problem": "Read-only file system", "sees": []})
    assert states_of(judged) == [("fail", "b")]
    assert "b can make no file in /shared: Read-only file system" in _said(judged)


def test_locks_that_are_refused_or_local() -> None:
    assert states_of(_file("INI006", {}, {"unlocked": "No locks available"})) == [("fail", "b")]
    judged = _file("INI006", {}, {"lock_is_local": True, "options": ["rw", "local_lock=all"]})
    assert states_of(judged) == [("warn", "b")]
    assert _file("INI006", {}, {"options": ["rw", "nolock"]}).state.value == "ok"  # proven by the lock alone
    assert _file("INI006", {"problem": "EROFS"}, {"problem": "EROFS"}).state.value == "skipped"


def test_torchrun_opens_no_store_at_tcp() -> None:
    judged = _tcp("INI007", {}, {}, start="torchrun")
    assert states_of(judged) == [("fail", None)]
    assert "--start spawn" in _commands(judged)
    job = Job(start="torchrun", init_method=PATH)
    assert verdict("INI007", *NODES, job=job).state.value == "ok"


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({"bytes": 1000}, "ok"),
        ({"bytes": 2**24 - 1}, "ok"),
        ({"bytes": 2**24}, "note"),
        ({"bytes": 2**30}, "warn"),
        ({"error": "TypeError: cannot pickle 'generator' object"}, "note"),
    ],
)
def test_what_spawn_pickles(given: dict[str, Any], state: str) -> None:
    judgement = verdict(
        "INI008",
        *NODES,
        job=Job(start="spawn", ranks=4, nodes_answered=2),
        measurements=Measurements(pickled=[Pickled(what="dataset", seconds=1.0, **given)]),
    )
    assert [finding.state.value for finding in judgement.findings] == [state]


@pytest.mark.parametrize(
    ("size", "seconds", "words", "refused"),
    [(2**25, 0.02, "32 MiB of your dataset for each rank, 20 ms a rank", False), (2**32, 12.0, "4 GiB", True),
     (2**32 - 1, 12.0, "12.0 s a rank", False)],
)  # fmt: skip
def test_what_is_said_of_pickles(size: int, seconds: float, words: str, refused: bool) -> None:
    pickled = [Pickled(what="dataset", bytes=size, seconds=seconds)]
    job = Job(start="spawn", ranks=4, nodes_answered=2)
    finding = verdict("INI008", *NODES, job=job, measurements=Measurements(pickled=pickled)).findings[0]
    assert words in finding.what
    assert ("refuse more than 4 GiB" in finding.why) is refused
