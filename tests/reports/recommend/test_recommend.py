"""Recommended settings: for every rule a cluster that calls for it and one that does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Bound,
    Cluster,
    Collective,
    ConfFile,
    ConfLine,
    Connections,
    Gpu,
    Gpus,
    Job,
    Library,
    Measurements,
    NamedFile,
    Nccl,
    Node,
    NvFabric,
    PluginFile,
    Port,
    Resolution,
    Stack,
    Transport,
    replace,
)
from ncclcheck.reports.judgement.findings import State, Verdict, Where, seen, warn, you
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.recommend import RULES, _changes_nothing, advice, recommend
from ncclcheck.reports.recommend.advice import Proposal, SettingRule
from ncclcheck.reports.recommend.settings.unseen import UNSEEN
from ncclcheck.reports.recommend.site import Site
from tests.helpers import stories
from tests.helpers.cards import card
from tests.helpers.clusters import ABSENT, DENIED, LO, nic, node
from tests.helpers.hcas import GPUS, fabric, gpu_node, hca, port, rdma, roce, tree

PCIE = {"nvlinks": ABSENT, "fabric": ABSENT}
SHM, DIRECT = "SHM/direct/direct", "P2P/CUMEM"
BOARD = "MT_0000000001"


def raised(*codes: str) -> list[Verdict]:
    """Verdicts that warn."""
    fix, evidence = [you("Mend it.")], [seen("x", 1)]
    finding = warn(Where(node="a"), "no core is left", why="Slow.", owner="node", evidence=evidence, fix=fix)
    return [Verdict(code=code, title="t", state=State.WARN, findings=[finding]) for code in codes]


def cards(**changes: Any) -> list[Gpu]:
    return [card(index, **changes) for index in range(4)]


def host(name: str = "a", env: dict[str, str] | None = None, **facts: Any) -> Node:
    """A healthy node with four H100 and two InfiniBand ports. hcas, gpus: lists; nccl: facts of Nccl."""
    hcas, listed = facts.pop("hcas", [hca(0), hca(1)]), facts.pop("gpus", cards())
    version = facts.pop("version", "2.27.3")
    nccl = {
        "loaded": Library(path="/x", origin="pip package", version=version),
        "plugins": [],
        "conf_files": [],
        "known_names": [],
        **facts.pop("nccl", {}),
    }
    number = facts.pop("number", 17 + ord(name[0]) - ord("a"))
    given: dict[str, Any] = {
        "gpus": Gpus(pci=GPUS, devices=["nvidia0"], usable=4, cards=listed),
        "nccl": Nccl(**nccl),
        "address": f"10.1.0.{number}/24",
        "stack": Stack(torch=facts.pop("torch", "2.8.0")),
    }
    devices = rdma(*hcas) if isinstance(hcas, list) else hcas
    return gpu_node(name, devices, env=env, **{**given, **facts})


def two(env: dict[str, str] | None = None, **facts: Any) -> list[Node]:
    return [host(name, env, **facts) for name in ("a", "b")]


def site(
    nodes: Node | Sequence[Node], *codes: str, log: Sequence[str] = (), network: str = "", **more: Any
) -> Site:
    """A cluster with these nodes, codes that warn, and NCCL's log: kinds of connections, and the network."""
    nodes = [nodes] if isinstance(nodes, Node) else [*nodes]
    kinds = [Connections(kind=k, peers="inter" if k.startswith("NET") else "intra", count=1) for k in log]
    ranks = [
        Transport(
            rank=rank,
            node=of.name,
            source="log",
            connections=kinds,
            network=network or DENIED,
            warnings=["NVLS: x"],
        )
        for rank, of in enumerate(nodes)
    ]
    measured = Measurements(transport=ranks if log or network else [], collectives=more.pop("rows", []))
    job = more.pop("job", Job(nodes_asked=len(nodes), backend="nccl"))
    return Site(Cluster(command="bench", nodes=nodes, job=job, measurements=measured), raised(*codes))


def bound(*masks: str) -> Site:
    """Nodes whose GPUs are on both sockets, with these masks of cores and of memory, judged by the rules."""
    story = stories.load("bound-to-the-first-socket")
    (node,) = story.nodes
    pairs = [Bound(cpus=cpus, mems=mems) for cpus, mems in zip(masks[::2], masks[1::2], strict=True)]
    nodes = [replace(node, name=f"n{i}", fabric=replace(node.fabric, bound=b)) for i, b in enumerate(pairs)]
    cluster = replace(story.cluster, nodes=nodes)
    return Site(cluster, judge(cluster))


