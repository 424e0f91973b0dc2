"""Expected bandwidth: formulas and bounds against published figures, and the fit of latency and bandwidth."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import (
    Burst,
    Gpu,
    Interface,
    Node,
    NodeReach,
    NotKnown,
    NvFabric,
    PciDevice,
    PcieLink,
    PeerReach,
    Unread,
)
from ncclcheck.reports import expect
from ncclcheck.reports.expect import formulas
from ncclcheck.reports.expect.bounds import BandwidthBound, Ground, bound, ground
from ncclcheck.reports.expect.fit import fit
from tests.helpers.clusters import nic
from tests.helpers.hcas import fabric
from tests.helpers.speeds import NO_FABRIC, curve, gpus, h100, job, links, machine, row

H200 = "NVIDIA H200"
B200 = "NVIDIA B200"


def within(value: float, published: float, percent: float) -> bool:
    return abs(value / published - 1) <= percent / 100


@pytest.mark.parametrize(("gen", "published"), [(3, 13.9), (4, 27.7), (5, 55.4)])
def test_pcie_x16(gen: int, published: float) -> None:
    assert within(formulas.pcie(formulas.gts(gen), 16), published, 0.5)


@pytest.mark.parametrize(
    ("link", "eta", "published", "percent"),
    [
        (450, 0.681, {5: 414.2, 6: 435.6, 7: 460.0, 8: 473.1}, 1.4),
        (450, 0.681, {8: 477.9}, 0.3),  # H100 on Azure, not among those that eta was fitted to
        (450, 0.681, {8: 482.26}, 1.2),  # p5en at 16 GiB
        (900, 0.602, {6: 778.2, 7: 811.2, 8: 838.0}, 0.6),
        (900, 0.484, {72: 846.8}, 0.1),  # a rack of GB200
    ],
)
def test_nvls_closed_form(link: float, eta: float, published: dict[int, float], percent: float) -> None:
    for count, busbw in published.items():
        assert within(formulas.nvls(link, count, eta), busbw, percent)


@pytest.mark.parametrize(("link", "e", "published"), [(300, 0.78, 234.9), (450, 0.82, 367.6), (900, 0.76, 682)])
def test_nvlink_ring(link: float, e: float, published: float) -> None:
    assert within(formulas.nvlink_ring(link, e), published, 0.5)


def test_bounds_of_the_network() -> None:
    assert formulas.outside(400, 32, 4) == pytest.approx(516.67, abs=0.01)
    assert formulas.outside(50, 16, 2) == pytest.approx(93.75)  # p4d, of which a public check demands 300
    assert formulas.outside(400, 16, 2) == pytest.approx(750)  # p5, of which a public check demands 800
    assert formulas.in_network(400, 16) == pytest.approx(750)
    assert formulas.all_to_all(400, 16, 2) == pytest.approx(formulas.outside(400, 16, 2) / 8)


def on(*nodes: Node, own: int = 8, backend: str = "nccl", reach: list[NodeReach] | None = None) -> Ground | str:
    try:
        return ground(job(*nodes, own=own, backend=backend, reach=reach or []), own * len(nodes), len(nodes))
    except NotKnown as missing:
        return str(missing)


def of(op: str, *nodes: Node, own: int = 8) -> BandwidthBound:
    shared = on(*nodes, own=own)
    assert isinstance(shared, Ground), shared
    limits = bound(shared, op)
    assert limits is not None
    return limits


def several(count: int, cards: list[Gpu], *rates: float, env: dict[str, str] | None = None) -> list[Node]:
    return [machine(f"n{index}", cards, *rates, env=env) for index in range(count)]


@pytest.mark.parametrize(
    ("nodes", "cards", "rates", "reached", "percent"),
    [
        (4, gpus(8, H200, links()), [400.0] * 8, 365.0, 91),  # p5en, forced ring
        (4, gpus(8, B200, links(18, 53125)), [400.0] * 8, 381.8, 95),  # p6-b200
        (8, h100(), [400.0] * 8, 386.0, 97),  # InfiniBand NDR
        (2, gpus(8, "NVIDIA A100-SXM4-80GB", links(12), NO_FABRIC, 4), [100.0] * 16, 189.6, 95),  # RoCE
        (248, gpus(8, H200, links()), [400.0] * 8, 350.0, 88),
    ],
)
def test_what_published_clusters_reached(
    nodes: int, cards: list[Gpu], rates: list[float], reached: float, percent: int
) -> None:
    limits = of("all_reduce", *several(nodes, cards, *rates))
    assert limits.usual is not None
    assert 100 * reached / limits.usual == pytest.approx(percent, abs=0.6)
    assert reached < limits.best
    assert limits.limit is not None
    assert limits.best <= limits.limit


def test_two_nodes_pass_line_rate_and_no_bound() -> None:
    """NVLSTree on two p5en nodes reached 486.8 where the NICs of a node carry 400."""
    limits = of("all_reduce", *several(2, gpus(8, H200, links()), *[400.0] * 8))
    assert limits.usual is not None
    assert limits.usual <= 400 < limits.best == pytest.approx(510.8, abs=0.1)
    assert limits.limit == pytest.approx(750)


def test_switches_that_reduce_raise_the_bound_where_they_are_asked_for() -> None:
    env = {"NCCL_COLLNET_ENABLE": "1"}
    plain, collnet = (of("all_reduce", *several(8, h100(), *[100.0] * 8, env=e)) for e in (None, env))
    assert plain.best == pytest.approx(formulas.outside(100, 64, 8))
    assert collnet.best == pytest.approx(formulas.in_network(100, 64))


def test_one_gpu_sends_over_its_own_pcie_alone() -> None:
    """One GPU behind four 400 Gb/s NICs reached 41 to 50 of 55 (nccl-tests#232)."""
    limits = of("all_reduce", *several(2, h100(1), *[400.0] * 4), own=1)
    assert limits.usual == pytest.approx(55.4, abs=0.1)
    assert "1 GPU over PCIe" in limits.basis


def test_a_nic_is_capped_by_its_slot() -> None:
    slot = PciDevice(
        name="0000:00:00.0", kind="nic", link=PcieLink(gts=16.0, width=8, most_gts=32.0, most_width=16)
    )
    nodes = [machine(name, h100(1), 400.0, fabric=fabric([slot])) for name in ("a", "b")]
    assert of("all_reduce", *nodes, own=1).usual == pytest.approx(13.86, abs=0.01)


def test_the_weakest_node_sets_the_pace_and_is_named() -> None:
    limits = of("all_gather", machine("a", h100(), *[400.0] * 8), machine("b", h100(), *[400.0] * 4))
    assert limits.usual == 200
    assert limits.basis.startswith("4 x 400 Gb/s a node, b the least")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([25.0, 100.0, 200.0, 400.0]), min_size=1, max_size=8),
    st.sampled_from([25.0, 100.0, 200.0, 400.0]),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]),
    st.integers(2, 9),
)
def test_another_rail_never_lowers_a_bound(rates: list[float], more: float, op: str, count: int) -> None:
    few, many = (of(op, *several(count, h100(), *given_rates)) for given_rates in (rates, [*rates, more]))
    assert few.best <= many.best
    assert (few.limit or 0) <= (many.limit or 0)
    assert (few.usual or 0) <= (many.usual or 0)
    assert few.limit is not None
    assert (few.usual or 0) <= few.best <= few.limit + 1e-9


