"""Each NCC rule: a cluster that raises it, one that does not, and one where the fact is unread."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    NOT_RECORDED,
    Address,
    Cluster,
    ConfFile,
    ConfLine,
    Gpu,
    GpuPeer,
    Gpus,
    Interface,
    JobFacts,
    Library,
    Nccl,
    Network,
    Node,
    Rdma,
    Stack,
    StrayLine,
    Unread,
    Variable,
)
from ncclcheck.reports.judgement.findings import Finding, State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules

X = "/opt/x/libnccl.so.2"
GAMING = Gpus(
    cards=[
        Gpu(name=f"GPU {i}", index=i, peers=[GpuPeer(name=f"GPU {1 - i}", p2p="chipset not supported")])
        for i in (0, 1)
    ]
)
WHEEL = "/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"
DENIED = Unread("denied", "no right to read it")
ABSENT = Unread("absent", "torch was built without CUDA")


def library(version: str | Unread = "2.27.7", path: str = WHEEL, origin: str = "pip package") -> Library:
    return Library(path=path, origin=origin, version=version)


def interface(name: str, address: str, *, running: bool = True) -> Interface:
    addresses = [Address(family="ipv4", address=address, prefix=24)]
    return Interface(name=name, kind="physical", up=True, running=running, addresses=addresses)


def node(name: str = "a1", env: dict[str, str] | Unread | None = None, **facts: Any) -> Node:
    """A node for CUDA with NCCL 2.27.7; facts of Nccl by their names, and those of the node."""
    own = {"stack", "network", "rdma", "gpus"}
    nccl = {"loaded": library(), "others": [], "conf_files": [], "stray_lines": []}
    nccl.update({key: value for key, value in facts.items() if key not in own})
    variables = env if isinstance(env, Unread) else [Variable(name=k, value=v) for k, v in (env or {}).items()]
    return Node(
        name=name,
        stack=facts.get("stack", Stack(torch="2.9.1", torch_cuda="12.8")),
        network=facts.get("network", Network(interfaces=[interface("eth0", "10.0.0.1")])),
        rdma=facts.get("rdma", Rdma(hcas=[])),
        gpus=facts.get("gpus", NOT_RECORDED),
        job=JobFacts(variables=variables),
        nccl=Nccl(**nccl),  # type: ignore[arg-type]
    )


def conf(*lines: tuple[str, str], path: str = "/etc/nccl.conf") -> list[ConfFile]:
    return [ConfFile(path=path, lines=[ConfLine(line=i, name=n, value=v) for i, (n, v) in enumerate(lines, 1)])]


def verdict(code: str, *nodes: Node) -> Verdict:
    rule = [rule for rule in all_rules() if rule.code == code]
    return judge(Cluster(nodes=list(nodes)), rule)[0]


def sentences(findings: list[Finding]) -> str:
    return " / ".join(f"{finding.where}: {finding.what}" for finding in findings)


CASES: list[tuple[str, str, list[Node], State, str]] = [
    # NCC001
    ("NCC001", "found", [node()], State.OK, "NCCL 2.27.7"),
    ("NCC001", "no CUDA", [node(stack=Stack(torch_cuda=ABSENT), loaded=ABSENT)], State.SKIPPED, ""),
    ("NCC001", "no library", [node(loaded=Unread("absent", "the linker finds none"))], State.FAIL, "finds none"),
    ("NCC001", "does not load", [node(loaded=library(Unread("absent", "bad ELF")))], State.FAIL, "bad ELF"),
    ("NCC001", "unread", [node(loaded=DENIED)], State.UNKNOWN, "no right"),
    ("NCC001", "version unread", [node(loaded=library(Unread("timed_out", "5 s")))], State.UNKNOWN, "5 s"),
    ("NCC001", "torch unread", [node(stack=Stack(torch_cuda=DENIED))], State.UNKNOWN, "no right"),
    ("NCC001", "shadowed", [node(loaded=library("2.19.3", X, "LD_LIBRARY_PATH"),
                                 others=[library()])], State.WARN, "not the 2.27.7 installed"),
    ("NCC001", "preloaded", [node(loaded=library("2.19.3", X, "LD_PRELOAD"),
                                  others=[library()])], State.WARN, "from LD_PRELOAD"),
    ("NCC001", "same version elsewhere", [node(loaded=library("2.27.7", X, "LD_LIBRARY_PATH"),
                                               others=[library()])], State.OK, "LD_LIBRARY_PATH"),
    ("NCC001", "system only", [node(loaded=library(path="/usr/lib/libnccl.so.2", origin="system"))], State.OK, ""),
    ("NCC001", "another copy that nobody loads", [node(others=[library("2.19.3", X, "system")])], State.OK, ""),
    # NCC002
    ("NCC002", "same", [node("a1"), node("a2")], State.OK, "NCCL 2.27.7 on all 2 nodes"),
    ("NCC002", "one alone", [node()], State.SKIPPED, ""),
    ("NCC002", "odd one out", [node("a1"), node("a2", loaded=library("2.19.3")), node("a3")], State.FAIL,
     "a2: NCCL is 2.19.3; 2 of 3 nodes have 2.27.7"),
    ("NCC002", "no majority", [node("a1"), node("a2", loaded=library("2.19.3"))], State.FAIL,
     "2.27.7 on a1; 2.19.3 on a2"),
    ("NCC002", "unread", [node("a1"), node("a2"), node("a3", loaded=DENIED)], State.UNKNOWN, "a3: "),
    # NCC008
    ("NCC008", "same", [node("a1", plugins=["/x/libnccl-net.so"]), node("a2", plugins=["/y/libnccl-net.so"])],
     State.OK, "libnccl-net.so on all 2 nodes"),
    ("NCC008", "missing on one", [node("a1", plugins=["/x/libnccl-net.so"]), node("a2", plugins=[]),
     node("a3", plugins=["/x/libnccl-net.so"])], State.FAIL, "a2: the set of NCCL plugins is none"),
    ("NCC008", "unread", [node("a1", plugins=[]), node("a2", plugins=DENIED)], State.UNKNOWN, ""),
    # NCC003
    ("NCC003", "known", [node(env={"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "mlx5"})], State.OK, ""),
    ("NCC003", "typo", [node(env={"NCCL_SOCKET_IFNAM": "eth0"})], State.WARN, "did you mean NCCL_SOCKET_IFNAME?"),
    ("NCC003", "typo by the library", [node(env={"NCCL_IB_DISABL": "1"}, known_names=["NCCL_IB_DISABLE"])],
     State.WARN, "did you mean NCCL_IB_DISABLE?"),
    ("NCC003", "newer than our list", [node(env={"NCCL_NEW": "1"}, known_names=["NCCL_NEW"])], State.OK, ""),
    ("NCC003", "removed", [node(env={"NCCL_TREE_THRESHOLD": "0"})], State.NOTE, "after 2.4.8; set NCCL_ALGO"),
    ("NCC003", "not removed yet", [node(env={"NCCL_TREE_THRESHOLD": "0"}, loaded=library("2.4.8"))], State.OK, ""),
    ("NCC003", "not read yet", [node(env={"NCCL_MNNVL_ENABLE": "0"}, loaded=library("2.18.5"))], State.WARN,
     "came with 2.21"),
    ("NCC003", "never was", [node(env={"NCCL_TIMEOUT": "10"})], State.WARN, "pass timeout= to init_process_group"),
    ("NCC003", "a half name", [node(env={"NCCL_NAN_CHECK": "1"})], State.WARN, "set TORCH_NCCL_NAN_CHECK"),
    ("NCC003", "torch's old names", [node(env={"NCCL_ASYNC_ERROR_HANDLING": "1"})], State.OK, ""),
    ("NCC003", "of images and plugins", [node(env={"NCCL_VERSION": "2.27.7", "NCCL_FASTRAK_IFNAME": "eth1",
                                                   "NCCL_TUNER_CONFIG_PATH": "/x"})], State.OK, ""),
    ("NCC003", "in a file", [node(conf_files=conf(("NCCL_IFNAME", "e0")))], State.WARN, "set NCCL_SOCKET_IFNAME"),
    ("NCC003", "without a GPU", [node(env={"NCCL_IFNAME": "eth0"}, loaded=ABSENT, known_names=ABSENT)], State.WARN,
     "set NCCL_SOCKET_IFNAME"),
    ("NCC003", "unread", [node(env=DENIED)], State.UNKNOWN, "no right"),
    # NCC004
    ("NCC004", "fine", [node(env={"NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "info"})], State.OK, ""),
    ("NCC004", "true", [node(env={"NCCL_IB_DISABLE": "true"})], State.WARN, "DISABLE=true is not a number"),
    ("NCC004", "suffix", [node(env={"NCCL_BUFFSIZE": "8M"})], State.WARN, "read as 8"),
    ("NCC004", "level", [node(env={"NCCL_P2P_LEVEL": "nvl"})], State.WARN, "write NVL"),
    ("NCC004", "debug word", [node(env={"NCCL_DEBUG": "DEBUG"})], State.WARN, "prints nothing"),
    ("NCC004", "outside", [node(env={"NCCL_IB_SL": "16"})], State.NOTE, "documented 0 to 15"),
    ("NCC004", "torch raises", [node(env={"TORCH_NCCL_BLOCKING_WAIT": "on"})], State.FAIL, "exception"),
    ("NCC004", "blanks", [node(conf_files=conf(("NCCL_DEBUG ", " INFO")))], State.WARN,
     "/etc/nccl.conf:1 defines a variable named 'NCCL_DEBUG '"),
    ("NCC004", "export", [node(conf_files=conf(("export NCCL_NET", "IB")))], State.WARN, "'export NCCL_NET'"),
    ("NCC004", "quotes", [node(conf_files=conf(("NCCL_SOCKET_IFNAME", '"eth0"')))], State.WARN, "not 'eth0'"),
    ("NCC004", "quoted number", [node(conf_files=conf(("NCCL_IB_DISABLE", '"1"')))], State.WARN, "not '1'"),
    ("NCC004", "comment", [node(conf_files=conf(("NCCL_NET", "IB # fast")))], State.WARN, "not 'IB'"),
    ("NCC004", "carriage return", [node(conf_files=conf(("NCCL_NET", "IB\r")))], State.WARN, r"'IB\r'"),
    ("NCC004", "two =", [node(conf_files=conf(("NCCL_IB_HCA", "=mlx5_0")))], State.OK, ""),
    ("NCC004", "file is missing", [node(env={"NCCL_CONF_FILE": "~/n.conf"}, conf_files=[
        ConfFile(path="~/n.conf", lines=Unread("absent", "is not there"))])], State.WARN, "does not replace ~"),
    ("NCC004", "unread", [node(env=DENIED)], State.UNKNOWN, "no right"),
    # NCC005
    ("NCC005", "same", [node("a1", {"NCCL_IB_TC": "0x10"}), node("a2", {"NCCL_IB_TC": "16"})], State.OK, ""),
    ("NCC005", "the default", [node("a1", {"NCCL_IB_DISABLE": "0"}), node("a2")], State.OK, ""),
    ("NCC005", "must match", [node("a1"), node("a2", {"NCCL_ALGO": "Ring"}), node("a3")], State.FAIL,
     "a2: NCCL_ALGO=Ring, but NCCL_ALGO is not set on most nodes"),
    ("NCC005", "several odd ones", [node(f"a{i}", {"NCCL_ALGO": "Ring"} if i < 3 else {}) for i in range(1, 8)],
     State.FAIL, "NCCL_ALGO=Ring on a[1-2]"),
    ("NCC005", "no majority", [node("a1"), node("a2", {"NCCL_PROTO": "LL"})], State.FAIL, "NCCL_PROTO=LL on a2"),
    ("NCC005", "risky", [node("a1"), node("a2", {"NCCL_IB_TIMEOUT": "22"})], State.WARN, "NCCL_IB_TIMEOUT=22"),
    ("NCC005", "harmless", [node("a1"), node("a2", {"NCCL_DEBUG": "INFO"})], State.NOTE, "NCCL_DEBUG=INFO"),
    ("NCC005", "may differ", [node("a1", {"NCCL_SOCKET_IFNAME": "eth0"}), node("a2")], State.OK, ""),
    ("NCC005", "by file", [node("a1", conf_files=conf(("NCCL_ALGO", "Ring"))), node("a2", {"NCCL_ALGO": "Ring"})],
     State.OK, ""),
    ("NCC005", "one alone", [node()], State.SKIPPED, ""),
    ("NCC005", "unread", [node("a1"), node("a2"), node("a3", DENIED)], State.UNKNOWN, "a3"),
    # NCC006
    ("NCC006", "clean", [node(env={"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "eth0"})], State.OK, ""),
    ("NCC006", "info", [node(env={"NCCL_DEBUG": "INFO"})], State.NOTE, "NCCL_DEBUG=INFO"),
    ("NCC006", "trace", [node(env={"NCCL_DEBUG": "trace"})], State.WARN, "NCCL_DEBUG=trace is on"),
    ("NCC006", "no peer to peer", [node(env={"NCCL_P2P_DISABLE": "1"})], State.WARN, "NCCL_P2P_DISABLE=1 is on"),
    ("NCC006", "none there", [node(env={"NCCL_P2P_DISABLE": "1"}, gpus=GAMING)], State.NOTE,
     "NCCL_P2P_DISABLE=1"),
    ("NCC006", "at its default", [node(env={"NCCL_SHM_DISABLE": "0"})], State.OK, ""),
    ("NCC006", "no InfiniBand there", [node(env={"NCCL_IB_DISABLE": "1"})], State.NOTE, "NCCL_IB_DISABLE=1"),
    ("NCC006", "InfiniBand off", [node(env={"NCCL_IB_DISABLE": "1"}, rdma=Rdma(hcas=["mlx5_0"]))] * 2, State.WARN,
     "NCCL_IB_DISABLE=1 is on"),
    ("NCC006", "launches wait", [node(env={"CUDA_LAUNCH_BLOCKING": "1"})], State.WARN, "CUDA_LAUNCH_BLOCKING=1"),
    ("NCC006", "detail", [node(env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})], State.WARN, "DETAIL"),
    ("NCC006", "deprecated", [node(env={"NCCL_MAX_NCHANNELS": "8"})], State.NOTE, "since 2.17; use NCCL_MAX_CTAS"),
    ("NCC006", "old in torch", [node(env={"NCCL_BLOCKING_WAIT": "1"})], State.NOTE, "use TORCH_NCCL_BLOCK"),
    ("NCC006", "did not reach us", [node(stray_lines=[
        StrayLine(path="/root/.bashrc", line=3, name="NCCL_ALGO", value="Ring", reached=False)])], State.NOTE,
     "not in this process: NCCL_ALGO"),
    ("NCC006", "did reach us", [node(stray_lines=[
        StrayLine(path="/etc/environment", line=3, name="NCCL_NET", value="IB", reached=True)])], State.OK, ""),
    ("NCC006", "unread", [node(env=DENIED)], State.UNKNOWN, "no right"),
    # NCC007
    ("NCC007", "not set", [node()], State.SKIPPED, ""),
    ("NCC007", "there", [node(env={"NCCL_SOCKET_IFNAME": "eth", "GLOO_SOCKET_IFNAME": "eth0"})], State.OK,
     "NCCL_SOCKET_IFNAME=eth selects eth0"),
    ("NCC007", "not there", [node(env={"NCCL_SOCKET_IFNAME": "enp1s0"})], State.FAIL, "matches no usable"),
    ("NCC007", "on one node", [node("a1", {"NCCL_SOCKET_IFNAME": "=eth0"}),
                               node("a2", {"NCCL_SOCKET_IFNAME": "=eth0"},
                                    network=Network(interfaces=[interface("eno1", "10.0.0.2")]))],
     State.FAIL, "a2: "),
    ("NCC007", "too short", [node(env={"NCCL_SOCKET_IFNAME": "e"})], State.WARN, "too short"),
    ("NCC007", "mark inside", [node(env={"NCCL_SOCKET_IFNAME": "eth0,^lo"})], State.WARN, "'^lo'"),
    ("NCC007", "blank inside", [node(env={"NCCL_SOCKET_IFNAME": "eth0, eth1"})], State.WARN, "' eth1'"),
    ("NCC007", "blank at the end", [node(env={"NCCL_SOCKET_IFNAME": "eth0 "})], State.FAIL,
     "NCCL_SOCKET_IFNAME='eth0 ' ends with a space, which is taken for a part of the name: matches no usable"),
    ("NCC007", "blank behind an exclusion", [node(env={"NCCL_SOCKET_IFNAME": "^docker0 "})], State.WARN,
     "'docker0 ' matches nothing"),
    ("NCC007", "gloo, blank at the end", [node(env={"GLOO_SOCKET_IFNAME": "eth0\t"})], State.FAIL,
     r"GLOO_SOCKET_IFNAME='eth0\t' ends with a tab, which is taken for a part of the name: no interface"),
    ("NCC004", "blank behind a name", [node(env={"NCCL_NET_PLUGIN": "aws-ofi "})], State.WARN,
     "NCCL_NET_PLUGIN='aws-ofi ' ends with a space, which is taken for a part of it"),
    ("NCC004", "blank before a word", [node(env={"NCCL_DEBUG": " INFO"})], State.WARN,
     "NCCL_DEBUG=' INFO' starts with a space and is not one of"),
    ("NCC004", "blank behind a number", [node(env={"NCCL_IB_TC": "106 "})], State.OK, ""),
    ("NCC007", "in a file", [node(conf_files=conf(("NCCL_SOCKET_IFNAME", "eno1")))], State.FAIL, "eno1"),
    ("NCC007", "gloo knows no ^", [node(env={"GLOO_SOCKET_IFNAME": "^lo"})], State.FAIL, "no ^ or ="),
    ("NCC007", "gloo takes whole names", [node(env={"GLOO_SOCKET_IFNAME": "eth"})], State.FAIL, "named eth"),
    ("NCC007", "down counts for 2.28.3", [node(
        env={"NCCL_SOCKET_IFNAME": "eth0"}, loaded=library("2.28.3"),
        network=Network(interfaces=[interface("eth0", "10.0.0.1", running=False)]))], State.FAIL, "eth0"),
    ("NCC007", "unread", [node(env={"NCCL_SOCKET_IFNAME": "eth0"}, network=Network(interfaces=DENIED))],
     State.UNKNOWN, "no right"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "case", "nodes", "state", "words"), CASES, ids=[f"{c[0]} {c[1]}" for c in CASES])
def test_rule(code: str, case: str, nodes: list[Node], state: State, words: str) -> None:
    judgement = verdict(code, *nodes)
    assert judgement.state is state, f"{case}: {sentences(judgement.findings)}"
    assert words in sentences(judgement.findings)
    assert "could not be judged" not in sentences(judgement.findings)


def test_a_misread_line_is_told_once() -> None:
    judgement = verdict("NCC004", node(conf_files=conf(("NCCL_IB_DISABLE", '"1"'))))
    assert len(judgement.findings) == 1


def test_the_name_of_the_shell_command_can_be_pasted() -> None:
    shadowed = node(loaded=library("2.19.3", X, "LD_LIBRARY_PATH"), others=[library()])
    command = verdict("NCC001", shadowed).findings[0].remedies[0].commands[0]
    assert command.startswith("export LD_LIBRARY_PATH=$(")
    assert "'/opt/x'" in command


def test_notes_of_one_node_are_one_line() -> None:
    judgement = verdict("NCC006", node(env={"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Tree", "NCCL_NTHREADS": "256"}))
    assert [finding.what for finding in judgement.findings] == [
        "set, and meant for debugging: NCCL_DEBUG=INFO, NCCL_ALGO=Tree, NCCL_NTHREADS=256"
    ]
    (fix,) = judgement.findings[0].remedies
    assert fix.commands == ["unset NCCL_ALGO NCCL_NTHREADS", "export NCCL_DEBUG=WARN"]


@pytest.mark.parametrize(
    ("name", "value"), [("NCCL_GRAPH_REGISTER", "0"), ("NCCL_ALGO", "^NVLS"), ("NCCL_ALGO", "Ring")]
)
def test_what_megatron_asks_for_is_no_debugging(name: str, value: str) -> None:
    assert verdict("NCC006", node(env={name: value})).state.value == "ok"


@pytest.mark.parametrize("variable", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_a_blank_behind_a_name_is_seen_in_the_evidence_and_taken_off_in_the_fix(variable: str) -> None:
    both = Network(interfaces=[interface("eth1", "10.0.1.1"), interface("eth0", "10.0.0.1")])
    (finding,) = verdict("NCC007", node(env={variable: "eth0 "}, network=both)).findings
    assert finding.evidence[0].value == f"{variable}='eth0 '"
    assert finding.remedies[0].commands == [f"export {variable}=eth0"]


@pytest.mark.parametrize(("value", "blocks"), [("DETAIL", True), ("detail", True), ("INFO", False)])
def test_no_job_is_started_where_detail_on_one_node_would_hang_it(value: str, blocks: bool) -> None:
    (finding,) = verdict("NCC005", node("a1"), node("a2", {"TORCH_DISTRIBUTED_DEBUG": value})).findings
    assert finding.blocks_job is blocks
    assert finding.state is (State.FAIL if blocks else State.NOTE)


@pytest.mark.parametrize(
    ("value", "state"),
    [("96", "fail"), ("100", "warn"), ("1024", "warn"), ("32", "warn"), ("512", "ok"), ("0", "ok")],
)
def test_a_number_of_threads_that_nccl_does_not_take_is_no_failure(value: str, state: str) -> None:
    assert verdict("NCC015", node(env={"NCCL_NTHREADS": value})).state.value == state


def test_gloo_on_an_interface_without_a_carrier() -> None:
    """Several nodes: no other reaches it. One node alone talks to itself."""

    def made(name: str, running: bool) -> Node:
        network = Network(interfaces=[interface("ib0", "10.1.0.2", running=running)])
        return node(name, env={"GLOO_SOCKET_IFNAME": "ib0"}, network=network)

    findings = verdict("NCC007", made("a", True), made("b", False)).findings
    assert {finding.where.node: finding.state for finding in findings} == {"a": State.OK, "b": State.FAIL}
    assert any("ib0 has no carrier" in finding.what for finding in findings)
    assert verdict("NCC007", made("a", False)).state is State.OK