def env(rule: str, name: str, bad: str, good: str | None, action: str = "unset", **facts: Any) -> Any:
    """A setting that is taken away from one node, and another value of it (None: not set) that is not."""
    codes = facts.pop("codes", ())
    other = {} if good is None else {name: good}
    return (
        rule,
        f"{action} {name}",
        site(host(env={name: bad}, **facts), *codes),
        site(host(env=other, **facts), *codes),
    )


def dual(used: str, other: Port | None = None) -> Node:
    """Both functions of one card, of which one is named."""
    hcas = [hca(0, pci="0000:1a:00.0"), hca(1, other or port(), pci="0000:1a:00.1")]
    return host(env={"NCCL_IB_HCA": used}, hcas=hcas)


def ethernet(name: str, *interfaces: Any, hcas: Any = ABSENT, **facts: Any) -> Node:
    """A node with GPUs and these interfaces."""
    return replace(host(name, hcas=hcas, **facts), network=node(name, LO, *interfaces).network)


def slingshots(*plugins: str) -> list[Node]:
    return [
        ethernet(name, nic("hsn0", f"10.2.0.{number}/24"), nccl={"plugins": [*plugins]})
        for number, name in ((17, "a"), (18, "b"))
    ]


def over_tcp(speed: int, settings: dict[str, str] | None = None, **changes: Any) -> list[Node]:
    return [
        ethernet(n, nic("eth0", f"10.1.0.{i}/24", speed_mbit=speed, **changes), env=settings)
        for i, n in ((17, "a"), (18, "b"))
    ]


def busbw(*pairs: tuple[int, float]) -> list[Collective]:
    return [
        Collective(op="all_reduce", bytes=size, dtype="float32", nodes=2, ranks=8, busbw_gb_s=rate)
        for size, rate in pairs
    ]


def bridges(settings: dict[str, str] | None = None, **facts: Any) -> list[Node]:
    """A bridge comes before the card on both nodes."""
    return [
        ethernet(
            n, nic("br-4f", "172.18.0.1/16", kind="bridge"), nic("eth1", f"10.1.0.{i}/24"), env=settings, **facts
        )
        for i, n in ((17, "a"), (18, "b"))
    ]


def plain(settings: dict[str, str] | None = None) -> list[Node]:
    return over_tcp(10_000, settings)


def bonds(settings: dict[str, str]) -> list[Node]:
    bond = {"kind": "bond", "members": ["eth0", "eth1"]}
    return [
        ethernet(n, nic("eth0"), nic("eth1"), nic("bond0", f"10.1.0.{i}/24", **bond), env=settings)
        for i, n in ((17, "a"), (18, "b"))
    ]


def families(first: str, second: str) -> list[Node]:
    """One subnet of IPv6, and an IPv4 address each."""
    return [
        ethernet("a", nic("eth0", first, "fd00::1/64")),
        ethernet("b", nic("eth0", second, "fd00::2/64")),
    ]


def cables(settings: dict[str, str], other: int = 10_000) -> list[Node]:
    """Two cards in a subnet each."""
    machines = []
    for i, name in ((17, "a"), (18, "b")):
        first = nic("eth1", f"10.1.1.{i}/24", speed_mbit=10_000)
        machines.append(ethernet(name, first, nic("eth2", f"10.1.2.{i}/24", speed_mbit=other), env=settings))
    return machines


def virtual(names: list[str], settings: dict[str, str], name: str) -> Node:
    functions = tree({f"0000:1{x}:00.0": {"virtual_function": True} for x in "ab"})
    hcas = [hca(i, name=n) for i, n in enumerate(names)]
    return host(name, settings, hcas=hcas, fabric=fabric(functions))


def roces(settings: dict[str, str] | None = None, version: str = "2.27.3", **second: Any) -> list[Node]:
    """Two nodes with a RoCE port each; changes to the port of the second one."""
    given = {"address": "10.1.0.18", "netdev": "eth0", **second}
    return [
        host("a", settings, hcas=[hca(0, roce("10.1.0.17"))], version=version),
        host("b", settings, hcas=[hca(0, roce(**given))], version=version, address=f"{given['address']}/24"),
    ]


def partitions(*keys: int) -> list[Node]:
    return [host(n, hcas=[hca(0, port(pkeys=[*keys]))]) for n in ("a", "b")]


def below_one_root() -> Any:
    """GPUs and HCAs hang on one host bridge, below no common switch."""
    here = [device for device in tree() if device.kind != "bridge"]
    return fabric([replace(f, root="pci0000:15", path=[f"0000:14:{i:02x}.0"]) for i, f in enumerate(here)])


def cloud(tag: str, **facts: Any) -> list[Node]:
    return two(fabric=fabric(asset_tag=tag), **facts)


