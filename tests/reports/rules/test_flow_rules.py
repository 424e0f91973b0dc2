"""Rules about rates, losses, clocks and names between nodes: one fault, one finding, the right node."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    ClockOffset,
    Counters,
    Echoes,
    Measurements,
    Policy,
    Resolution,
    Unread,
    replace,
)
from tests.helpers.clusters import LO, nic, node, states_of, verdict
from tests.helpers.reach_clusters import (
    FAST,
    SLOW,
    Change,
    hosts,
    judged,
    measured,
    pairs,
)


@pytest.mark.parametrize(
    ("count", "change", "expected"),
    [
        (4, pairs("out", "h3", bursts=[SLOW]), [("warn", "h3")]),
        (4, pairs("in", "h3", bursts=[SLOW]), [("warn", "h3")]),
        (2, pairs("out", "h2", bursts=[SLOW]), [("warn", "h2")]),
        (4, lambda a, b: {"bursts": [SLOW]} if (a, b) == ("h1", "h2") else {}, []),
        (4, pairs("both", "h1", "h2", "h3", "h4", bursts=[SLOW]), []),
        (4, pairs("out", "h3", bursts=[replace(SLOW, starved=0.5)]), [("warn", "h3")]),
        (
            4,
            pairs("out", "h3", bursts=[replace(SLOW, bytes=8_000_000, starved=0.8)]),
            [],
        ),  # 0.4 Gb/s, its host busy
        (4, pairs("out", "h3", bursts=[replace(FAST, bytes=50_000_000)]), []),  # 2.7 Gb/s: may be the CPU
        (3, pairs("out", "h3", bursts=[SLOW], echoes=Echoes(sent=300, arrived=280, returned=270)), []),
    ],
)
def test_slow_bursts(count: int, change: Change, expected: list[tuple[str, str]]) -> None:
    judgement = judged("NET008", hosts(count), change)
    assert [pair for pair in states_of(judgement) if pair[0] != "ok"] == expected
    assert all(
        pair[0] != "warn" for pair in states_of(judged("NET009", hosts(count), pairs("out", "h3", bursts=[SLOW])))
    )


@pytest.mark.parametrize(
    ("reported", "change", "expected"),
    [
        (25000, pairs("out", "h3", bursts=[SLOW]), [("fail", "h3")]),
        (100, pairs("out", "h3", bursts=[SLOW]), [("warn", "h3")]),
        (25000, pairs("both", "h1", "h2", "h3", bursts=[SLOW]), [("warn", None)]),
    ],
)
def test_bursts_against_the_reported_speed(
    reported: int, change: Change, expected: list[tuple[str, str | None]]
) -> None:
    nodes = [node(f"h{i}", LO, nic("eth0", f"10.1.0.{i}/24", speed_mbit=reported)) for i in (1, 2, 3)]
    assert [pair for pair in states_of(judged("NET008", nodes, change)) if pair[0] != "ok"] == expected


def test_a_node_that_reports_less_is_not_told_twice() -> None:
    nodes = [node(f"h{i}", LO, nic("eth0", f"10.1.0.{i}/24", speed_mbit=25000)) for i in (1, 2)]
    nodes.append(node("h3", LO, nic("eth0", "10.1.0.3/24", speed_mbit=100)))
    assert states_of(judged("NET008", nodes, pairs("out", "h3", bursts=[SLOW])))[0] == ("warn", "h3")
    assert len(judged("NET008", nodes, pairs("out", "h3", bursts=[SLOW])).findings) == 1


LOSS_THERE = Echoes(sent=300, arrived=291, returned=291)
LOSS_BACK = Echoes(sent=300, arrived=300, returned=291)


def _loses_incoming(a: str, b: str) -> dict[str, Any]:
    return {"echoes": LOSS_THERE} if b == "h3" else {"echoes": LOSS_BACK} if a == "h3" else {}


@pytest.mark.parametrize(
    ("count", "change", "expected", "says"),
    [
        (4, _loses_incoming, [("warn", "h3")], "lost to h3"),
        (3, _loses_incoming, [("warn", "h3")], "lost to h3"),
        (
            4,
            pairs("both", "h3", echoes=Echoes(sent=300, arrived=291, returned=282)),
            [("warn", "h3")],
            "to and from",
        ),
        (2, pairs("in", "h2", echoes=LOSS_THERE), [("warn", "h1")], "from h1 to h2"),
        (3, pairs("both", "h1", "h2", "h3", echoes=LOSS_THERE), [("warn", None)], "between all nodes"),
        (3, pairs("in", "h3", echoes=Echoes(sent=300, arrived=299, returned=299)), [], ""),
        (4, pairs("out", "h3", bursts=[replace(FAST, retransmits=30_000)]), [("warn", "h3")], "sent again"),
        (4, pairs("out", "h3", bursts=[replace(FAST, retransmits=6_000)]), [], ""),
    ],
)
def test_lost_packets(count: int, change: Change, expected: list[tuple[str, str | None]], says: str) -> None:
    judgement = judged("NET009", hosts(count), change)
    assert [pair for pair in states_of(judgement) if pair[0] != "ok"] == expected
    assert says in judgement.findings[0].what


def test_what_a_busy_host_drops_itself_is_no_loss() -> None:
    nodes = hosts(3)
    given = measured(nodes, pairs("in", "h3", echoes=LOSS_THERE)).reach
    busy = Measurements(reach=[replace(reach, udp_overflows=20 * (reach.node == "h3")) for reach in given])
    assert verdict("NET009", *nodes, measurements=busy).state.value == "ok"


@pytest.mark.parametrize(
    ("errors", "drops", "packets", "state"), [(0, 0, 20000, "ok"), (15, 0, 20000, "ok"), (0, 60, 20000, "warn")]
)
def test_interface_counters(errors: int, drops: int, packets: int, state: str) -> None:
    nodes = hosts(3)
    given = measured(nodes).reach
    counters = Counters(packets=packets, errors=errors, drops=drops)
    judgement = verdict(
        "NET009", *nodes, measurements=Measurements(reach=[replace(given[0], counters=counters), *given[1:]])
    )
    assert judgement.state.value == state


def _off(name: str, seconds: float) -> Change:
    def change(a: str, b: str) -> dict[str, Any]:
        offset = seconds * ((b == name) - (a == name))
        return {"clock": ClockOffset(seconds=offset, within_s=1e-4)}

    return change


@pytest.mark.parametrize(
    ("count", "change", "state", "node", "says"),
    [
        (4, _off("h3", 90), "fail", "h3", "its clock is 90 s ahead of the other 3 nodes"),
        (3, _off("h3", 7200), "fail", "h3", "its clock is 2 hours ahead of the other 2 nodes"),
        (3, _off("h3", -900), "fail", "h3", "its clock is 15 minutes behind"),
        (3, _off("h3", 86400 * 365), "fail", "h3", "its clock is 365 days ahead"),
        (4, _off("h3", -90), "fail", "h3", "its clock is 90 s behind the other 3 nodes"),
        (4, _off("h1", -90), "fail", "h1", "its clock is 90 s behind"),
        (3, _off("h2", 2), "warn", "h2", "2 s ahead"),
        (3, _off("h2", 0.5), "ok", None, "agree within 500 ms"),
        (2, _off("h2", 90), "fail", "h2", "90 s ahead of that of h1; no majority"),
        (2, _off("h2", -90), "fail", "h1", "90 s ahead of that of h2; no majority"),
    ],
)
def test_clocks(count: int, change: Change, state: str, node: str | None, says: str) -> None:
    judgement = judged("HST009", hosts(count), change)
    assert states_of(judgement) == [(state, node)]
    assert says in judgement.findings[0].what


def test_clock_limits_are_the_sites_own() -> None:
    policy = Policy(thresholds={"HST009.fail_s": 100.0})
    assert judged("HST009", hosts(3), _off("h2", 90), policy=policy).state.value == "warn"


def _answers(*addresses: str) -> Resolution:
    return Resolution(name="x", addresses=list(addresses))


@pytest.mark.parametrize(
    ("change", "expected", "says"),
    [
        (
            lambda a, b: {"resolved": _answers()} if (a, b) == ("h1", "h2") else {},
            [("warn", "h1")],
            "not resolve on h1",
        ),
        (pairs("in", "h2", resolved=_answers()), [("warn", "h1")], "does not resolve on h[1,3]"),
        (pairs("in", "h2", resolved=_answers("10.9.9.9")), [("warn", "h1")], "resolves to 10.9.9.9"),
        (pairs("in", "h2", resolved=_answers("127.0.1.1")), [("warn", "h1")], "resolves to 127.0.1.1"),
        (
            pairs("out", "h2", resolved=_answers()),
            [("warn", "h2")],
            "names of 2 nodes (h[1,3]) do not resolve on h2",
        ),
        (pairs("both", "h1", "h2", "h3", resolved=_answers()), [("warn", "h1")], "names of 3 nodes"),
        (pairs("out", "h2", resolved=Unread("timed_out", "late")), [("unknown", "h2")], "no answer in time"),
        (pairs("out", "h2", resolved=_answers("10.9.9.9", "10.1.0.1", "10.1.0.3")), [], ""),
    ],
)
def test_names_of_the_peers(change: Change, expected: list[tuple[str, str]], says: str) -> None:
    judgement = judged("NET013", hosts(3), change)
    assert [pair for pair in states_of(judgement) if pair[0] != "ok"] == expected
    assert says in judgement.findings[0].what


def test_a_name_that_leads_to_an_address_which_the_node_has_lost_is_right() -> None:
    """NET003 tells of the address: nobody shall write the management address over the right line."""
    nodes = hosts(3, h2=nic("mgmt0", "10.2.0.2/24"))
    judgement = judged("NET013", nodes, pairs("in", "h2", resolved=_answers("10.1.0.2")))
    assert judgement.state.value == "ok"
    stale = judged("NET013", nodes, pairs("in", "h2", resolved=_answers("10.9.9.9")))
    assert states_of(stale) == [("warn", "h1")]


def test_the_line_for_etc_hosts_replaces_the_wrong_one_and_leaves_localhost_alone() -> None:
    stale = judged("NET013", hosts(3), pairs("in", "h2", resolved=_answers("10.9.9.9"))).findings[0]
    (command,) = stale.remedies[-1].commands
    assert command.startswith("sed -i -E -e '/^[[:space:]]*10[.]9[.]9[.]9")
    assert "echo '10.1.0.2 x' >> /etc/hosts   # on h[1,3]" in command
    local = Resolution(name="localhost", addresses=["127.0.0.1"])
    named = judged("NET013", hosts(3), pairs("in", "h2", resolved=local)).findings[0]
    assert named.remedies[-1].commands == ["hostnamectl set-hostname NAME   # on the machine with 10.1.0.2"]
