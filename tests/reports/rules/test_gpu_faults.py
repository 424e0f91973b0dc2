"""Rules over GPUs: each fault on one GPU of four is found there, a sound one is not, what is unread is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    DeviceFile,
    Fabric,
    Host,
    Job,
    Node,
    NvFabric,
    NvLinks,
    PciDevice,
    PcieLink,
    Policy,
    RemappedRows,
    RetiredPages,
    Unread,
    Xid,
    known,
    replace,
)
from ncclcheck.reports.judgement.rule import all_rules
from tests.helpers.cards import FABRIC, GIB, LINKS, ROWS, SPARE, card, four, gpu_node, process
from tests.helpers.clusters import DENIED, states_of, verdict

TWO = Job(nodes_asked=2)
PAGES = RetiredPages(single_bit=0, double_bit=0, pending=False)
OVER_CARDS = [rule for rule in all_rules() if rule.over == "nodes.gpus.cards"]
BUSY = {"utilization": 99, "clock": 1900, "throttle": []}


def rows(**changes: bool) -> RemappedRows:
    return replace(ROWS, **changes)


def links(**changes: Any) -> NvLinks:
    return replace(LINKS, **changes)


@pytest.mark.parametrize(
    ("code", "changes", "state"),
    [
        ("GPU004", {"trouble": "GPU is lost (nvmlDeviceGetUUID)"}, "fail"),
        ("GPU004", {"recovery": "reboot"}, "fail"),
        ("GPU004", {"recovery": "drain_p2p"}, "ok"),
        ("GPU004", {"recovery": DENIED}, "ok"),
        ("GPU007", {"ecc_uncorrected": 1}, "fail"),
        ("GPU007", {"sram_exceeded": True}, "fail"),
        ("GPU007", {"ecc_uncorrected_ever": 3}, "note"),
        ("GPU007", {"ecc_corrected": 900}, "ok"),
        ("GPU008", {"remapped": rows(failed=True, pending=True)}, "fail"),
        ("GPU008", {"remapped": rows(pending=True)}, "warn"),
        ("GPU008", {"remapped": replace(ROWS, correctable=4, uncorrectable=2)}, "ok"),
        ("GPU009", {"retired": replace(PAGES, single_bit=59)}, "ok"),
        ("GPU009", {"retired": replace(PAGES, single_bit=20, double_bit=45)}, "fail"),
        ("GPU009", {"retired": replace(PAGES, pending=True)}, "warn"),
        ("GPU010", {"ecc": False, "ecc_pending": False}, "warn"),
        ("GPU010", {"ecc_pending": False}, "warn"),
        ("GPU011", {"throttle": ["hw_slowdown", "hw_power_brake"]}, "warn"),
        ("GPU011", {"throttle": ["sw_power_cap"]}, "ok"),
        ("GPU012", {"utilization": 99, "throttle": ["application_clocks"]}, "warn"),
        ("GPU012", {"utilization": 99, "throttle": ["hw_thermal"]}, "ok"),
        ("GPU012", BUSY, "ok"),
        ("GPU012", {}, "skipped"),
        ("GPU013", {"power_cap": 400.0}, "warn"),
        ("GPU014", {"margin": 5}, "warn"),
        ("GPU014", {"margin": DENIED, "temperature": 88, "slowdown_at": 90}, "warn"),
        ("GPU015", {"pcie_width": 8}, "warn"),
        ("GPU015", {"pcie_width": 8, "pcie_width_max": 8}, "warn"),
        ("GPU016", {"pcie_gen": 1}, "ok"),
        ("GPU016", {"pcie_gen": 3, **BUSY}, "warn"),
        ("GPU016", {"pcie_gen": 4, "pcie_gen_max": 4}, "warn"),
        ("GPU017", {"pcie_replays": 1000}, "warn"),
        ("GPU018", {"nvlinks": links(down=list(range(18)))}, "fail"),
        ("GPU018", {"nvlinks": links(down=[3])}, "warn"),
        ("GPU019", {"nvlinks": links(recoveries=1)}, "warn"),
        ("GPU019", {"nvlinks": links(crc_errors=5000)}, "warn"),
        ("GPU019", {"nvlinks": links(replays=12)}, "ok"),
        ("GPU019", {"nvlinks": links(replays=DENIED)}, "ok"),
        ("GPU020", {"fabric": NvFabric(state="in_progress")}, "fail"),
        ("GPU020", {"fabric": replace(FABRIC, status=999)}, "fail"),
        ("GPU020", {"fabric": replace(FABRIC, health="limited_capacity")}, "warn"),
        ("GPU022", {"mig": True, "mig_instances": ["MIG-1", "MIG-2"]}, "warn"),
        ("GPU023", {"compute_mode": "prohibited"}, "fail"),
        ("GPU023", {"compute_mode": "exclusive_process"}, "note"),
        ("GPU024", {"persistence": False}, "warn"),
        ("GPU025", {"processes": [process(7, 30 * GIB, "bob")]}, "warn"),
        ("GPU025", {"processes": [process(7, DENIED, "bob")]}, "warn"),
        ("GPU025", {"processes": [process(7, 2**20, "bob")]}, "ok"),
        ("GPU025", {"processes": [process(7, 30 * GIB)]}, "ok"),
        ("GPU025", {"processes": [process(7, 30 * GIB, DENIED, DENIED)]}, "unknown"),
        ("GPU026", {"processes": [process(7, 30 * GIB, DENIED, "gone")]}, "warn"),
        ("GPU026", {"processes": [process(7, 30 * GIB, "ada", "Z")]}, "warn"),
        ("GPU026", {"processes": [process(7, 30 * GIB)]}, "ok"),
        ("GPU027", {"memory_used": 9 * GIB}, "warn"),
        ("GPU027", {"memory_used": 9 * GIB, "mig": True}, "note"),
        ("GPU027", {"memory_used": 9 * GIB, "processes": [process(7, 8 * GIB)]}, "ok"),
        ("GPU028", {"model": "NVIDIA T4"}, "warn"),
        ("GPU028", {"vbios": "96.00.74.00.01"}, "note"),
        ("GPU040", {"spare_rows": replace(SPARE, none=1)}, "warn"),
        ("GPU040", {"spare_rows": replace(SPARE, none=1), "remapped": rows(failed=True)}, "ok"),
        ("GPU040", {"spare_rows": replace(SPARE, few=3)}, "note"),
        ("GPU040", {"spare_rows": replace(SPARE, many=9, some=2)}, "ok"),
        ("GPU041", {"inforom": False}, "warn"),
    ],
)  # fmt: skip
def test_one_gpu_of_four(code: str, changes: dict[str, Any], state: str) -> None:
    judgement = verdict(code, gpu_node("a", *four(last=changes)), job=TWO)
    assert judgement.state.value == state
    assert all(
        f.where.device in ("GPU 3", None) for f in judgement.findings if f.state.value in ("fail", "warn", "note")
    )


@pytest.mark.parametrize("rule", OVER_CARDS, ids=lambda rule: rule.code)
def test_a_sound_node_and_one_that_may_not_be_read(rule: Any) -> None:
    assert verdict(rule.code, gpu_node("a", *four())).state.value in ("ok", "skipped")
    assert verdict(rule.code, gpu_node("a", facts={"cards": DENIED})).state.value == "unknown"
    facts = {need[1:]: DENIED for need in rule.needs}
    judgement = verdict(rule.code, gpu_node("a", *four(last=facts)))
    assert ("unknown", "GPU 3") in [(f.state.value, f.where.device) for f in judgement.findings]


@pytest.mark.parametrize("rule", OVER_CARDS, ids=lambda rule: rule.code)
def test_a_gpu_of_somebody_else_is_at_most_a_note(rule: Any) -> None:
    ill = card(3, trouble="GPU is lost", ecc_uncorrected=9, mig=True, compute_mode="prohibited", margin=0)
    judgement = verdict(rule.code, gpu_node("a", *four()[:3], facts={"others": [ill]}))
    assert judgement.state.value in ("ok", "note", "skipped")


@pytest.mark.parametrize(
    ("code", "every", "state"),
    [
        ("GPU010", {"ecc": False, "ecc_pending": False}, "note"),
        ("GPU013", {"power_cap": 600.0}, "note"),
        ("GPU015", {"pcie_width": 8, "pcie_width_max": 8}, "ok"),
        ("GPU018", {"nvlinks": links(down=list(range(18))), "fabric": DENIED}, "ok"),
        ("GPU021", {"peers": DENIED}, "unknown"),
        ("GPU028", {"model": "NVIDIA T4"}, "ok"),
    ],
)
def test_what_is_the_same_on_all_gpus(code: str, every: dict[str, Any], state: str) -> None:
    assert verdict(code, gpu_node("a", *four(every=every))).state.value == state


def test_a_lone_gpu_with_a_lower_power_limit() -> None:
    assert verdict("GPU013", gpu_node("a", card(power_cap=400.0))).state.value == "note"


def test_the_odd_power_limit_is_set_to_that_of_the_others() -> None:
    cards = four(every={"power_cap": 500.0})
    odd = verdict("GPU013", gpu_node("a", *cards[:3], replace(cards[3], power_cap=700.0))).findings[0]
    assert (odd.state.value, odd.remedies[0].commands) == ("warn", ["nvidia-smi -i N -pl 500"])


def test_the_one_gpu_with_ecc_is_set_like_the_others() -> None:
    cards = four(every={"ecc": False, "ecc_pending": False})
    odd = verdict("GPU010", gpu_node("a", *cards[:3], replace(cards[3], ecc=True, ecc_pending=True))).findings[0]
    assert (odd.state.value, odd.remedies[0].commands) == ("warn", ["nvidia-smi -i N -e 0"])


@pytest.mark.parametrize(("busy", "state"), [(0, "note"), (90, "warn")])
def test_idle_links_alike_may_have_given_up_lanes(busy: int, state: str) -> None:
    cards = four(every={"pcie_width": 8, "utilization": busy})
    assert verdict("GPU015", gpu_node("a", *cards)).state.value == state


@pytest.mark.parametrize(("job", "state"), [(Job(), "note"), (TWO, "warn")])
def test_a_desktop_holds_memory_of_a_geforce_card(job: Job, state: str) -> None:
    desktop = gpu_node("a", card(model="NVIDIA GeForce RTX 4090", memory_used=2 * GIB))
    assert verdict("GPU027", desktop, job=job).state.value == state


def test_modes_of_a_lone_gpu_of_a_lone_node_are_notes() -> None:
    for code, changes in (("GPU022", {"mig": True}), ("GPU024", {"persistence": False})):
        assert verdict(code, gpu_node("a", card(**changes))).state.value == "note"


def test_a_board_that_shares_its_lanes_is_no_bad_slot() -> None:
    """Eight lanes at work: all that the port above has, or half of them."""

    def working(port: int) -> Node:
        name, above = "0000:01:00.0", "0000:00:01.0"
        slot = PcieLink(gts=16.0, width=8, most_gts=16.0, most_width=16)
        fabric = Fabric(
            pci=[
                PciDevice(name=name, kind="gpu", path=[above], link=slot),
                PciDevice(name=above, kind="bridge", path=[], link=replace(slot, most_width=port)),
            ]
        )
        return replace(
            gpu_node("a", card(pci=name, pcie_width=8, pcie_width_max=16, utilization=97)), fabric=fabric
        )

    assert verdict("GPU015", working(8)).state.value == "note"
    assert verdict("GPU015", working(16)).state.value == "warn"


@pytest.mark.parametrize(("model", "state"), [("NVIDIA GeForce RTX 4090", "note"), ("NVIDIA L40S", "warn")])
def test_persistence_of_workstations_that_work_together(model: str, state: str) -> None:
    two = [gpu_node(name, card(model=model, persistence=False)) for name in "ab"]
    assert verdict("GPU024", *two, job=TWO).state.value == state


@pytest.mark.parametrize(("kernel", "state"), [("6.8.12-tegra", "note"), ("6.11.0-1016-nvidia", "warn")])
def test_persistence_of_a_gpu_that_is_part_of_the_processor(kernel: str, state: str) -> None:
    """A Jetson; a DGX Spark shares its memory with the CPU too, and is a server."""
    board: dict[str, Any] = {"persistence": False, "model": "NVIDIA Thor"}
    two = [gpu_node(name, card(**board)) for name in ("a", "b")]
    two = [replace(node, host=Host(hostname=node.name, kernel=kernel)) for node in two]
    assert verdict("GPU024", *two, job=TWO).state.value == state


@pytest.mark.parametrize(("nvlinks", "state"), [(LINKS, "warn"), (DENIED, "note")])
def test_peer_access(nvlinks: Any, state: str) -> None:
    gpus = four(every={"nvlinks": nvlinks})
    peers = [replace(peer, p2p="chipset not supported") for peer in gpus[3].peers]  # type: ignore[union-attr]
    assert verdict("GPU021", gpu_node("a", *gpus[:3], replace(gpus[3], peers=peers))).state.value == state


def test_peer_access_that_other_nodes_have() -> None:
    """Boards without NVLink: what one node of three cannot do is a fault of that node."""
    gpus = four(every={"nvlinks": DENIED})
    refused = [
        replace(gpu, peers=[replace(peer, p2p="chipset not supported") for peer in known(gpu.peers)])
        for gpu in gpus
    ]
    judgement = verdict("GPU021", gpu_node("a", *gpus), gpu_node("b", *refused), gpu_node("c", *gpus))
    assert {where for state, where in states_of(judgement) if state == "warn"} == {"b"}
    assert verdict("GPU021", gpu_node("a", *refused), gpu_node("b", *refused)).state.value == "note"


@pytest.mark.parametrize("user", ["bob", "ada"])
def test_bench_wants_its_gpus_for_itself(user: str) -> None:
    gpus = four(last={"processes": [process(7, 30 * GIB, user)], "compute_mode": "exclusive_process"})
    for code in ("GPU023", "GPU025"):
        assert verdict(code, gpu_node("a", *gpus), command="bench").state.value == "fail"


@pytest.mark.parametrize(
    ("nvml", "state"),
    [
        ("", "ok"),
        ("Driver/library version mismatch", "fail"),
        (Unread("timed_out", "nvmlInit gave no answer"), "unknown"),
        (Unread("no_tool", "pynvml is not installed"), "unknown"),
        (Unread("absent", "no NVIDIA device on this machine"), "skipped"),
    ],
)
def test_nvml_itself(nvml: Any, state: str) -> None:
    assert verdict("GPU003", gpu_node("a", facts={"nvml": nvml})).state.value == state


def xid(code: int, hours: Any = 0.5, pci: str = "0000:13:00.0") -> Xid:
    return Xid(
        name=f"Xid {code}", code=code, pci=pci, line=f"NVRM: Xid (PCI:0000:13:00): {code}, ...", hours=hours
    )


def asks(text: str) -> Xid:
    return Xid(name="Xid 154", code=154, pci="0000:13:00.0", line=f"NVRM: Xid (PCI:0000:13:00): 154, {text}")


def switch(text: str) -> Xid:
    code = int(text.partition(",")[0])
    line = f"nvidia-nvswitch3: SXid (PCI:0000:a9:00.0): {text}"
    return Xid(name=f"SXid {code}", code=code, pci="0000:a9:00.0", line=line, hours=0.5)


@pytest.mark.parametrize(
    ("code", "line", "gpu", "state"),
    [
        ("GPU005", xid(79), {"trouble": "GPU is lost"}, "fail"),
        ("GPU005", xid(79), {"recovery": DENIED}, "fail"),
        ("GPU005", xid(79), {}, "warn"),
        ("GPU005", xid(79, hours=30.0), {}, "note"),
        ("GPU005", xid(79, hours=DENIED), {"recovery": DENIED}, "fail"),
        ("GPU005", xid(94), {"recovery": DENIED}, "warn"),
        ("GPU005", xid(13), {}, "ok"),
        ("GPU005", xid(79, pci="0000:99:00.0"), {}, "note"),
        ("GPU005", xid(109), {"recovery": DENIED}, "fail"),
        ("GPU005", xid(157), {"recovery": DENIED}, "warn"),
        ("GPU005", xid(8), {"recovery": DENIED}, "note"),
        (
            "GPU005",
            asks("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
            {"recovery": DENIED},
            "fail",
        ),
        (
            "GPU005",
            asks("GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)"),
            {"recovery": DENIED},
            "note",
        ),
        ("GPU005", switch("20034, Fatal, Link 30 LTSSM Fault Up"), {}, "fail"),
        ("GPU005", switch("12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"), {}, "note"),
        ("GPU006", xid(69), {}, "warn"),
        ("GPU006", xid(31), {}, "warn"),
        ("GPU006", xid(31, hours=2.0), {}, "note"),
        ("GPU006", xid(45), {}, "note"),
        ("GPU006", xid(79), {}, "ok"),
    ],
)
def test_xids(code: str, line: Xid, gpu: dict[str, Any], state: str) -> None:
    others = [card(9, pci="0000:99:00.0")]
    judgement = verdict(code, gpu_node("a", *four(last=gpu), facts={"xids": [line], "others": others}))
    assert judgement.state.value == state


def test_a_reboot_that_the_driver_asks_for_is_the_fix() -> None:
    line = asks("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    finding = verdict("GPU005", gpu_node("a", *four(last={"recovery": DENIED}), facts={"xids": [line]})).findings[
        0
    ]
    assert finding.remedies[0].commands == ["reboot"]
    assert "Node Reboot Required" in finding.what


def test_a_kernel_log_that_may_not_be_read() -> None:
    for code in ("GPU005", "GPU006"):
        assert verdict(code, gpu_node("a", facts={"xids": DENIED})).state.value == "unknown"


def test_models_between_nodes() -> None:
    nodes = [gpu_node(name, *four()) for name in "ab"]
    other = gpu_node("c", *four(every={"model": "NVIDIA A100-SXM4-80GB"}))
    assert [t for t in states_of(verdict("GPU028", *nodes, other)) if t[0] == "warn"] == [("warn", "c")]


@pytest.mark.parametrize(
    ("env", "count", "state"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 4, "ok"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,8,9"}, 2, "fail"),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4, "ok"),
        ({"SLURM_GPUS_ON_NODE": "4"}, 3, "fail"),
        ({"CUDA_VISIBLE_DEVICES": ""}, 4, "skipped"),
        ({}, 4, "skipped"),
    ],
)
def test_gpus_that_were_given(env: dict[str, str], count: int, state: str) -> None:
    assert verdict("GPU029", gpu_node("a", *four()[:count], env=env)).state.value == state


def test_two_instances_of_one_gpu_are_two_entries() -> None:
    node = gpu_node("a", card(mig=True), env={"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"})
    assert verdict("GPU029", node).state.value == "ok"


def test_slurm_counts_instances() -> None:
    node = gpu_node("a", card(mig=True), env={"SLURM_GPUS_ON_NODE": "7"})
    assert verdict("GPU029", node).state.value == "ok"


def test_the_node_with_seven_gpus_is_named() -> None:
    nodes = [gpu_node(name, *four()) for name in "ab"]
    judgement = verdict("GPU030", *nodes, gpu_node("c", *four()[:3]))
    assert [t for t in states_of(judgement) if t[0] == "warn"] == [("warn", "c")]


def test_limits_are_the_site_s() -> None:
    hot = gpu_node("a", card(margin=8))
    policy = Policy(thresholds={"GPU014.degrees": 10.0})
    assert verdict("GPU014", hot).state.value == "ok"
    assert verdict("GPU014", hot, policy=policy).state.value == "warn"


def test_no_rule_speaks_of_a_machine_without_gpus() -> None:
    absent = Unread("absent", "no NVIDIA device on this machine")
    none = gpu_node("a", facts={"cards": absent, "nvml": absent, "xids": absent})
    for code in {rule.code for rule in OVER_CARDS} | {"GPU003", "GPU005", "GPU006", "GPU029", "MEM001", "MEM003"}:
        assert verdict(code, none).state.value == "skipped", code


DOMAIN = "2c1d5a6e-7f0b-4c3a-9d52-0b6f1e8a44c7"
CHANNEL = [DeviceFile(name="channel0")]


def of_rack(name: str, imex: Any = CHANNEL, clique: int = 1, domain: str = DOMAIN, **more: Any) -> Node:
    registered = NvFabric(state="completed", health="healthy", cluster=domain, clique=clique)
    return gpu_node(name, *four(every={"fabric": registered}), facts={"imex": imex}, **more)


@pytest.mark.parametrize(
    ("nodes", "state"),
    [
        ([of_rack("a"), of_rack("b")], "ok"),
        ([of_rack("a"), of_rack("b", [])], "fail"),
        ([of_rack("a"), of_rack("b", [DeviceFile(name="channel0", error="Permission denied")])], "fail"),
        ([of_rack("a", env={"NCCL_MNNVL_ENABLE": "0"}), of_rack("b", [], env={"NCCL_MNNVL_ENABLE": "0"})], "ok"),
        ([of_rack("a"), of_rack("b"), of_rack("c", clique=2)], "warn"),
        ([of_rack(n, clique=1) for n in "ab"] + [of_rack(n, clique=2) for n in "cd"], "note"),
        ([of_rack("a", [], domain="x"), of_rack("b", [], domain="y")], "ok"),
        (
            [of_rack("a", [], domain=""), of_rack("b", [], domain="00000000-0000-0000-0000-000000000000")],
            "skipped",
        ),
        ([of_rack("a"), of_rack("b", DENIED)], "unknown"),
    ],
    ids=["channels", "none", "closed", "off", "odd clique", "two cliques", "a domain each", "no domain", "unread"],
)
def test_machines_of_one_nvlink_domain(nodes: list[Node], state: str) -> None:
    assert verdict("GPU031", *nodes).state.value == state


def test_the_network_joins_what_nvlink_does_not() -> None:
    nodes = [of_rack(name, domain="x") for name in "ab"] + [of_rack(name, domain="y") for name in "cd"]
    (noted,) = [finding for finding in verdict("GPU031", *nodes).findings if finding.state.value == "note"]
    assert noted.what == "the nodes are in 2 NVLink domains: the network joins these"


def test_racks_with_unequal_numbers_of_nodes() -> None:
    uneven = [of_rack(name, domain="x") for name in "abc"] + [of_rack("d", domain="y")]
    (finding,) = [finding for finding in verdict("GPU031", *uneven).findings if finding.state.value == "note"]
    assert "1 and 3 now" in finding.remedies[0].text
    even = [of_rack(name, domain="x") for name in "ab"] + [of_rack(name, domain="y") for name in "cd"]
    assert not [finding.remedies for finding in verdict("GPU031", *even).findings if finding.remedies]