def efa(
    settings: dict[str, str] | None = None,
    *plugins: str,
    version: str = "1.16.3",
    machine: str = "p5.48xlarge",
    name: str = "a",
    nccl: str = "2.28.3",
) -> Node:
    """A machine of Amazon's with EFA, and its plugin of this version."""
    files = [PluginFile(name="x", path=path, product=f"aws-ofi-nccl {version}") for path in plugins]
    return host(
        name,
        settings,
        hcas=[hca(0, name="rdmap0", driver="efa", model="efa0")],
        nccl={"plugins": [*plugins], "plugin_files": files},
        fabric=fabric(product=f"Amazon EC2 {machine}"),
        version=nccl,
    )


OFI, SHARP, GIB_PLUGIN = (
    "/opt/ofi/libnccl-net.so",
    "/opt/hpcx/sharp/libnccl-net.so",
    "/usr/local/gib/libnccl-net.so",
)
MIXED = [hca(0), hca(1), hca(2, roce("10.9.0.1"), name="mlx5_bond_0", board=BOARD)]
SLOW = [hca(0), hca(1), hca(2, port(rate_gbit=100.0), board=BOARD)]
PRO, RTX = {"model": "NVIDIA RTX PRO 6000", **PCIE}, {"model": "NVIDIA GeForce RTX 4090", **PCIE}
RACK = {"fabric": NvFabric(state="completed", health="healthy", cluster="c", clique=1)}
CONF = [ConfFile(path="/etc/nccl.conf", lines=[ConfLine(line=3, name="export NCCL_IB_TC", value="106")])]
GOOD_CONF = [ConfFile(path="/etc/nccl.conf", lines=[ConfLine(line=3, name="NCCL_IB_TC", value="106")])]
SLINGSHOT = [ethernet("a", nic("eth0", "10.1.0.17/24"), nic("hsn0", "10.2.0.17/24"))]
LOST = [NamedFile(name="NCCL_TOPO_FILE", path="/t.xml", output=False, fits=False)]
LARGE, SMALL = (64 << 20, 1.0), (1 << 20, 4.0)
NODES_OF_8 = [host(n, fabric=fabric(product="Microsoft Corporation Virtual Machine")) for n in "abcdefgh"]
GB300 = cards(model="NVIDIA GB300")
AZURE = fabric(product="Microsoft Corporation Virtual Machine")

