"""Which HCAs carry the data, by facts alone; test_nccl_judges.py asks NCCL's own library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ncclcheck.probes.facts import Fabric, Hca, Nccl, PciDevice, PcieLink, replace
from ncclcheck.reports.subjects.nccl import wiring
from ncclcheck.reports.subjects.nccl.carrying import carrying, choice
from tests.helpers.clusters import node
from tests.helpers.hcas import GPUS, function, hca, port, rdma

NARROW = PcieLink(gts=8.0, width=16, most_gts=8.0, most_width=16)


def _names(*cards: Hca, pci: list[PciDevice]) -> list[str]:
    machine = node("a", rdma=rdma(*cards), fabric=Fabric(pci=pci))
    return [used.name for used in carrying(machine, wiring.choice(machine).used)]


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


def _judged(*cards: Hca, pci: list[PciDevice], **changes: Any) -> list[str]:
    """The names of the ports that the rules judge."""
    made = node("a", rdma=rdma(*cards, **changes), fabric=Fabric(pci=pci))
    return [used.name for used in choice(made).used]


def test_a_card_of_storage_is_not_judged() -> None:
    cards = [hca(0), hca(2, board="another")]
    assert _judged(*cards, pci=_pci("0000:1a:00.0", "0000:9a:00.0")) == ["mlx5_0"]


def test_a_rail_with_a_slow_link_is_judged_though_nccl_takes_another() -> None:
    cards = [hca(0, port(rate_gbit=25.0)), hca(2)]
    pci = _pci("0000:1a:00.0", "0000:9a:00.0", gpus=[GPUS[0], GPUS[2]])
    assert _names(*cards, pci=pci) == ["mlx5_2"]
    assert _judged(*cards, pci=pci) == ["mlx5_0", "mlx5_2"]


def test_a_slow_card_of_another_board_is_no_rail_with_a_slow_link() -> None:
    cards = [hca(0, port(rate_gbit=25.0), board="another"), hca(2)]
    pci = _pci("0000:1a:00.0", "0000:9a:00.0", gpus=[GPUS[0], GPUS[2]])
    assert _judged(*cards, pci=pci) == ["mlx5_2"]


def test_a_virtual_function_beside_its_physical_one_is_no_card() -> None:
    virtual = replace(function("0000:1a:00.0", "nic"), name="0000:1a:00.2", virtual_function=True)
    cards = [hca(0), hca(20, pci="0000:1a:00.2", uverbs="uverbs20")]
    assert _judged(*cards, pci=[*_pci("0000:1a:00.0"), virtual]) == ["mlx5_0"]
    assert _judged(cards[1], pci=[*_pci(), virtual]) == ["mlx5_20"]


def test_what_cannot_be_opened_is_not_judged_unless_nothing_can() -> None:
    pci = _pci("0000:1a:00.0", "0000:1b:00.0")
    assert _judged(hca(0), hca(1), pci=pci, device_files=["uverbs1"]) == ["mlx5_1"]
    assert _judged(hca(0), hca(1), pci=pci, device_files=["uverbs7"]) == ["mlx5_0", "mlx5_1"]


def test_where_a_place_is_not_known_all_may_carry() -> None:
    assert _names(hca(0), hca(1), pci=_pci("0000:1a:00.0")) == ["mlx5_0", "mlx5_1"]


def test_nccls_topology_file_says_what_a_flat_tree_does_not() -> None:
    """A virtual machine with a card for storage that is as fast as that of the GPU."""
    here, there = "0000:1a:00.0", "0000:9a:00.0"
    pci = [
        PciDevice(name=name, kind=kind, path=[])
        for name, kind in ((GPUS[0], "gpu"), (here, "nic"), (there, "nic"))
    ]
    places = {GPUS[0]: ["s", "s>0"], here: ["s", "s>1"], there: []}
    devices = [PciDevice(name=name, kind="", root="cpu0", path=path, numa_node=0) for name, path in places.items()]
    bare = node("a", rdma=rdma(hca(0), hca(2)), fabric=Fabric(pci=pci, hypervisor=True))
    given = replace(bare, nccl=Nccl(topology=devices))
    names = [[used.name for used in carrying(each, wiring.choice(each).used)] for each in (bare, given)]
    assert names == [["mlx5_0", "mlx5_2"], ["mlx5_0"]]
