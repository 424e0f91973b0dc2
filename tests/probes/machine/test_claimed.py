"""Another machine that has the address of a node: asked on the wire, and told."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from ncclcheck.probes.facts import Unread, replace
from ncclcheck.probes.machine.net import claimed
from tests.helpers.clusters import DENIED, LO, nic, node
from tests.helpers.reach_clusters import hosts, judged, measured

_MAC, _OTHER = b"\2\0\0\0\0\1", b"\2\0\0\0\0\2"
_HELD = socket.inet_aton("10.1.0.3")


def _answer(says: int = 2, sender: bytes = _OTHER, address: bytes = _HELD) -> bytes:
    return claimed._FRAME.pack(_MAC, sender, 0x0806, 1, 0x0800, 6, 4, says, sender, address, _MAC, b"\0" * 4)


def test_a_probe_names_no_sender() -> None:
    frame = claimed.request(_MAC, _HELD)
    assert len(frame) == 42
    assert (frame[:6], frame[6:12], frame[28:32], frame[38:]) == (b"\xff" * 6, _MAC, b"\0" * 4, _HELD)


@pytest.mark.parametrize(
    ("frame", "mac"),
    [
        (_answer(), _OTHER),
        (_answer(says=1), b""),
        (_answer(address=socket.inet_aton("10.1.0.4")), b""),
        (_answer(sender=b"\0" * 6), b""),
        (_answer()[:20], b""),
        (b"", b""),
    ],
)
def test_only_who_says_that_it_has_the_address_is_heard(frame: bytes, mac: bytes) -> None:
    assert claimed.holder(frame, _HELD) == mac


def test_an_interface_that_is_not_there_and_an_address_of_ipv6_are_unread() -> None:
    assert isinstance(claimed.others_with("10.1.0.3", "nosuch0"), Unread)
    assert isinstance(claimed.others_with("fd00::1", "lo"), Unread)


def _told(**of_node: Any) -> list[tuple[str, str | None, str]]:
    nodes = hosts(3)
    nodes[1] = node("h2", LO, nic("eth0", "10.1.0.2/24", mac="02:00:00:00:00:22"))
    reach = [replace(reach, claimed=of_node.get(reach.node, [])) for reach in measured(nodes).reach]
    verdict = judged("NET010", nodes, measurements=replace(measured(nodes), reach=reach))
    return [
        (finding.state.value, finding.where.node, finding.what)
        for finding in verdict.findings
        if finding.state.value != "ok"
    ]


def test_an_address_that_another_machine_has_too() -> None:
    ((state, name, what),) = _told(h3=["52:54:00:00:00:01"])
    assert (state, name) == ("fail", "h3")
    assert what == "its address 10.1.0.3 is used twice: another machine, 52:54:00:00:00:01 has it too"
    ((_, _, what),) = _told(h3=["02:00:00:00:00:22"])
    assert "h2 (eth0, 02:00:00:00:00:22) has it too" in what


@pytest.mark.parametrize(
    "of_node", [{}, {"h3": DENIED}, {"h2": ["52:54:00:00:00:01"], "h3": ["52:54:00:00:00:01"]}]
)
def test_nobody_and_a_proxy_are_no_findings(of_node: dict[str, Any]) -> None:
    assert _told(**of_node) == []