# rule, what it says, a cluster that calls for it, one that does not
CASES: list[tuple[str, str, Site, Site]] = [
    ("S1", "set NCCL_SOCKET_IFNAME==eth1", site(bridges(), "NET002"), site(plain())),
    ("S1", "unset NCCL_SOCKET_IFNAME", site(plain({"NCCL_SOCKET_IFNAME": "ens3"}), "NCC007"), site(plain(),
     "NCC007")),
    ("S2", "unset NCCL_SOCKET_IFNAME", site(plain({"NCCL_SOCKET_IFNAME": "eth0"})),
     site(cables({"NCCL_SOCKET_IFNAME": "eth1"}, 100))),
    ("S3", "unset NCCL_SOCKET_IFNAME", site(plain({"NCCL_SOCKET_IFNAME": "lo"})),
     site(plain({"NCCL_SOCKET_IFNAME": "lo"})[:1])),
    ("S4", "unset NCCL_SOCKET_IFNAME", site(bonds({"NCCL_SOCKET_IFNAME": "=eth0"})),
     site(bonds({"NCCL_SOCKET_IFNAME": "=bond0"}))),
    ("S5", "set NCCL_SOCKET_FAMILY=AF_INET6", site(families("10.1.0.1/24", "10.2.0.1/24"), "NET003"),
     site(families("10.1.0.1/24", "10.1.0.2/24"), "NET003")),
    ("S8", "set NCCL_IB_HCA==mlx5_0,mlx5_1", site(two(hcas=MIXED)), site(two())),
    ("S8", "set NCCL_IB_HCA==mlx5_0,mlx5_1", site(two(hcas=SLOW)),
     site(two(hcas=[hca(0), hca(1, port(rate_gbit=100.0))]))),
    ("S6", "unset NCCL_IB_HCA", site(two({"NCCL_IB_HCA": "=ibp1"}), "RDM009"),
     site(two({"NCCL_IB_HCA": "=ibp1"}))),
    ("S7", "set NCCL_IB_HCA==mlx5_1", site(host(env={"NCCL_IB_HCA": "mlx5_1"}, hcas=[hca(1), hca(10)])),
     site(host(env={"NCCL_IB_HCA": "mlx5_1"}, hcas=[hca(1), hca(2)]))),
    ("S9", "unset NCCL_IB_HCA",
     site([virtual([x, y], {"NCCL_IB_HCA": "=mlx5_0"}, n) for n, x, y in (("a", "mlx5_0", "mlx5_1"), ("b",
     "mlx5_4", "mlx5_5"))]),
     site([virtual(["mlx5_0", "mlx5_1"], {"NCCL_IB_HCA": "=mlx5_0"}, n) for n in ("a", "b")])),
    ("R10", "try NCCL_IB_HCA==mlx5_0,mlx5_1", site(dual("=mlx5_0")), site(dual("mlx5"))),
    ("R10", "try NCCL_IB_HCA==mlx5_0,mlx5_1", site(dual("=mlx5_0")),
     site(dual("=mlx5_0", port(rate_gbit=25.0)))),
    ("R1", "unset NCCL_IB_GID_INDEX", site(roces({"NCCL_IB_GID_INDEX": "3"})), site(roces())),
    ("R1", "keep NCCL_IB_GID_INDEX=1", site(roces({"NCCL_IB_GID_INDEX": "1"})),
     site(roces({"NCCL_IB_GID_INDEX": "3"}))),
    ("R2", "set NCCL_IB_GID_INDEX=3", site(roces(version="2.20.5"), "RDM013"), site(roces(), "RDM013")),
    ("R3", "set NCCL_IB_TC=106", site(roces(traffic_class="Global tclass=106")), site(roces())),
    ("R3", "try NCCL_IB_TC=106", site(roces()), site(roces({"NCCL_IB_TC": "41"}))),
    ("R5", "try NCCL_IB_QPS_PER_CONNECTION=4", site(roces(address="10.11.0.18")), site(roces())),
    ("R9", "try NCCL_IB_QPS_PER_CONNECTION=4", site(roces(), "RDM023"), site(two(), "RDM023")),
    ("R19", "set NCCL_IB_PKEY=1", site(partitions(0, 0x8001, 0)), site(partitions(0xFFFF, 0x8001, 0))),
    env("R6", "NCCL_IB_QPS_PER_CONNECTION", "4", "1", "try"),
    env("R7", "NCCL_IB_SPLIT_DATA_ON_QPS", "1", "0", "try"),
    env("R12", "NCCL_IB_TIMEOUT", "14", "18"),
    env("R12", "NCCL_IB_RETRY_CNT", "3", "7"),
    env("R16", "NCCL_PXN_DISABLE", "1", "0", "try"),
    env("R17", "NCCL_IB_ADAPTIVE_ROUTING", "1", "0"),
    ("R18", "try NCCL_IB_SL=1", site(two(gpus=GB300, fabric=AZURE)), site(two(gpus=GB300))),
    ("R18", "try NCCL_IB_SL=1", site(two({"NCCL_IB_ADAPTIVE_ROUTING": "1"})),
     site(two({"NCCL_IB_ADAPTIVE_ROUTING": "1", "NCCL_IB_SL": "3"}))),
    ("R18", "try NCCL_IB_SL=1", site(two({"NCCL_IB_ADAPTIVE_ROUTING": "1"})),
     site(host(env={"NCCL_IB_ADAPTIVE_ROUTING": "1"}))),
    env("R23", "NCCL_NET_GDR_C2C", "1", "0"),
    ("R24", "try NCCL_NET_GDR_LEVEL=PHB", site(two(fabric=below_one_root()), log=["NET/IB"]),
     site(two(fabric=below_one_root()), log=["NET/IB/GDRDMA"])),
    env("R26", "NCCL_IB_PCI_RELAXED_ORDERING", "1", "2"),
    ("R29", "unset NCCL_IB_DISABLE", site(two({"NCCL_IB_DISABLE": "1"})),
     site(host(env={"NCCL_IB_DISABLE": "1"}))),
    ("R30", "try NCCL_COLLNET_ENABLE=1", site(two(nccl={"plugins": [SHARP]})), site(two())),
    ("T1", "try NCCL_SOCKET_NTHREADS=4", site(over_tcp(100_000)), site(over_tcp(100_000, driver="ena"))),
    ("T2", "unset NCCL_SOCKET_NTHREADS", site(host(env={"NCCL_SOCKET_NTHREADS": "4"}), network="IB"),
     site(host(env={"NCCL_SOCKET_NTHREADS": "4"}), network="Socket")),
    ("T4", "try NCCL_SOCKET_NTHREADS", site(plain({"NCCL_SOCKET_NTHREADS": "4"}), rows=busbw(SMALL, LARGE)),
     site(plain({"NCCL_SOCKET_NTHREADS": "4"}), rows=busbw((1 << 20, 1.0), (64 << 20, 4.0)))),
    ("T6", "try NCCL_SOCKET_IFNAME==eth1,eth2", site(cables({"NCCL_SOCKET_IFNAME": "=eth1"})),
     site(cables({"NCCL_SOCKET_IFNAME": "=eth1"}, 1_000))),
    ("T8", "unset NCCL_ALGO", site([host("a", {"NCCL_ALGO": "allreduce:tree"}), host("b")]),
     site(two({"NCCL_ALGO": "allreduce:tree"}))),
    ("P21", "unset NCCL_IB_TC", site(host(env={"NCCL_IB_TC": "106"}, hcas=ABSENT)),
     site(host(env={"NCCL_IB_TC": "106"}))),
    env("I1", "NCCL_P2P_DISABLE", "1", "0"),
    ("I2", "try NCCL_P2P_DISABLE", site(host(env={"NCCL_P2P_DISABLE": "1"}, gpus=cards(**PCIE))),
     site(host(env={"NCCL_P2P_DISABLE": "1"}, gpus=cards(**PCIE)), "BEN001")),
    ("I3", "set NCCL_P2P_DISABLE=1", site(host(gpus=cards(**RTX)), "BEN001"), site(host(gpus=cards(**RTX)))),
    ("I4", "try NCCL_P2P_LEVEL=SYS", site(host(gpus=cards(**PCIE)), log=[SHM]),
     site(host(gpus=cards(**PCIE)), log=[DIRECT])),
    ("I5", "try NCCL_SHM_USE_CUDA_MEMCPY=1", site(host(gpus=cards(**PCIE)), log=[SHM]),
     site(host(gpus=cards(**PCIE), version="2.30.7"), log=[SHM])),
    ("I6", "try NCCL_ALGO=allreduce:tree", site(two(gpus=cards(**PRO))), site(two(gpus=cards(**PCIE)))),
    env("I7", "NCCL_SHM_DISABLE", "1", "0"),
    env("I9", "NCCL_CUMEM_HOST_ENABLE", "0", "1"),
    ("I9", "set NCCL_CUMEM_HOST_ENABLE=0", site(host(version="2.26.2"), "CON004"), site(host(), "CON004")),
    env("I10", "NCCL_CUMEM_ENABLE", "0", "1", "try"),
    ("I10", "unset NCCL_CUMEM_ENABLE", site(host(env={"NCCL_CUMEM_ENABLE": "0", "NCCL_MNNVL_ENABLE": "1"})),
     site(host(env={"NCCL_CUMEM_ENABLE": "1", "NCCL_MNNVL_ENABLE": "1"}))),
    env("I11", "NCCL_NVLS_ENABLE", "1", "2", "try"),
    ("I12", "try NCCL_NVLS_ENABLE=0", site(host(), "GPU020"), site(host(gpus=cards(**PCIE)), "GPU020")),
    env("I17", "NCCL_MNNVL_ENABLE", "0", "1", "try", gpus=cards(**RACK)),
    ("I19", "unset NCCL_TOPO_FILE", site(host(env={"NCCL_TOPO_FILE": "/t.xml"}, nccl={"named_files": LOST})),
     site(host(env={"NCCL_TOPO_FILE": "/t.xml"}, nccl={"named_files": []}))),
    ("I20", "try NCCL_IGNORE_CPU_AFFINITY=1", bound("0-47", "0-1"), bound("0-95", "0")),
    # The memory of one node comes before the cores of another.
    ("I20", "try NCCL_IGNORE_CPU_AFFINITY=1", bound("0-95", "0", "0-47", "0-1"), bound("0-95", "0")),
    ("I26", "set NCCL_NET_OVERHEAD=1000", site(host(version="2.19.3"), "NCC036"), site(host(), "NCC036")),
    ("L1", "set NCCL_DEBUG=WARN", site(host(env={"NCCL_DEBUG": "INFO"})), site(host(env={"NCCL_DEBUG": "WARN"}))),
    env("L2", "NCCL_ALGO", "Tree", "Ring"),
    env("L2", "NCCL_ALGO", "Ring", "^NVLS", "try"),
    env("L2", "NCCL_ALGO", "Tree,Ring", "allreduce:tree", "try"),
    env("L3", "NCCL_PROTO", "LL128", "Simple", gpus=cards(**PCIE)),
    env("L3", "NCCL_PROTO", "Simple", "allreduce:simple", "try"),
    env("L4", "NCCL_BUFFSIZE", "8388608", None, "try"),
    env("L5", "NCCL_CHUNK_SIZE", "0x100000", "524288"),
    env("L6", "NCCL_MIN_NCHANNELS", "16", None, "try"),
    env("L7", "NCCL_NTHREADS", "256", None),
    env("L8", "NCCL_LL128_BUFFSIZE", "122880", None),
    env("L9", "NCCL_TIMEOUT", "3600", None),
    env("L10", "NCCL_IB_TC", "106 ; lossless", "106"),
    ("L11", "unset NCCL_IB_TC", site(host(nccl={"conf_files": CONF})), site(host(nccl={"conf_files": GOOD_CONF}))),
    env("L13", "NCCL_BLOCKING_WAIT", "0", None),
    env("L14", "TORCH_NCCL_BLOCKING_WAIT", "1", "0"),
    env("L15", "CUDA_LAUNCH_BLOCKING", "1", "0"),
    env("L15", "TORCH_DISTRIBUTED_DEBUG", "DETAIL", "INFO"),
    env("L15", "NCCL_LAUNCH_MODE", "GROUP", "PARALLEL"),
    env("L16", "CUDA_DEVICE_MAX_CONNECTIONS", "1", "8", "try"),
    ("L17", "unset FI_EFA_FORK_SAFE", site(efa({"FI_EFA_FORK_SAFE": "1"})),
     site(host(env={"FI_EFA_FORK_SAFE": "1"}))),
    ("L17", "unset FI_EFA_USE_HUGE_PAGE", site(efa({"FI_EFA_USE_HUGE_PAGE": "1"})),
     site(efa({"FI_EFA_USE_HUGE_PAGE": "0"}))),
    ("L18", "unset NCCL_NVLS_CHUNKSIZE", site(efa({"NCCL_NVLS_CHUNKSIZE": "524288"}, OFI)),
     site(efa({"NCCL_NVLS_CHUNKSIZE": "262144"}, OFI))),
    ("L18", "unset NCCL_BUFFSIZE", site(efa({"NCCL_BUFFSIZE": "8388608"}, OFI)),
     site(efa({"NCCL_BUFFSIZE": "8388608"}, OFI, version="1.15.0"))),
    ("L18", "unset NCCL_BUFFSIZE", site(efa({"NCCL_BUFFSIZE": "8388608"}, OFI)),
     site(efa({"NCCL_BUFFSIZE": "8388608"}, OFI, machine="g5.48xlarge"))),
    ("L18", "unset NCCL_NETDEVS_POLICY",
     site(efa({"NCCL_NETDEVS_POLICY": "max:1"}, OFI, version="1.18.0", machine="p6-b200.48xlarge")),
     site(efa({"NCCL_NETDEVS_POLICY": "max:1"}, OFI, version="1.17.2", machine="p6-b200.48xlarge"))),
    ("L18", "try NCCL_NETDEVS_POLICY=max:1", site(efa(None, OFI, version="1.16.3", machine="p5en.48xlarge")),
     site(efa(None, OFI, version="1.16.3", machine="p5en.48xlarge", nccl="2.27.7"))),
    ("L18", "try NCCL_NETDEVS_POLICY=max:1", site(efa(None, OFI, version="1.16.3", machine="p5en.48xlarge")),
     site(efa(None, OFI, version="1.16.3"))),
    ("L19", "try NCCL_NVLS_ENABLE", site(host(env={"NCCL_FASTRAK_X": "1", "NCCL_NVLS_ENABLE": "0"})),
     site(host(env={"NCCL_NVLS_ENABLE": "0"}))),
    ("L20", "unset NCCL_IB_TC", site(efa({"NCCL_IB_TC": "106"})), site(host(env={"NCCL_IB_TC": "106"}))),
    env("L21", "NCCL_P2P_NET_CHUNKSIZE", "2097152", "131072", "try"),
    env("L22", "NCCL_CROSS_NIC", "1", "0", "try"),
    env("L23", "NCCL_RUNTIME_CONNECT", "0", "1"),
    env("L23", "NCCL_GRAPH_REGISTER", "2", "0"),
    env("L24", "NCCL_COMM_BLOCKING", "0", None),
    env("L25", "NCCL_RAS_ENABLE", "0", "1"),
    ("P6", "try NCCL_NET=AWS Libfabric", site([efa(None, OFI), efa(None, OFI, name="b")]),
     site([efa({"NCCL_NET": "AWS Libfabric"}, OFI), efa({"NCCL_NET": "AWS Libfabric"}, OFI, name="b")])),
    ("P9", "try NCCL_CONF_FILE=/usr/local/gib/scripts/nccl.conf", site(host(nccl={"plugins": [GIB_PLUGIN]})),
     site(host())),
    ("P11", "try NCCL_TOPO_FILE=/opt/microsoft/ndv5/topo.xml", site(host(fabric=AZURE), "FAB009"),
     site(host(fabric=AZURE))),
    ("P11", "try NCCL_GRAPH_FILE=/opt/microsoft/ncv4/graph.xml",
     site(host(fabric=AZURE, gpus=cards(model="NVIDIA A100 80GB PCIe")), "FAB009"),
     site(host(fabric=AZURE, gpus=cards(model="NVIDIA A100-SXM4-80GB")), "FAB009")),
    ("P12", "try NCCL_PXN_DISABLE=1", site(NODES_OF_8), site(NODES_OF_8[:2])),
    ("P14", "try NCCL_IB_TC=41", site([replace(n, fabric=fabric(asset_tag="OracleCloud.com"))
     for n in roces()]), site(roces())),
    ("P16", "try NCCL_IB_QPS_PER_CONNECTION=4", site(cloud("OracleCloud.com", gpus=cards(model="NVIDIA A100"))),
     site(cloud("OracleCloud.com"))),
    ("P18", "try NCCL_SOCKET_IFNAME=hsn", site(SLINGSHOT), site(host())),
    ("P18", "try FI_MR_CACHE_MONITOR=userfaultfd", site(slingshots(OFI)), site(slingshots())),
    ("X1", "set TORCH_FR_BUFFER_SIZE=2000", site(host(), "RUN003"), site(host(torch="2.13.0"), "RUN003")),
    ("X1", "try TORCH_FR_BUFFER_SIZE=2000", site([host(f"n{number}") for number in range(16)]),
     site([host(f"n{number}") for number in range(15)])),
    ("L1", "try NCCL_DEBUG=WARN", site([host(f"n{number}") for number in range(16)]),
     site([host(f"n{number}") for number in range(15)])),
    ("X2", "try TORCH_NCCL_ENABLE_TIMING=1", site(host(), "BEN003"), site(host())),
]  # fmt: skip


