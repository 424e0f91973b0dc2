"""What smoke refuses to plan."""

from __future__ import annotations

import pytest

from ncclcheck import plan_smoke
from ncclcheck.errors import UsageError
from ncclcheck.plan_smoke import SmokeOptions
from ncclcheck.probes.facts import Node, Stack


@pytest.mark.parametrize("version", ["2.1.0+cu121", "2.3.1"])
def test_fsdp_needs_a_torch_that_has_it(version: str) -> None:
    nodes = [Node(name="a", stack=Stack(torch="2.8.0")), Node(name="b", stack=Stack(torch=version))]
    with pytest.raises(UsageError, match=rf"^--strategy fsdp: torch {version.replace('+', '.')} on b has no"):
        plan_smoke.refuse_strategy(SmokeOptions(strategy="fsdp"), nodes)
    plan_smoke.refuse_strategy(SmokeOptions(strategy="zero3"), nodes)
    plan_smoke.refuse_strategy(SmokeOptions(strategy="fsdp"), nodes[:1])