def test_one_node_with_a_switch() -> None:
    reduced, gathered = (of(op, machine("a", h100())) for op in ("all_reduce", "all_gather"))
    assert (reduced.algorithm, round(reduced.usual or 0)) == ("NVLS", 477)
    assert round(gathered.usual or 0) == 369
    off = of("all_reduce", machine("a", h100(), env={"NCCL_NVLS_ENABLE": "0"}))
    assert (off.algorithm, round(off.usual or 0)) == ("ring", 369)
    down = of("all_gather", machine("a", gpus(8, H200, links(down=[3, 4]))))
    assert down.usual == pytest.approx(0.82 * 400)


@pytest.mark.parametrize(
    ("cards", "limit", "why"),
    [
        (gpus(2, "NVIDIA H100 NVL", links(12), NO_FABRIC), 300, "without NVSwitch"),
        (gpus(8, "NVIDIA L40S", NO_FABRIC, NO_FABRIC, 4), 27.7, "without NVLink"),
        (h100(2), 450 * 2 / 3, "2 GPUs of a node"),
        (gpus(8, "NVIDIA R300", links()), 700, "R300"),
    ],
)
def test_where_no_sound_node_is_published_there_is_a_limit_alone(cards: list[Gpu], limit: float, why: str) -> None:
    limits = of("all_reduce", machine("a", cards), own=len(cards))
    assert limits.usual is None
    assert why in limits.unusual
    assert limits.limit == pytest.approx(limit, rel=0.002)


UNREAD = Unread("denied", "not for this user")
RACK = NvFabric(state="completed", health="healthy", cluster="8f0c2e9a-1", clique=7)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (several(2, gpus(8, H200, UNREAD), *[400.0] * 8), "the NVLinks of GPU 0 of n0 could not be read"),
        ([machine("a", h100(), 400.0), machine("b", h100())], "some nodes would use RDMA"),
        (several(2, gpus(8, "NVIDIA GB200", links(18, 53125), RACK), 400.0), "joins the GPUs of all nodes"),
        ([machine(n, h100(), plugins=["libnccl-net.so"]) for n in "ab"], "a network plugin (libnccl-net.so)"),
        ([machine(n, h100(), rdma=UNREAD) for n in "ab"], "the HCAs of a could not be read"),
        ([machine(n, h100(), interface=nic("eth0", "10.1.0.1/24", speed_mbit=UNREAD)) for n in "ab"], "no speed"),
    ],
)
def test_what_is_not_known_gives_no_bound_and_the_reason(nodes: list[Node], why: str) -> None:
    reason = on(*nodes)
    assert isinstance(reason, str)
    assert why in reason


