"""A job that cannot begin since the port that we chose is taken begins on another one."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from ncclcheck.base import endpoint, wire
from ncclcheck.launch.agents import AgentRecord, Closed
from ncclcheck.probes.facts import JobEnd
from ncclcheck.run.gather import Gathered
from ncclcheck.run.jobs import TorchJob
from ncclcheck.run.place import MeetingPlace
from ncclcheck.run.plan.starts import JobStart


class _Link:
    """One node of which nothing is asked."""

    nodes: Mapping[int, str] = {0: "a"}

    def send(self, node: int | None, order: wire.FromLauncher) -> None: ...

    def describe(self, node: int) -> Closed:
        return Closed(node, "")

    def close(self, seconds: float) -> None: ...


class _Session:
    """Jobs of which the first so many find their port taken."""

    def __init__(self, taken: int) -> None:
        self.gathered, self.stopped_by, self.ports, self._taken = Gathered([_Link()]), "", list[str](), taken

    def job(self, orders: Mapping[int, str], *_: object) -> str:
        self.gathered.begin_job([0])
        self.ports.append(orders[0])
        taken = len(self.ports) <= self._taken
        end = JobEnd(node="a", exit=None if taken else 0, detail="it is taken" if taken else "")
        self.gathered.take(AgentRecord(0, wire.JobEnded(end=end, port_taken=taken)))
        self.stopped_by = self.stopped_by or ("early end" if taken else "")
        return "early end" if taken else ""


def _job(taken: int, given: str = "") -> tuple[TorchJob, _Session]:
    session = _Session(taken)
    door = SimpleNamespace(node=0, tcp_port=41000)
    stages: Any = SimpleNamespace(
        session=SimpleNamespace(gathered=SimpleNamespace(doors=[door])),
        options=SimpleNamespace(rdzv_endpoint=given),
        choice=SimpleNamespace(launcher="local" if given else "ssh", lead=None, names=["a"]),
        links=lambda: {0: SimpleNamespace(address="10.0.0.1")},
    )
    job: Any = TorchJob.__new__(TorchJob)
    job.session, job.place, job.shape = session, MeetingPlace(stages, JobStart()), None
    job._orders = lambda *_: {0: job.place.store(0)}
    job._complete = lambda: True
    return job, session


@pytest.fixture(autouse=True)
def _time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchJob, "seconds", 60.0)


def _once(job: TorchJob) -> str:
    return job.once(SimpleNamespace(training=None), 30.0)  # type: ignore[arg-type]


def test_it_begins_on_another_port_and_nothing_is_told_of_the_first() -> None:
    job, session = _job(taken=1)
    assert _once(job) == ""
    assert session.ports[0] == "10.0.0.1:41000"
    assert session.ports[1] != session.ports[0]
    assert session.stopped_by == ""
    session.gathered.begin_job([0])
    assert session.gathered.run(started_job=True, stopped_by="").ends == []


def test_after_some_ports_it_is_told() -> None:
    job, session = _job(taken=99)
    assert _once(job) == "early end"
    assert len(session.ports) == 4
    assert [end.detail for end in session.gathered.run(started_job=True, stopped_by="").ends] == ["it is taken"]


def test_the_users_own_port_is_kept() -> None:
    job, session = _job(taken=99, given="127.0.0.1:29500")
    assert _once(job) == "early end"
    assert session.ports == ["127.0.0.1:29500"]


def test_a_connection_that_holds_a_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.bind(("127.0.0.1", 0))
        client.connect(server.getsockname())
        port = client.getsockname()[1]
        holder = endpoint.taken("127.0.0.1", port)
        assert holder is not None
        assert f"held by a connection to 127.0.0.1:{server.getsockname()[1]} (ESTABLISHED) of" in holder
