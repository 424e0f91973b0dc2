"""What smoke refuses to plan."""

from __future__ import annotations

import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Node, Stack
from ncclcheck.run.plan import smoke_plan
from ncclcheck.run.plan.smoke_plan import SmokeOptions


@pytest.mark.parametrize("version", ["2.1.0+cu121", "2.3.1"])
def test_fsdp_needs_a_torch_that_has_it(version: str) -> None:
    nodes = [Node(name="a", stack=Stack(torch="2.8.0")), Node(name="b", stack=Stack(torch=version))]
    with pytest.raises(UsageError, match=rf"^--strategy fsdp: torch {version.replace('+', '.')} on b has no"):
        smoke_plan.refuse_strategy(SmokeOptions(strategy="fsdp"), nodes)
    smoke_plan.refuse_strategy(SmokeOptions(strategy="zero3"), nodes)
    smoke_plan.refuse_strategy(SmokeOptions(strategy="fsdp"), nodes[:1])