def advised(of: Site) -> set[tuple[str, str]]:
    """Every rule that spoke, with what it says."""
    return {
        (
            a.rule.rule,
            f"{a.action} {a.proposal.variable}" + ("" if a.proposal.value is None else f"={a.proposal.value}"),
        )
        for a in advice(of)
    }


@pytest.mark.parametrize(("rule", "says", "calls", "quiet"), CASES, ids=[f"{c[0]} {c[1]}" for c in CASES])
def test_a_rule_speaks_where_it_is_called_for_and_only_there(
    rule: str, says: str, calls: Site, quiet: Site
) -> None:
    assert (rule, says) in advised(calls)
    assert (rule, says) not in advised(quiet)


def test_every_rule_has_a_case() -> None:
    tried = {(rule, says.split()[0]) for rule, says, _, _ in CASES}
    assert {(rule.rule, rule.action) for rule in RULES} <= tried | {("S4", "set"), ("S6", "set")}


def test_every_rule_of_the_field_is_there_or_has_its_reason() -> None:
    families = {"S": 12, "R": 32, "T": 9, "I": 29, "L": 25, "P": 25, "X": 5}
    known = {f"{family}{number}" for family, count in families.items() for number in range(1, count + 1)}
    here = {rule.rule for rule in RULES}
    assert here | {*UNSEEN} == known
    assert not here & {*UNSEEN}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.rule} {rule.title}")
