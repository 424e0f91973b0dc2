"""Two nodes that were both told to be node rank 0."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ncclcheck.base.endpoint import free_port
from ncclcheck.launch.agents import Events
from ncclcheck.launch.joining import second_lead
from ncclcheck.launch.joining.follow import refused_as_lead
from ncclcheck.launch.joining.meeting import MeetingPoint
from ncclcheck.launch.joining.trust.identity import JoinIdentity


@pytest.fixture
def port() -> int:
    return free_port("127.0.0.1")


@pytest.fixture
def first(port: int) -> Iterator[MeetingPoint]:
    """Whoever leads the run at the endpoint."""
    meeting = MeetingPoint("127.0.0.1", [port], 2, "", name="h1", command="env", events=Events())
    yield meeting
    meeting.done(0, "")


def _second(port: int) -> JoinIdentity:
    return JoinIdentity(0, 2, "127.0.0.1", (port,), "", "h2", "--rdzv-endpoint")


def test_the_first_one_says_that_the_rank_is_taken(first: MeetingPoint, port: int) -> None:
    assert "node rank 0 came twice: h1 and h2" in refused_as_lead(_second(port), "env", ())
    assert [(arrival.name, arrival.outcome, arrival.node_rank) for arrival in first.arrivals] == [
        ("h2", "same rank", 0)
    ]


def test_an_address_that_leads_back_to_itself_is_no_other(first: MeetingPoint, port: int) -> None:
    assert refused_as_lead(_second(port), "env", first.nonces) == ""
    assert first.arrivals == []


def test_nobody_else_is_there(port: int) -> None:
    assert refused_as_lead(_second(port), "env", ()) == ""


@pytest.mark.parametrize("here", [True, False])
def test_it_is_asked_only_where_the_endpoint_is_elsewhere(
    first: MeetingPoint, port: int, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_lead, "_is_of_this_host", lambda _: here)
    own = MeetingPoint("127.0.0.1", [free_port("127.0.0.1")], 2, "", name="h2", command="env", events=Events())
    asked = second_lead.SecondLead(_second(port), "env", own)
    end = time.monotonic() + (1.5 if here else 20.0)
    while not asked.refusal and time.monotonic() < end:
        time.sleep(0.02)
    asked.close()
    own.done(0, "")
    assert ("came twice" in asked.refusal) == (not here)
    assert len(first.arrivals) == (0 if here else 1)


def test_which_addresses_are_of_this_host() -> None:
    assert second_lead._is_of_this_host("127.0.0.1")
    assert not second_lead._is_of_this_host("192.0.2.7")  # of documentation (RFC 5737)
