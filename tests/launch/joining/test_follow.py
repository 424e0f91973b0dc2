"""A node that does not reach node rank 0 reports the most telling answer, not the last."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ncclcheck.launch.joining import follow
from ncclcheck.launch.joining.follow import NotReached
from ncclcheck.launch.joining.trust.identity import JoinIdentity
from ncclcheck.probes.facts import Meeting

_OTHER_RUN = NotReached("stranger", "another run meets on this port: its --rdzv-id differs (a:1)", refused=True)
_GONE = NotReached("refused", "nothing listens at a:1 (connection refused)")
_STRANGER = NotReached("stranger", "something else answers at a:1: 'HTTP/1.1'")


def _reached(monkeypatch: pytest.MonkeyPatch, *answers: NotReached) -> Meeting:
    left = list(answers)
    clock = SimpleNamespace(monotonic=lambda: float(len(answers) - len(left)))  # one second an answer
    monkeypatch.setattr(follow, "time", clock)
    monkeypatch.setattr(follow, "_try_all", lambda *_: left.pop(0))
    monkeypatch.setattr(follow, "_AGAIN_S", (0.0, 0.0))
    monkeypatch.setattr(follow, "_sleep", lambda *_: None)
    who = JoinIdentity(1, 2, "a", (1,), "", "b", "--rdzv-endpoint")
    meeting = follow.reach(who, "env", len(answers) - 0.5, lambda _: None, lambda: False)
    assert isinstance(meeting, Meeting)
    return meeting


@pytest.mark.parametrize(
    ("answers", "outcome", "words"),
    [
        ((_GONE, _OTHER_RUN, _GONE), "stranger", "--rdzv-id differs"),
        ((_OTHER_RUN, _STRANGER), "stranger", "--rdzv-id differs"),
        ((_STRANGER, _GONE), "refused", "nothing listens"),
        ((_OTHER_RUN, NotReached("turned_away", "came twice", refused=True)), "turned_away", "came twice"),
    ],
)
def test_a_refusal_by_ncclcheck_outlasts_what_follows(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[NotReached, ...], outcome: str, words: str
) -> None:
    meeting = _reached(monkeypatch, *answers)
    assert meeting.outcome == outcome
    assert words in meeting.detail