def test_a_rule_cites_its_source_and_weighs_its_gain(rule: SettingRule) -> None:
    assert rule.source
    assert rule.gain
    assert rule.risk
    assert not rule.title.endswith(".")


def test_a_sound_cluster_needs_nothing() -> None:
    assert advised(site(two())) == set()


@pytest.mark.parametrize(
    ("job", "allowed"),
    [
        (Job(simulated=True, nodes_asked=2, backend="nccl"), {"unset", "keep"}),
        (Job(nodes_asked=2, backend="gloo"), {"unset", "keep", "set GLOO_SOCKET_IFNAME=eth1"}),
    ],
    ids=["simulated", "gloo"],
)
def test_without_nccl_on_real_machines_only_what_is_set_is_spoken_of(job: Job, allowed: set[str]) -> None:
    for _, _, calls, _ in CASES:
        again = Site(replace(calls.cluster, job=job), raised("RUN003", "BEN003", "NET002", "FAB007"))
        assert {
            says if says.startswith(("set", "try")) else says.split()[0] for _, says in advised(again)
        } <= allowed


def test_gloo_on_real_machines_is_told_the_interface_where_nodes_do_not_meet() -> None:
    bad = [
        replace(n, host=replace(n.host, own_name=Resolution(name="x", addresses=["127.0.1.1"]))) for n in plain()
    ]
    gloo = Job(nodes_asked=2, backend="gloo")
    assert advised(site(bad, "NET005", job=gloo)) == {("S1", "set GLOO_SOCKET_IFNAME=eth0")}


