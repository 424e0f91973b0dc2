"""Rules about RDMA: raised, not raised, and unknown where a fact is unread."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Cluster,
    Counter,
    DeviceFile,
    Gpu,
    Gpus,
    Job,
    Library,
    Nccl,
    Node,
    Policy,
    Port,
    Rdma,
    Unread,
    at,
    replace,
)
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.helpers.clusters import ABSENT, DENIED, verdict
from tests.helpers.hcas import GPUS, NICS, gid, gpu_node, hca, port, rdma, roce, table

RULES = [rule for rule in all_rules() if rule.code[:3] == "RDM"]
DOWN = port(state="DOWN", physical="Polling")
SECOND_PORT = NICS[0].replace(".0", ".1")
GEFORCE = Gpus(pci=GPUS[:1], cards=[Gpu(name="gpu0", index=0, model="NVIDIA GeForce RTX 4090")])
NO_LIBRARY = Unread("no_tool", "libibverbs.so.1 is not there")


def a(*hcas: Any, env: dict[str, str] | None = None, version: str = "2.27.3", **changes: Any) -> Node:
    """Node a with these HCAs."""
    return gpu_node("a", rdma(*hcas, **changes), env=env, version=version)


def b(*hcas: Any, address: str = "10.1.0.18/24", **facts: Any) -> Node:
    """Node b with these HCAs."""
    return gpu_node("b", rdma(*hcas), address=address, **facts)


def fours(**changes: Any) -> list[Any]:
    return [hca(number, port(**changes)) for number in range(4)]


def errors(**values: int) -> Port:
    return port(counters=[Counter(name=name, value=value) for name, value in values.items()])


SOUND = a(*fours())
ROCE = a(hca(0, roce()))
SWAPPED = b(hca(0, pci=NICS[1]), hca(1, pci=NICS[0]), *fours()[2:])
REFUSED = DeviceFile(name="uverbs0", error="Operation not permitted")
V1_ONLY = [gid(0, kind="IB/RoCE v1"), gid(2, "10.1.0.1", "IB/RoCE v1")]
NONE = Rdma(hcas=ABSENT, devices=ABSENT)
LOCAL_ONLY = table("10.1.0.17")[:2]
SLOW = port(rate_gbit=25.0)
CASES: list[tuple[str, str, list[Node], str]] = [
    ("RDM002", "all can be opened", [SOUND], "ok"),
    ("RDM002", "no /dev/infiniband", [a(hca(0), device_files=[])], "fail"),
    ("RDM002", "one file is missing", [a(hca(0), hca(1), device_files=["uverbs0"])], "fail"),
    ("RDM002", "refused", [a(hca(0), opened=[REFUSED])], "fail"),
    ("RDM002", "not tried", [a(hca(0), opened=DENIED)], "unknown"),
    ("RDM002", "left out", [a(hca(0), hca(1), device_files=["uverbs0"], env={"NCCL_IB_HCA": "=mlx5_0"})], "ok"),
    ("RDM002", "InfiniBand is off", [a(hca(0), device_files=[], env={"NCCL_IB_DISABLE": "1"})], "skipped"),
    ("RDM003", "both are there", [SOUND], "ok"),
    ("RDM003", "no library", [a(hca(0), libibverbs=NO_LIBRARY, providers=NO_LIBRARY)], "fail"),
    ("RDM003", "no provider", [a(hca(0), providers=["rxe"])], "fail"),
    ("RDM003", "not read", [a(hca(0), libibverbs=DENIED)], "unknown"),
    ("RDM004", "no EFA", [SOUND], "skipped"),
    ("RDM004", "no plugin", [a(hca(0, port(link_layer="Unspecified"), driver="efa"))], "fail"),
    ("RDM005", "all are up", [SOUND], "ok"),
    ("RDM005", "a spare card", [a(hca(0), hca(1, DOWN, board="other"))], "note"),
    ("RDM005", "an equal one is up", [a(hca(0), hca(1, DOWN))], "warn"),
    ("RDM005", "the second port of a card", [a(hca(0), hca(1, DOWN, pci=SECOND_PORT))], "note"),
    ("RDM005", "up elsewhere", [a(hca(0), hca(1, DOWN)), b(hca(0), hca(1))], "fail"),
    ("RDM005", "named", [a(hca(0), hca(1, DOWN), env={"NCCL_IB_HCA": "=mlx5_0,mlx5_1"})], "fail"),
    ("RDM005", "state unread", [a(hca(0, port(state=DENIED)))], "unknown"),
    ("RDM006", "set up", [SOUND], "ok"),
    ("RDM006", "INIT", [a(hca(0, port(state="INIT", lid=0, sm_lid=0)))], "fail"),
    ("RDM006", "no LID", [a(hca(0, port(lid=0)))], "fail"),
    ("RDM006", "no manager", [a(hca(0, port(sm_lid=0)))], "fail"),
    ("RDM006", "Ethernet", [ROCE], "skipped"),
    ("RDM006", "LID unread", [a(hca(0, port(lid=DENIED, sm_lid=DENIED)))], "ok"),
    ("RDM007", "few", [a(hca(0, errors(port_rcv_errors=14, symbol_error=3)))], "ok"),
    ("RDM007", "flaps", [a(hca(0, errors(link_downed=255)))], "warn"),
    ("RDM007", "no counters", [a(hca(0, port(counters=ABSENT)))], "skipped"),
    ("RDM007", "denied", [a(hca(0, port(counters=DENIED)))], "unknown"),
    ("RDM008", "few", [a(hca(0, errors(packet_seq_err=40, roce_adp_retrans=3)))], "ok"),
    ("RDM008", "timeouts", [a(hca(0, errors(local_ack_timeout_err=4000)))], "warn"),
    ("RDM008", "all have some", [a(*[hca(i, errors(rnr_nak_retry_err=2000)) for i in range(4)])], "ok"),
    ("RDM008", "denied", [a(hca(0, port(counters=DENIED)))], "unknown"),
    ("RDM009", "not set", [SOUND], "skipped"),
    ("RDM009", "exact", [a(hca(1), hca(10), env={"NCCL_IB_HCA": "=mlx5_1"})], "ok"),
    ("RDM009", "prefix", [a(hca(1), hca(10), env={"NCCL_IB_HCA": "mlx5_1"})], "warn"),
    ("RDM009", "an idle card", [a(hca(1), hca(10, SLOW, board="b"), env={"NCCL_IB_HCA": "mlx5_1"})], "note"),
    ("RDM009", "a prefix that is meant", [a(hca(1), hca(10), env={"NCCL_IB_HCA": "mlx5"})], "ok"),
    ("RDM009", "nothing", [a(hca(0), env={"NCCL_IB_HCA": "ib0"})], "fail"),
    ("RDM009", "a blank", [a(hca(0), hca(1), env={"NCCL_IB_HCA": "mlx5_0, mlx5_1"})], "warn"),
    ("RDM009", "excluded and not here", [a(hca(0), env={"NCCL_IB_HCA": "^mlx5_bond_0"})], "ok"),
    ("RDM009", "all excluded", [a(hca(0), env={"NCCL_IB_HCA": "^mlx5"})], "fail"),
    ("RDM009", "port 2 of one", [a(hca(0), env={"NCCL_IB_HCA": "mlx5_0:2"})], "fail"),
    ("RDM010", "some", [SOUND], "ok"),
    ("RDM010", "none, alone", [a(hca(0, DOWN))], "warn"),
    ("RDM010", "none, asked for", [a(hca(0, DOWN), env={"NCCL_NET": "IB"})], "fail"),
    ("RDM010", "none, others have", [a(hca(0, DOWN)), b(hca(0))], "fail"),
    ("RDM010", "an Ethernet card", [a(hca(0, roce(state="DOWN")))], "note"),
    ("RDM011", "one kind", [SOUND], "ok"),
    ("RDM011", "two kinds", [a(hca(0), hca(1, roce()))], "warn"),
    ("RDM011", "one excluded", [a(hca(0), hca(1, roce()), env={"NCCL_IB_HCA": "^=mlx5_1"})], "ok"),
    ("RDM012", "the same", [a(*fours()), b(*fours())], "ok"),
    ("RDM012", "one link fell back", [a(hca(0), hca(1), hca(2, port(rate_gbit=100.0)))], "warn"),
    ("RDM012", "one node", [a(*fours()), b(*fours(rate_gbit=200.0))], "warn"),
    ("RDM012", "rate unread", [a(hca(0, port(rate_gbit=DENIED)))], "ok"),
    ("RDM013", "automatic", [ROCE], "ok"),
    ("RDM013", "old NCCL", [a(hca(0, roce()), version="2.18.3")], "fail"),
    ("RDM013", "no address", [a(hca(0, roce(gids=LOCAL_ONLY))), b(hca(0, roce()))], "fail"),
    ("RDM013", "no address, alone", [a(hca(0, roce(gids=LOCAL_ONLY)))], "note"),
    ("RDM013", "no address of one of two, alone", [a(hca(0, roce(gids=LOCAL_ONLY)), hca(1, roce()))], "warn"),
    ("RDM013", "RoCE v1 only", [a(hca(0, roce(gids=V1_ONLY)))], "warn"),
    ("RDM013", "unread", [a(hca(0, roce(gids=DENIED)))], "unknown"),
    ("RDM014", "not set", [ROCE], "skipped"),
    ("RDM014", "needless", [a(hca(0, roce()), env={"NCCL_IB_GID_INDEX": "3"})], "note"),
    ("RDM014", "needed", [a(hca(0, roce()), env={"NCCL_IB_GID_INDEX": "3"}, version="2.18.3")], "ok"),
    ("RDM014", "empty", [a(hca(0, roce()), env={"NCCL_IB_GID_INDEX": "5"})], "fail"),
    ("RDM014", "link-local", [a(hca(0, roce()), env={"NCCL_IB_GID_INDEX": "1"})], "fail"),
    ("RDM014", "RoCE v1", [a(hca(0, roce()), env={"NCCL_IB_GID_INDEX": "2"})], "warn"),
    ("RDM015", "jumbo", [ROCE], "ok"),
    ("RDM015", "1500", [gpu_node("a", rdma(hca(0, roce())), mtu=1500)], "warn"),
    ("RDM015", "differs", [ROCE, b(hca(0, roce("10.1.0.18")), mtu=4200)], "warn"),
    ("RDM016", "none", [ROCE, b(hca(0, roce()))], "note"),
    ("RDM016", "one without", [a(hca(0, roce(traffic_class="Global tclass=106"))), b(hca(0, roce()))], "warn"),
    ("RDM017", "one subnet", [ROCE, b(hca(0, roce("10.1.0.18")))], "ok"),
    ("RDM017", "another", [ROCE, b(hca(0, roce("10.2.0.18")), address="10.2.0.18/24")], "warn"),
    ("RDM018", "the same", [SOUND, b(*fours())], "ok"),
    ("RDM018", "one with fewer", [SOUND, b(hca(0), hca(1))], "warn"),
    ("RDM018", "one with none", [SOUND, gpu_node("b", NONE)], "fail"),
    ("RDM018", "nobody", [gpu_node(name, NONE) for name in "ab"], "skipped"),
    ("RDM018", "one unread", [SOUND, gpu_node("b", Rdma(devices=DENIED)), b(*fours())], "unknown"),
    ("RDM019", "the same", [SOUND], "ok"),
    ("RDM019", "another board", [a(hca(0), hca(1, board="x", firmware="1"))], "ok"),
    ("RDM019", "one card", [a(hca(0), hca(1), hca(2, firmware="28.39.1002"))], "warn"),
    ("RDM019", "one node", [SOUND, b(hca(0, firmware="28.39.1002"))], "warn"),
    ("RDM020", "one fabric", [SOUND, b(*fours())], "ok"),
    ("RDM020", "another manager", [SOUND, b(*fours(sm_lid=7))], "warn"),
    ("RDM021", "the default", [SOUND], "ok"),
    ("RDM021", "empty", [a(hca(0, port(pkeys=[0, 0x8001])))], "fail"),
    ("RDM021", "limited", [a(hca(0, port(pkeys=[0x7FFF])))], "warn"),
    ("RDM021", "another index", [a(hca(0, port(pkeys=[0, 0x8001])), env={"NCCL_IB_PKEY": "1"})], "ok"),
    ("RDM021", "unread", [a(hca(0, port(pkeys=DENIED)))], "skipped"),
    ("RDM022", "peermem", [SOUND], "ok"),
    ("RDM022", "old NCCL", [a(hca(0), version="2.20.5")], "warn"),
    ("RDM022", "neither", [a(hca(0), peer_modules=[])], "warn"),
    ("RDM022", "GeForce", [replace(a(hca(0), peer_modules=[]), gpus=GEFORCE)], "note"),
    ("RDM022", "unread", [a(hca(0), peer_modules=[], open_driver=DENIED)], "unknown"),
    ("RDM024", "the same", [SOUND, b(*fours())], "ok"),
    ("RDM024", "two swapped", [SOUND, b(*fours()), SWAPPED], "warn"),
    ("RDM024", "other machines", [SOUND, b(hca(0), hca(1))], "skipped"),
    ("RDM023", "none", [ROCE], "ok"),
    ("RDM023", "a bond", [a(hca(0, roce(), name="mlx5_bond_0"))], "note"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "nodes", "state"), [(c[0], *c[2:]) for c in CASES], ids=[f"{c[0]} {c[1]}" for c in CASES]
)
def test_state(code: str, nodes: list[Node], state: str) -> None:
    judgement = verdict(code, *nodes)
    assert judgement.state.value == state, [finding.what for finding in judgement.findings]


UNREAD = [rule for rule in RULES if rule.code not in ("RDM001", "RDM018")]


@pytest.mark.parametrize("rule", UNREAD, ids=lambda r: r.code)
def test_unread_devices_are_unknown(rule: Any) -> None:
    nodes = [gpu_node(name, Rdma(hcas=DENIED, devices=DENIED)) for name in "ab"]
    assert verdict(rule.code, *nodes).state.value == "unknown"


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.code != "RDM001"], ids=lambda r: r.code)
def test_nodes_without_gpus_and_jobs_over_gloo_are_not_judged(rule: Any) -> None:
    none = Gpus(pci=ABSENT, devices=ABSENT, usable=ABSENT)
    nodes = [gpu_node(name, rdma(hca(0, DOWN), device_files=[]), gpus=none) for name in "ab"]
    assert verdict(rule.code, *nodes).state.value == "skipped"
    over_gloo = [gpu_node(name, rdma(hca(0, DOWN), device_files=[])) for name in "ab"]
    assert verdict(rule.code, *over_gloo, job=Job(backend_asked="gloo", nodes_asked=2)).state.value == "skipped"


def test_the_mend_fits() -> None:
    no_files = verdict("RDM002", a(hca(0), device_files=[])).findings[0]
    assert "--device=/dev/infiniband" in no_files.remedies[0].commands[0]
    assert no_files.owner == "job"
    old = verdict("RDM013", a(hca(0, roce()), version="2.18.3")).findings[0]
    assert old.remedies[0].commands == ["export NCCL_IB_GID_INDEX=3"]
    mixed = verdict("RDM011", a(hca(0), hca(1), hca(2, roce()))).findings[0]
    assert mixed.remedies[0].commands == ["export NCCL_IB_HCA='=mlx5_0,mlx5_1'"]
    prefix = verdict("RDM009", a(hca(1), hca(10), env={"NCCL_IB_HCA": "mlx5_1"})).findings[0]
    assert "mlx5_10" in prefix.what


def test_a_card_that_others_have_stays_in_the_list() -> None:
    """One node lost its card: the list is right, and the same for all; a card of storage is not put into it."""
    env = {"NCCL_IB_HCA": "mlx5_1,mlx5_2"}
    whole = a(hca(1), hca(2), hca(10, SLOW, board="b"), env=env)
    findings = verdict("RDM009", whole, b(hca(1), hca(10, SLOW, board="b"), env=env)).findings
    commands = {(f.where.node, c) for f in findings for r in f.remedies for c in r.commands}
    listed = "export NCCL_IB_HCA='=mlx5_1,mlx5_2'"
    assert commands == {("a", listed), ("b", listed), ("b", "#SBATCH --exclude=b")}


def test_whole_names_of_which_one_node_lacks_a_card() -> None:
    env = {"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}
    findings = verdict("RDM009", a(hca(0), hca(1), env=env), b(hca(0), env=env)).findings
    assert [c for f in findings for r in f.remedies for c in r.commands] == ["#SBATCH --exclude=b"]


@pytest.mark.parametrize("routed", [True, False])
def test_an_index_is_no_fault_where_the_port_has_no_address(routed: bool) -> None:
    """Then unset would change nothing: what is missing is the address."""
    listed = table("10.0.0.1") if routed else [gid(0)]
    findings = verdict("RDM014", a(hca(0, roce(gids=listed)), env={"NCCL_IB_GID_INDEX": "7"})).findings
    assert [finding.owner for finding in findings] == ["job" if routed else "node"]
    commands = [line for finding in findings for remedy in finding.remedies for line in remedy.commands]
    assert commands == (["unset NCCL_IB_GID_INDEX"] if routed else ["show_gids", "ip addr show"])


def test_the_port_is_named() -> None:
    two = hca(0, port(name="1"), port(name="2", state="INIT"))
    assert [f.where.device for f in verdict("RDM006", a(two)).findings] == ["mlx5_0:2"]


def test_thresholds_of_the_site() -> None:
    policy = Policy(thresholds={"RDM007.link_downed": 300.0})
    assert verdict("RDM007", a(hca(0, errors(link_downed=255))), policy=policy).state.value == "ok"


def test_a_plugin_for_efa() -> None:
    plugins = Nccl(loaded=Library(path="l", origin="o", version="2.27.3"), plugins=["/opt/lib/libnccl-net.so"])
    node = gpu_node(
        "a", rdma(hca(0, port(link_layer="Unspecified"), driver="efa"), providers=["efa"]), nccl=plugins
    )
    assert verdict("RDM004", node).state.value == "ok"
    hidden = gpu_node("a", rdma(hca(0, driver="efa")), nccl=Nccl(plugins=DENIED))
    assert verdict("RDM004", hidden).state.value == "unknown"


def test_many_nodes_are_judged_in_time() -> None:
    """Nothing here may be quadratic in the nodes; the bound is loose, for the machine may be busy."""
    nodes = [
        gpu_node(f"n{i}", rdma(*[hca(k, roce(f"10.{k}.{i // 250}.{i % 250 + 1}")) for k in range(2)]))
        for i in range(300)
    ]
    verdicts = judge(Cluster(nodes=nodes, job=Job(nodes_asked=300)), RULES)
    assert {v.code for v in verdicts if v.state.value == "unknown"} == set()
    assert at(nodes[299], "rdma.hcas") == ["mlx5_0", "mlx5_1"]
