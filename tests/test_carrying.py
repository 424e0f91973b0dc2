"""Which HCAs carry the data, by facts alone; test_nccl_judges.py asks NCCL's own library."""

from __future__ import annotations

from collections.abc import Sequence

from ncclcheck.probes.facts import Fabric, Hca, Link, PciDevice, replace
from ncclcheck.reports import wiring
from ncclcheck.reports.carrying import carrying
from tests.clusters import node
from tests.hcas import GPUS, function, hca, port, rdma

NARROW = Link(gts=8.0, width=16, most_gts=8.0, most_width=16)


def _names(*cards: Hca, pci: list[PciDevice]) -> list[str]:
    machine = node("a", rdma=rdma(*cards), fabric=Fabric(pci=pci))
    return [one.name for one in carrying(machine, wiring.choice(machine).used)]


def _pci(*names: str, gpus: Sequence[str] = GPUS[:1]) -> list[PciDevice]:
    return [*(function(name, "gpu") for name in gpus), *(function(name, "nic") for name in names)]


def test_each_gpu_has_the_card_of_its_switch() -> None:
    cards = [hca(0), replace(hca(2), pci="0000:9a:00.0")]
    assert _names(*cards, pci=_pci("0000:1a:00.0", "0000:9a:00.0", gpus=[GPUS[0], GPUS[2]])) == [
        "mlx5_0",
        "mlx5_2",
    ]


def test_a_slow_card_beside_a_fast_one_carries_nothing() -> None:
    cards = [hca(0), hca(1, port(rate_gbit=100.0))]
    assert _names(*cards, pci=_pci("0000:1a:00.0", "0000:1b:00.0")) == ["mlx5_0"]


def test_a_fast_card_of_the_other_socket_goes_before_a_slow_near_one() -> None:
    cards = [hca(0, port(rate_gbit=25.0)), hca(2)]
    assert _names(*cards, pci=_pci("0000:1a:00.0", "0000:9a:00.0")) == ["mlx5_2"]


def test_a_narrow_slot_makes_a_fast_card_slow() -> None:
    cards = [hca(0), hca(1, port(rate_gbit=200.0))]
    fast, near = _pci("0000:1a:00.0", "0000:1b:00.0")[1:]
    pci = [*_pci(), replace(fast, link=NARROW), near]
    assert _names(*cards, pci=pci) == ["mlx5_1"]


def test_where_a_place_is_not_known_all_may_carry() -> None:
    assert _names(hca(0), hca(1), pci=_pci("0000:1a:00.0")) == ["mlx5_0", "mlx5_1"]