def test_a_wrong_interface_stays_set_to_another_where_nccl_alone_takes_a_bridge() -> None:
    of_bridges = site(bridges({"NCCL_SOCKET_IFNAME": "ens3"}), "NCC007")
    assert ("S1", "set NCCL_SOCKET_IFNAME==eth1") in advised(of_bridges)


@pytest.mark.parametrize(
    ("now", "value", "nothing"),
    [
        ({}, "20", True),
        ({}, "22", False),
        ({"NCCL_IB_TIMEOUT": "14"}, "20", False),
        ({"NCCL_IB_TIMEOUT": "22"}, "22", True),
        ({"NCCL_IB_TIMEOUT": "20"}, None, False),
    ],
    ids=["default, not set", "another", "back to the default", "in force", "taken away"],
)
def test_what_is_in_force_or_the_default_changes_nothing(
    now: dict[str, str], value: str | None, nothing: bool
) -> None:
    assert _changes_nothing(site(host(env=now)), Proposal("NCCL_IB_TIMEOUT", value, "why", [])) == nothing


def test_a_slower_network_is_no_way_out_for_one_odd_node() -> None:
    addresses = {"a": "10.1.0.1/24", "b": "10.1.0.2/24", "c": "10.2.0.3/24"}
    nodes = [
        ethernet(n, nic("eth0", text, speed_mbit=100_000), nic("mgmt0", f"172.30.0.{i}/24", speed_mbit=1_000))
        for i, (n, text) in enumerate(addresses.items())
    ]
    assert not any("SOCKET_IFNAME" in says for _, says in advised(site(nodes, "NET003")))


