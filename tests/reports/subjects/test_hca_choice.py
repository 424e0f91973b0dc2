"""Which HCAs, ports and GIDs NCCL takes: its own rules by version."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import Gid
from ncclcheck.reports.subjects.nccl.hca import (
    HcaEntry,
    UsedPort,
    automatic_gid,
    gid_choice,
    hca_choice,
    parse_hca,
)
from ncclcheck.reports.subjects.nccl.variables import Version
from tests.helpers.clusters import ABSENT, DENIED
from tests.helpers.hcas import gid, hca, port, roce, table

OLD, AUTO, LATER, NEW = (2, 20, 5), (2, 21, 5), (2, 22, 3), (2, 30, 7)


@pytest.mark.parametrize(
    ("value", "entries", "exclude", "exact"),
    [
        ("", (), False, False),
        ("mlx5", (HcaEntry("mlx5"),), False, False),
        ("=mlx5_0,mlx5_1", (HcaEntry("mlx5_0"), HcaEntry("mlx5_1")), False, True),
        ("^=mlx5_3", (HcaEntry("mlx5_3"),), True, True),
        ("^mlx5_3:2", (HcaEntry("mlx5_3", 2),), True, False),
        ("mlx5_0:1:0:1", (HcaEntry("mlx5_0", 1),), False, False),
        ("mlx5_0::0:0", (HcaEntry("mlx5_0"),), False, False),
        ("mlx5_0:x", (HcaEntry("mlx5_0", 0),), False, False),
        ("mlx5_0, mlx5_1", (HcaEntry("mlx5_0"), HcaEntry(" mlx5_1")), False, False),
        (",,mlx5_0,", (HcaEntry("mlx5_0"),), False, False),
        ("=^mlx5_0", (HcaEntry("^mlx5_0"),), False, True),
    ],
)
def test_grammar(value: str, entries: tuple[HcaEntry, ...], exclude: bool, exact: bool) -> None:
    pattern = parse_hca(value)
    assert (pattern.entries, pattern.exclude, pattern.exact) == (entries, exclude, exact)


@pytest.mark.parametrize("value", ["mlx5_0:", "mlx5_0::0:0"])
def test_an_empty_port_is_port_0_where_no_rail_may_follow(value: str) -> None:
    assert parse_hca(value, (2, 27, 5)).entries == (HcaEntry("mlx5_0", 0),)


def test_no_more_than_32_entries() -> None:
    pattern = parse_hca(",".join(f"mlx5_{number}" for number in range(40)))
    assert (len(pattern.entries), pattern.lost) == (32, 8)


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("", ["mlx5_0", "mlx5_1", "mlx5_10"]),
        ("mlx5_1", ["mlx5_1", "mlx5_10"]),
        ("=mlx5_1", ["mlx5_1"]),
        ("^mlx5_1", ["mlx5_0"]),
        ("^=mlx5_1", ["mlx5_0", "mlx5_10"]),
        ("mlx5_0:1", ["mlx5_0"]),
        ("mlx5_0:2", []),
        ("^", []),
        ("=", ["mlx5_0", "mlx5_1", "mlx5_10"]),
        ("ib", []),
    ],
)
def test_selection(value: str, taken: list[str]) -> None:
    devices = [hca(0), hca(1), hca(10)]
    assert list(hca_choice(devices, {"NCCL_IB_HCA": value}, NEW).names) == taken


def test_only_active_ports_of_known_link_layers() -> None:
    devices = [
        hca(0, port(state="DOWN")),
        hca(1, port(), port(name="2", state="INIT")),
        hca(2, port(link_layer="Unspecified")),
        hca(3, port(state=DENIED)),
        hca(4, roce()),
    ]
    choice = hca_choice(devices, {}, NEW)
    assert set(choice.names) == {"mlx5_1:1", "mlx5_4"}
    assert [used_port.name for used_port in choice.inactive] == ["mlx5_0", "mlx5_1:2"]
    assert [used_port.name for used_port in choice.unseen] == ["mlx5_3"]


@pytest.mark.parametrize(
    ("value", "off"), [("1", True), ("0", False), ("true", False), ("", False), ("0x1", True)]
)
def test_disabled(value: str, off: bool) -> None:
    assert (hca_choice([hca(0)], {"NCCL_IB_DISABLE": value}, NEW).used == ()) is off


@pytest.mark.parametrize(
    ("version", "order"),
    [((2, 29, 6), ["mlx5_0", "mlx5_2"]), ((2, 29, 7), ["mlx5_2", "mlx5_0"]), (None, ["mlx5_2", "mlx5_0"])],
)
def test_order_is_that_of_the_pci_tree_since_2_29_7(version: Version | None, order: list[str]) -> None:
    devices = [hca(0, pci="0000:9a:00.0"), hca(2, pci="0000:1a:00.0")]
    paths = {"0000:9a:00.0": ("0000:95:01.0",), "0000:1a:00.0": ("0000:15:01.0",)}
    assert list(hca_choice(devices, {}, version, paths).names) == order


TABLE = table("10.1.0.17")
TWO = [*table("10.1.0.17"), gid(4, "10.9.0.17", "IB/RoCE v1"), gid(5, "10.9.0.17")]
SIX = [
    gid(0, kind="IB/RoCE v1"),
    gid(1),
    Gid(index=2, gid="2001:0db8:0000:0000:0000:0000:0000:0017", type="RoCE v2"),
]


@pytest.mark.parametrize(
    ("gids", "env", "version", "index"),
    [
        (TABLE, {}, OLD, 0),
        (TABLE, {"NCCL_IB_GID_INDEX": "3"}, OLD, 3),
        (TABLE, {"NCCL_IB_GID_INDEX": "-1"}, OLD, -1),
        (TABLE, {}, AUTO, 3),
        (TABLE, {}, NEW, 3),
        (TABLE, {}, None, 3),
        (TABLE, {"NCCL_IB_GID_INDEX": "-1"}, AUTO, 3),
        (TABLE, {"NCCL_IB_GID_INDEX": "1"}, NEW, 1),
        (TABLE, {"NCCL_IB_ROCE_VERSION_NUM": "1"}, NEW, 2),
        (TWO, {}, NEW, 3),
        (TWO, {"NCCL_IB_ADDR_RANGE": "10.9.0.0/16"}, NEW, 5),
        (TWO, {"NCCL_IB_ADDR_RANGE": "10.8.0.0/16"}, NEW, 0),
        (TWO, {"NCCL_IB_ADDR_RANGE": "nonsense"}, NEW, 3),
        (SIX, {}, NEW, 0),
        (SIX, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, NEW, 2),
        ([], {}, NEW, 0),
        ([gid(7, "10.1.0.1")], {}, NEW, 7),
    ],
)
def test_gid_by_version(gids: list[Gid], env: dict[str, str], version: Version | None, index: int) -> None:
    device = hca(0, roce(gids=gids))
    choice = gid_choice(UsedPort(device, device.ports[0]), env, version)  # type: ignore[index]
    assert choice is not None
    assert choice.index == index
    assert choice.gid is None or choice.gid.index == index


@pytest.mark.parametrize(("version", "index"), [(OLD, 3), (AUTO, 3), (LATER, 0), (NEW, 0)])
def test_the_variable_is_not_for_infiniband_since_2_22(version: Version, index: int) -> None:
    device = hca(0)
    choice = gid_choice(UsedPort(device, device.ports[0]), {"NCCL_IB_GID_INDEX": "3"}, version)  # type: ignore[index]
    assert choice is not None
    assert choice.index == index


def test_a_gid_of_unknown_type_is_not_chosen_over_a_known_one() -> None:
    gids = [gid(0, "10.1.0.1"), gid(1, "10.1.0.2", ABSENT)]  # type: ignore[arg-type]
    assert automatic_gid(gids, {}) == 0


@pytest.mark.parametrize(("name", "number"), [("1", 1), ("99999", 99999), ("9" * 5000, 0), ("²", 0), ("", 0)])
def test_the_number_of_a_port_is_bounded(name: str, number: int) -> None:
    (used,) = hca_choice([hca(0, port(name=name))], {}, NEW).used
    assert used.number == number
