"""Two results of one kind: rows by intervals, facts by name, counters that moved."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclcheck.probes.facts import (
    Cluster,
    Collective,
    Gpus,
    Host,
    Interface,
    Network,
    Node,
    NvLinks,
    Rdma,
    Silence,
    Unread,
    replace,
)
from ncclcheck.probes.facts import Run as RunFacts
from ncclcheck.probes.job.timing import summary
from ncclcheck.reports import compare
from tests.helpers import stories
from tests.helpers.clusters import DENIED, node
from tests.helpers.results import GONE, MIB, bench, cable, counted, gpus, port, row, slot, xid

OPPOSITE = {"worse": "better", "better": "worse"}


def verdicts(before: Cluster, after: Cluster) -> list[str]:
    return [row.verdict for row in compare.compare(before, after).rows]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (row(1000), row(1050), "same"),
        (row(1000), row(1300), "worse"),
        (row(1300), row(1000), "better"),
        (row(1000, 0.3), row(1300, 0.3), "inconclusive"),
        (row(1000, 0.09), row(1350, 0.09), "worse"),
        (row(1000, 0.09), row(1150, 0.01), "inconclusive"),
        (row(1000, 0.0), row(1099, 0.0), "same"),
        (row(1000, 0.0), row(1101, 0.0), "worse"),
        (row(1000, correct=True), row(1000, correct=False), "worse"),
        (row(1000, correct=False), row(900, correct=True), "better"),
        (row(1000), replace(row(1000), time_us=None, state="skipped", reason="no memory"), "incomparable"),
        (row(1000), row(1000, size=MIB), "incomparable"),
    ],
)
def test_rows_by_their_intervals(before: Collective, after: Collective, expected: str) -> None:
    assert verdicts(bench(before), bench(after))[0] == expected


def test_files_of_before_have_no_interval() -> None:
    """From six iterations on the interval lies between the least time and p95; below nothing is known."""

    def old(p50: float, iterations: int) -> Collective:
        made = row(p50, iterations=iterations)
        assert made.time_us is not None
        return replace(made, time_us=replace(made.time_us, median_low=None, median_high=None))

    assert verdicts(bench(old(1000, 6)), bench(old(1300, 6))) == ["worse"]
    assert verdicts(bench(old(1000, 5)), bench(old(1300, 5))) == ["inconclusive"]
    assert verdicts(bench(old(1000, 5)), bench(old(1000, 5))) == ["same"]


def test_the_interval_is_that_of_the_median() -> None:
    times = summary([number / 1e6 for number in range(1, 21)])
    assert (times.median_low, times.p50, times.median_high) == (6, 10.5, 15)
    few = summary([1e-6] * 5)
    assert (few.median_low, few.median_high) == (None, None)


positive = st.floats(min_value=0.1, max_value=1e7)
spreads = st.floats(min_value=0.0, max_value=0.4)
rows_made = st.builds(
    row, positive, spreads, op=st.sampled_from(["all_reduce", "barrier"]), size=st.sampled_from([0, 1024, MIB])
)
benches = st.lists(rows_made, max_size=5).map(lambda rows: bench(*rows))


@given(benches)
def test_a_result_is_as_itself(cluster: Cluster) -> None:
    comparison = compare.compare(cluster, cluster)
    assert {row.verdict for row in comparison.rows} <= {"same"}
    assert not comparison.worse
    assert (comparison.changes, comparison.differences, comparison.new, comparison.gone) == ([], [], [], [])


@given(benches, benches, st.floats(min_value=0, max_value=50))
def test_what_is_worse_is_better_the_other_way_round(cluster: Cluster, other: Cluster, floor: float) -> None:
    limits = {"BEN006.floor_percent": floor}
    there = {(row.op, row.bytes): row.verdict for row in compare.compare(cluster, other, limits).rows}
    back = {(row.op, row.bytes): row.verdict for row in compare.compare(other, cluster, limits).rows}
    assert there == {key: OPPOSITE.get(word, word) for key, word in back.items()}


@pytest.mark.parametrize("name", stories.NAMES)
def test_every_story_is_as_itself(name: str) -> None:
    cluster = stories.load(name).cluster
    comparison = compare.compare(cluster, cluster)
    assert not comparison.worse
    assert (comparison.changes, comparison.differences) == ([], [])


@pytest.mark.parametrize(
    ("after", "field"),
    [
        (bench(row(1000), ranks=8), "ranks"),
        (bench(row(1000), backend="gloo"), "backend"),
        (bench(row(1000), nodes=3), "nodes"),
        (bench(row(1000), simulated=True), "simulated"),
        (replace(bench(row(1000)), nodes=[Node(name="a0", gpus=gpus("A100")), Node(name="a1", gpus=gpus("A100"))]),
         "GPUs"),
    ],
)  # fmt: skip
def test_other_hardware_or_shape_is_not_compared(after: Cluster, field: str) -> None:
    nodes = [Node(name=name, gpus=gpus("H100")) for name in ("a0", "a1")]
    before = replace(bench(row(1000)), nodes=nodes)
    comparison = compare.compare(before, after)
    assert [row.verdict for row in comparison.rows] == ["incomparable"]
    assert field in comparison.rows[0].reason
    assert field in {difference.field for difference in comparison.differences}


def test_other_nodes_of_the_same_kind_are_compared() -> None:
    """A job system gives other nodes each time."""
    before = replace(bench(row(1000)), nodes=[Node(name=n, gpus=gpus("H100", "H100")) for n in ("a0", "a1")])
    after = replace(bench(row(1500)), nodes=[Node(name=n, gpus=gpus("H100", "H100")) for n in ("b7", "b8")])
    comparison = compare.compare(before, after)
    assert [row.verdict for row in comparison.rows] == ["worse"]
    assert (comparison.new, comparison.gone, comparison.changes) == (["b7", "b8"], ["a0", "a1"], [])


def test_a_field_that_one_node_did_not_tell_is_left_out() -> None:
    cluster = Cluster(nodes=[Node(name="a", gpus=gpus("H100")), Node(name="b", gpus=Gpus(cards=DENIED))])
    assert "GPUs" not in compare.fingerprint(cluster).hardware
    assert compare.fingerprint(replace(cluster, nodes=cluster.nodes[:1])).hardware["GPUs"] == {"1 x H100": 1}


LINKS = NvLinks(links=18, down=[]), NvLinks(links=18, down=[3])
CHANGED: list[tuple[str, dict[str, Any], dict[str, Any], tuple[str, str, bool]]] = [
    ("an HCA is gone", {"rdma": GONE[0]}, {"rdma": GONE[1]}, ("worse", "HCA mlx5_1", True)),
    ("an HCA came", {"rdma": GONE[1]}, {"rdma": GONE[0]}, ("better", "HCA mlx5_1", False)),
    ("a GPU is gone", {"gpus": gpus("H", "H")}, {"gpus": gpus("H")}, ("worse", "GPU 1", True)),
    ("an NVLink is down", {"gpus": gpus("H", nvlinks=LINKS[0])}, {"gpus": gpus("H", nvlinks=LINKS[1])},
     ("worse", "GPU 0", False)),
    ("a link is slower", {"rdma": port()}, {"rdma": port(rate_gbit=200.0)}, ("worse", "HCA mlx5_0 port 1", False)),
    ("a port is down", {"rdma": port()}, {"rdma": port(state="DOWN")}, ("worse", "HCA mlx5_0 port 1", True)),
    ("lanes are missing", {"fabric": slot(16)}, {"fabric": slot(8)}, ("worse", "PCIe device 0000:1b:00.0", False)),
    ("a NIC is slower", {"network": cable(speed_mbit=100000)}, {"network": cable(speed_mbit=25000)},
     ("worse", "interface eth0", False)),
    ("a cable is out", {"network": cable(running=True)}, {"network": cable(running=False)},
     ("worse", "interface eth0", False)),
    ("drops", {"network": counted(1000, 0)}, {"network": counted(2000, 50)}, ("worse", "interface eth0", False)),
    ("few drops", {"network": counted(1000, 0)}, {"network": counted(2000, 5)},
     ("changed", "interface eth0", False)),
    ("ECC", {"gpus": gpus("H", ecc_uncorrected_ever=1)}, {"gpus": gpus("H", ecc_uncorrected_ever=2)},
     ("worse", "GPU 0", True)),
    ("few ECC", {"gpus": gpus("H", ecc_corrected_ever=1)}, {"gpus": gpus("H", ecc_corrected_ever=2)},
     ("changed", "GPU 0", False)),
    ("an Xid", {"gpus": Gpus(xids=[])}, {"gpus": xid(79, 1)}, ("worse", "GPU 0", True)),
    ("an Xid again", {"gpus": xid(94, 1)}, {"gpus": xid(94, 2)}, ("worse", "GPU 0", False)),
    ("an Xid of a program", {"gpus": Gpus(xids=[])}, {"gpus": xid(31, 1)}, ("changed", "GPU 0", False)),
    ("a kernel", {"host": Host(kernel="6.8")}, {"host": Host(kernel="6.11")}, ("changed", "", False)),
    ("a setting", {"env": {}}, {"env": {"NCCL_ALGO": "Ring"}}, ("changed", "", False)),
    ("not seen now", {"rdma": port()}, {"rdma": Rdma(devices=DENIED)}, ("unseen", "", False)),
]  # fmt: skip


@pytest.mark.parametrize(("_", "before", "after", "expected"), CHANGED, ids=[case[0] for case in CHANGED])
def test_what_changed(
    _: str, before: dict[str, Any], after: dict[str, Any], expected: tuple[str, str, bool]
) -> None:
    sides = [Cluster(nodes=[node("a", **facts)]) for facts in (before, after)]
    changes = compare.changes_of(*sides)
    assert [(change.verdict, change.part, change.grave) for change in changes] == [expected]
    assert changes[0].nodes == ["a"]


QUIET: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("the job's own number", {"env": {"SLURM_JOB_ID": "1"}}, {"env": {"SLURM_JOB_ID": "2"}}),
    ("a container's interface", {"network": Network(interfaces=[Interface(name="veth1", kind="veth")], routes=[])},
     {"network": Network(interfaces=[], routes=[])}),
    ("a GPU's clock", {"gpus": gpus("H", clock=345)}, {"gpus": gpus("H", clock=1980)}),
    ("not in the older file", {"rdma": Rdma()}, {"rdma": Rdma(libibverbs="/usr/lib/libibverbs.so.1")}),
    ("a power limit that wavers", {"gpus": gpus("H", power_cap=700.0)}, {"gpus": gpus("H", power_cap=699.5)}),
]  # fmt: skip


@pytest.mark.parametrize(("_", "before", "after"), QUIET, ids=[case[0] for case in QUIET])
def test_what_is_no_news(_: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    assert compare.changes_of(*[Cluster(nodes=[node("a", **facts)]) for facts in (before, after)]) == []


def test_counters_begin_anew_with_the_machine() -> None:
    before = node("a", rdma=port(7), host=Host(boot_id="1"))
    after = node("a", rdma=port(7), host=Host(boot_id="2"))
    changes = compare.changes_of(Cluster(nodes=[before]), Cluster(nodes=[after]))
    by_fact = {change.fact: (change.verdict, change.after) for change in changes}
    assert by_fact["machine"] == ("changed", "restarted")
    assert by_fact["link_downed"] == ("worse", "7 (7 more, counted anew)")
    assert by_fact["packet_seq_err"][0] == "changed"


def test_fewer_gpus_that_the_user_asked_for_are_no_news() -> None:
    before = node("a", gpus=Gpus(usable=8), env={"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"})
    after = node("a", gpus=Gpus(usable=1), env={"CUDA_VISIBLE_DEVICES": "0"})
    changes = compare.changes_of(Cluster(nodes=[before]), Cluster(nodes=[after]))
    assert [(change.fact, change.verdict) for change in changes] == [("CUDA_VISIBLE_DEVICES", "changed")]


def test_the_same_change_of_many_nodes_is_told_once() -> None:
    sides = [Cluster(nodes=[node(f"a{i}", host=Host(kernel=kernel)) for i in range(9)]) for kernel in ("1", "2")]
    changes = compare.changes_of(*sides)
    assert [len(change.nodes) for change in changes] == [9]


def test_nodes_are_known_by_host_name_too() -> None:
    """ssh names nodes by address, Slurm by name."""
    before = Cluster(nodes=[Node(name="10.0.0.7", host=Host(hostname="gpu-7", kernel="1"))])
    after = Cluster(nodes=[Node(name="gpu-7", host=Host(hostname="gpu-7", kernel="2"))])
    comparison = compare.compare(before, after)
    assert ([change.fact for change in comparison.changes], comparison.new, comparison.gone) == (
        ["kernel"],
        [],
        [],
    )


def test_a_node_that_does_not_answer_any_more_is_worse() -> None:
    before = Cluster(nodes=[Node(name="a"), Node(name="b")])
    silent = RunFacts(silent=[Silence(node="b", last_step="", since_s=9.0)])
    comparison = compare.compare(before, Cluster(nodes=[Node(name="a")], run=silent))
    assert (comparison.silent, comparison.gone, comparison.worse) == (["b"], [], True)


def test_unread_is_said_with_its_reason() -> None:
    sides = [Cluster(nodes=[Node(name="a", rdma=rdma)]) for rdma in (port(), Unread("denied", "not for you"))]
    changes = compare.changes_of(*sides)
    assert [(change.part, change.fact, change.after) for change in changes] == [
        ("", "HCAs", "unread (not for you)")
    ]