def test_where_nodes_meet_already_no_other_network_is_recommended_that_is_not_faster() -> None:
    bad = [
        ethernet(n, nic("mgmt0", f"172.30.0.{i}/24"), nic("eth0", f"10.1.0.{i}/24")) for i, n in enumerate("ab", 1)
    ]
    gloo = Job(nodes_asked=2, backend="gloo")
    meet = [
        replace(n, host=replace(n.host, own_name=Resolution(name="x", addresses=[f"10.1.0.{i}"])))
        for i, n in enumerate(bad, 1)
    ]
    assert advised(site(meet, "NET003", job=gloo)) == set()


def test_one_advice_a_variable_and_what_is_proved_goes_first() -> None:
    recommendations = recommend(site(two({"NCCL_IB_TC": "8M", "NCCL_DEBUG": "INFO"}, hcas=MIXED)).cluster, [])
    names = [recommendation.variable for recommendation in recommendations]
    assert len(names) == len(set(names))
    assert [recommendation.action for recommendation in recommendations] == sorted(
        (recommendation.action for recommendation in recommendations), key=["set", "unset", "try"].index
    )


def test_a_platforms_own_settings_stay() -> None:
    settings = {"NCCL_PROTO": "Simple", "NCCL_NTHREADS": "256"}
    of_google = {**settings, "NCCL_FASTRAK_CTRL_DEV": "eth0"}
    assert {says for _, says in advised(site(host(env=settings)))} == {"try NCCL_PROTO", "unset NCCL_NTHREADS"}
    assert {says for _, says in advised(site(host(env=of_google)))} == {"unset NCCL_NTHREADS"}


def test_what_was_is_kept_for_the_way_back() -> None:
    conf = [ConfFile(path="/etc/nccl.conf", lines=[ConfLine(line=7, name="NCCL_NTHREADS", value="256")])]
    by_name = {
        recommendation.variable: recommendation
        for recommendation in recommend(
            site(two({"NCCL_PROTO": "a b"}, hcas=MIXED, nccl={"conf_files": conf})).cluster, []
        )
    }
    assert by_name["NCCL_PROTO"].undo == "export NCCL_PROTO='a b'"
    assert by_name["NCCL_NTHREADS"].undo == "# NCCL_NTHREADS=256 (/etc/nccl.conf:7) on all 2 nodes"
    assert by_name["NCCL_NTHREADS"].set_in == ["/etc/nccl.conf:7"]
    assert by_name["NCCL_IB_HCA"].undo == "unset NCCL_IB_HCA"


@pytest.mark.parametrize("name", stories.NAMES)
def test_every_recommendation_of_a_story_has_evidence_and_is_not_in_force(name: str) -> None:
    document = stories.document(name)
    for recommendation in document.recommendations:
        assert recommendation.evidence, recommendation
        assert recommendation.why, recommendation
        assert (
            recommendation.action != "unset" or recommendation.set_in or "nccl.conf" in recommendation.evidence[0]
        ), recommendation
