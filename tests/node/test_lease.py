"""The lease of an agent: it ends what its launcher forgot, also where no thread can be started any more."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ncclcheck.node.agent import Agent
from ncclcheck.node.channel import Lease


def _no_thread(*_: Any) -> None:
    raise RuntimeError("can't start new thread")


def test_a_lease_needs_no_further_thread_to_be_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    lease = Lease(ended.set, seconds=0.2)
    lease.begin()
    monkeypatch.setattr(threading.Thread, "start", _no_thread)
    assert not ended.wait(0.5), "no beat has come yet"
    lease.renew()
    lease.renew()
    assert ended.wait(20)


def test_an_agent_whose_reader_dies_ends() -> None:
    reasons: list[str] = []
    agent = SimpleNamespace(options=SimpleNamespace(node=0), leave=reasons.append, events=None)
    Agent._obey(agent, io.BytesIO(b""))  # type: ignore[arg-type]
    assert reasons == ["the launcher is gone"]

    class Broken(io.BytesIO):
        def __next__(self) -> bytes:
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        Agent._obey(agent, Broken())  # type: ignore[arg-type]
    assert reasons[1:] == ["its thread that reads orders died"]