def test_some_gpus_of_a_node_do_not_tell_which_nics_serve_them() -> None:
    limits = of("all_reduce", *several(2, h100(), *[400.0] * 8), own=2)
    assert limits.usual is None
    assert "2 of 8 GPUs" in limits.unusual


def eth(speed_mbit: int | Unread) -> Interface:
    return nic("eth0", "10.1.0.17/24", speed_mbit=speed_mbit)


def saw(node: str, peer: str, gbit: float) -> NodeReach:
    """A stream that had no core for two thirds of its time: what it might have carried is no bound."""
    burst = Burst(bytes=int(gbit * 0.2e9 / 8), seconds=0.2, starved=0.66)
    address = f"10.1.0.{ord(node)}"
    seen = PeerReach(peer=peer, address=f"10.1.0.{ord(peer)}", bursts=[burst])
    return NodeReach(node=node, interface="eth0", address=address, mtu=1500, peers=[seen])


@pytest.mark.parametrize(
    ("speed", "bursts", "usual", "limit"),
    [
        (10_000, (9.3, 9.3), 1.25, True),
        (10_000, (0.09, 9.3), 0.01125, False),
        (Unread("absent", "virtual"), (0.1, 0.1), 0.0125, False),
        (100_000, (17.0, 17.0), None, True),
    ],
)
def test_sockets(speed: int | Unread, bursts: tuple[float, float], usual: float | None, limit: bool) -> None:
    nodes = [machine(name, [], interface=eth(speed)) for name in "ab"]
    reach = [saw("a", "b", bursts[0]), saw("b", "a", bursts[1])]
    shared = on(*nodes, own=2, backend="gloo", reach=reach)
    assert isinstance(shared, Ground), shared
    limits = bound(shared, "all_reduce")
    assert limits is not None
    assert limits.usual == (None if usual is None else pytest.approx(usual))
    assert (limits.limit is not None) is limit


@settings(max_examples=60, deadline=None)
@given(
    st.floats(5, 5000),
    st.floats(0.01, 800),
    st.floats(0, 0.05),
    st.sampled_from(["all_reduce", "all_gather", "broadcast"]),
    st.randoms(use_true_random=False),
)
def test_the_fit_finds_what_was_planted(
    latency: float, busbw: float, noise: float, op: str, chance: random.Random
) -> None:
    rows = [
        row(op, collective.bytes, collective.time_us.p50 * (1 + chance.uniform(-noise, noise)), 2, 16)
        for collective in curve(op, 2, 16, busbw, latency)
        if collective.time_us
    ]
    line = fit(rows)
    assert line is not None
    assert line.busbw_gb_s == pytest.approx(busbw, rel=2.5 * noise + 0.01)
    if latency > 20 * 2**10 / busbw / 1e3:  # else the smallest message does not show it
        assert line.latency_us == pytest.approx(latency, rel=2.5 * noise + 0.01)
    assert line.median_error <= noise + 0.01


def test_one_disturbed_row_does_not_move_the_fit() -> None:
    rows = curve("all_reduce", 2, 16, 190.0, 40.0)
    size = rows[3]
    assert size.time_us
    rows[3] = row("all_reduce", size.bytes, 20 * size.time_us.p50, 2, 16)
    line = fit(rows)
    assert line is not None
    assert line.busbw_gb_s == pytest.approx(190, rel=0.03)
    assert line.latency_us == pytest.approx(40, rel=0.03)
    assert line.worst_error > 0.5


def test_a_fit_takes_three_sizes_and_time_that_grows() -> None:
    rows = curve("all_reduce", 2, 16, 190.0)
    assert fit(rows[:2]) is None
    assert fit([row("all_reduce", size, 1e4 / size, 2, 16) for size in (1024, 2048, 4096)]) is None


def test_only_large_rows_have_an_expectation() -> None:
    """At 16 MiB a healthy cluster of four nodes shows 64 GB/s: latency, and nothing else."""
    rows = curve("all_reduce", 4, 32, 386.0, 420.0)
    cluster = job(*several(4, h100(), *[400.0] * 8), rows=rows)
    completed = expect.completed(cluster)
    large = [row.bytes for row in completed.collectives if row.expected_gb_s]
    assert large == [2**30, 2**34]
    assert completed.expectation is not None
    assert completed.expectation.fits[0].latency_us == pytest.approx(420, rel=0.01)
    assert "8 x 400 Gb/s a node" in completed.expectation.basis
