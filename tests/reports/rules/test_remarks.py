"""Words that depend on where a thing stands; faults planted there were noticed by no other test of the rule."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import LogEvent, Node
from ncclcheck.probes.facts.machine.health import Waiting
from ncclcheck.reports.rules.host.failing import _stuck
from ncclcheck.reports.rules.log.bootstrap_store import _who_came
from ncclcheck.reports.rules.nccl.variables import _remove
from ncclcheck.reports.rules.rdma.choice import _shown
from ncclcheck.reports.subjects.nccl.hca import Entry
from ncclcheck.reports.subjects.nccl.variables import Setting
from tests.helpers import clusters


@pytest.mark.parametrize(
    ("source", "who", "commands"),
    [
        ("environment", "you", ["unset NCCL_DEBUGG"]),
        ("/etc/nccl.conf:3", "admin", []),
        ("/home/kim/.nccl.conf:1", "you", []),
    ],
)
def test_a_wrong_name_is_removed_where_it_stands(source: str, who: str, commands: list[str]) -> None:
    fix = _remove("NCCL_DEBUGG", Setting("INFO", source))
    assert (fix.who, fix.commands) == (who, commands)
    assert source in fix.text or source == "environment"


def test_an_entry_names_its_port_where_it_has_one() -> None:
    assert _shown(Entry("mlx5_0")) == "'mlx5_0'"
    assert _shown(Entry("mlx5_0", 2)) == "'mlx5_0' port 2"


def test_only_several_waiting_processes_have_others() -> None:
    node: Node = clusters.node("a")
    waiting = [Waiting(name="python", pid=pid, seconds=2.0, user="kim") for pid in (7, 8, 9)]
    assert "python (pid 7 of kim) waits" in _stuck(node, waiting[:1], []).what
    assert "python (pid 7 of kim) and 2 more waits" in _stuck(node, waiting, []).what


def test_the_key_that_was_waited_for_is_named_where_it_is_known() -> None:
    event = LogEvent(sign="store-wait", file="a", line=1, text="", order=1, fields={"keys": "rank3"})
    assert _who_came(event).endswith("never set (key rank3)")
    assert _who_came(LogEvent(sign="store-wait", file="a", line=1, text="", order=1)).endswith("never set")
