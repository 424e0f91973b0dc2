"""Rules over GPUs: faults of recorded machines, and facts of any kind."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import Cluster, Job, NvLinks, RetiredPages, replace
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.helpers.cards import LINKS, card, four, gpu_node, process
from tests.helpers.clusters import DENIED, verdict
from tests.helpers.trees import RECORDED, needs_recorded


@needs_recorded
def test_recorded_retired_pages() -> None:
    """Eight GPUs of Azure's health checks: four past the limit, another waits for a reset."""
    text = (RECORDED / "aznhc/test/data/bad_nvsmi8_output.txt").read_text()
    rows = re.findall(r"Single Bit ECC +: (\d+)\s+Double Bit ECC +: (\d+)\s+Pending Page Blacklist *: (\w+)", text)
    gpus = [
        card(index, retired=RetiredPages(single_bit=int(single), double_bit=int(double), pending=pending == "Yes"))
        for index, (single, double, pending) in enumerate(rows)
    ]
    findings = verdict("GPU009", gpu_node("a", *gpus)).findings
    assert [(f.state.value, f.where.device) for f in findings] == [
        ("fail", "GPU 0"), ("fail", "GPU 1"), ("fail", "GPU 5"), ("fail", "GPU 7"), ("warn", "GPU 3"),
    ]  # fmt: skip


@needs_recorded
def test_recorded_nvlinks() -> None:
    """A GPU of Azure's health checks of which all links are inactive, beside three with twelve links."""
    folder = RECORDED / "aznhc/test/data"
    count = len(re.findall(r"Link \d+: 25 GB/s", (folder / "good_nvlink_status.txt").read_text()))
    assert "all links are inactive" in (folder / "bad_nvlink_status.txt").read_text()
    up, down = (replace(LINKS, links=count, down=list(range(n))) for n in (0, count))
    gpus = four(every={"nvlinks": up, "fabric": DENIED})
    judgement = verdict("GPU018", gpu_node("a", *gpus[:3], replace(gpus[3], nvlinks=down)))
    assert [(f.state.value, f.where.device) for f in judgement.findings] == [("fail", "GPU 3")]


def links(count: int, down: list[int]) -> NvLinks:
    return replace(LINKS, links=count, down=down)


ANYTHING: dict[str, st.SearchStrategy[Any]] = {
    "trouble": st.sampled_from(["", "GPU is lost"]),
    "processes": st.lists(
        st.builds(process, st.integers(0, 9), st.integers(0, 2**40) | st.just(DENIED),
                  st.sampled_from(["ada", "bob", DENIED]), st.sampled_from(["S", "gone", DENIED])),
        max_size=4,
    ),
    "memory_used": st.integers(0, 2**40),
    "memory_total": st.integers(0, 2**40),
    "model": st.text(max_size=3),
    "power_cap": st.floats(0, 1e6),
    "power_default": st.floats(0, 1e6),
    "nvlinks": st.builds(links, st.integers(0, 9), st.lists(st.integers(0, 9))),
    "throttle": st.lists(st.sampled_from(["idle", "hw_slowdown", "application_clocks"])),
    "mig": st.booleans(),
    "ecc": st.booleans(),
    "peers": st.just([]),
    **{
        name: st.integers(-(2**40), 2**40)
        for name in ("utilization", "clock", "clock_max", "temperature", "slowdown_at", "margin", "pcie_gen",
                     "pcie_width", "pcie_width_max", "ecc_uncorrected", "pcie_replays")
    },
}  # fmt: skip
CHANGES = st.fixed_dictionaries({}, optional={name: values | st.just(DENIED) for name, values in ANYTHING.items()})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(CHANGES, max_size=3), max_size=3), st.sampled_from(["env", "bench"]))
def test_no_facts_make_a_rule_raise(nodes: list[list[dict[str, Any]]], command: str) -> None:
    machines = [
        gpu_node(f"n{number}", *(card(index, **changes) for index, changes in enumerate(gpus)))
        for number, gpus in enumerate(nodes)
    ]
    rules = [rule for rule in all_rules() if rule.code.startswith(("GPU", "MEM"))]
    verdicts = judge(Cluster(command=command, nodes=machines, job=Job(nodes_asked=len(machines))), rules)
    assert not [f.what for v in verdicts for f in v.findings if f.owner == "tool"]
