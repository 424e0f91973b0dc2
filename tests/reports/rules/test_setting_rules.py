"""Rules about how settings go together: each raised, not raised, and with its fact unread."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    ConfFile,
    ConfLine,
    Hca,
    Host,
    JobFacts,
    Library,
    NamedFile,
    Nccl,
    Node,
    Rdma,
    Stack,
    System,
    Unread,
    Variable,
    Wheel,
)
from tests.helpers.clusters import ABSENT, DENIED, verdict

OFI = ["/opt/ofi/libnccl-net.so"]
EFA = [Hca(name="rdmap85s0", driver="efa")]
HPCX = ["/opt/hpcx/nccl_rdma_sharp_plugin/libnccl-net.so"]


def conf(name: str, value: str) -> list[ConfFile]:
    return [ConfFile(path="/etc/nccl.conf", lines=[ConfLine(line=1, name=name, value=value)])]


def node(name: str = "a1", env: dict[str, str] | Unread | None = None, **facts: Any) -> Node:
    """A node with NCCL 2.27.3 and torch 2.8; version, torch, hcas, boot and cpu by their names, else of Nccl."""
    listed = env if isinstance(env, Unread) else [Variable(name=k, value=v) for k, v in (env or {}).items()]
    version = facts.pop("version", "2.27.3")
    given: dict[str, Any] = {
        "rdma": Rdma(hcas=facts.pop("hcas", ["mlx5_0"]), devices=facts.pop("devices", [])),
        "stack": Stack(torch=facts.pop("torch", "2.8.0")),
        "host": Host(hostname=name, boot_id=facts.pop("boot", f"boot {name}")),
        "system": System(cpu=facts.pop("cpu", "AuthenticAMD EPYC")),
    }
    nccl: dict[str, Any] = {
        "loaded": Library(path="/x", origin="pip package", version=version),
        "plugins": [],
        "conf_files": [],
    }
    return Node(name=name, job=JobFacts(variables=listed), nccl=Nccl(**{**nccl, **facts}), **given)


def files(**fits: bool) -> list[NamedFile]:
    return [NamedFile(name=name, path="/x/y", output=False, fits=fit) for name, fit in fits.items()]


def wheels(**versions: str) -> list[Wheel]:
    return [Wheel(name=f"nvidia-nccl-{name}", version=version) for name, version in versions.items()]


CASES: list[tuple[str, str, list[Node], str, str]] = [
    ("NCC009", "socket", [node(env={"NCCL_NET": "socket"}, hcas=ABSENT)], "ok", ""),
    ("NCC009", "ib there", [node(env={"NCCL_NET": "IB"})], "ok", ""),
    ("NCC009", "ib not there", [node(env={"NCCL_NET": "IB"}, hcas=ABSENT)], "fail", "no RDMA device"),
    ("NCC009", "ib not seen", [node(env={"NCCL_NET": "IB"}, hcas=DENIED)], "ok", ""),
    ("NCC009", "plugin", [node(env={"NCCL_NET": "Libfabric"}, plugins=OFI)], "ok", ""),
    ("NCC009", "no plugin", [node(env={"NCCL_NET": "Libfabric"})], "fail", "no network plugin"),
    ("NCC009", "unread", [node(env={"NCCL_NET": "IB"}, plugins=DENIED)], "unknown", ""),
    ("NCC009", "not set", [node()], "skipped", ""),
    ("NCC010", "found", [node(env={"NCCL_NET_PLUGIN": "x"}, plugins=["/l/libnccl-net-x.so"])], "ok", ""),
    ("NCC010", "by file", [node(env={"NCCL_TUNER_PLUGIN": "/l/mine.so"}, plugins=["/l/mine.so"])], "ok", ""),
    ("NCC010", "none", [node(env={"NCCL_NET_PLUGIN": "none"})], "ok", ""),
    ("NCC010", "not found", [node(env={"NCCL_NET_PLUGIN": "ofi"})], "warn", "=ofi is found nowhere"),
    ("NCC010", "unread", [node(env={"NCCL_NET_PLUGIN": "x"}, plugins=DENIED)], "unknown", ""),
    ("NCC011", "all there", [node(named_files=files(NCCL_TOPO_FILE=True))], "ok", ""),
    ("NCC011", "missing", [node(named_files=files(NCCL_TOPO_FILE=False))], "warn", "cannot be read"),
    ("NCC011", "none", [node(named_files=[])], "skipped", ""),
    ("NCC011", "unread", [node(named_files=DENIED)], "unknown", ""),
    ("NCC012", "own", [node(env={"NCCL_DEBUG_FILE": "/tmp/n.%h.%p"})], "ok", ""),
    ("NCC012", "stderr", [node(env={"NCCL_DEBUG_FILE": "/dev/stderr"})], "ok", ""),
    ("NCC012", "shared", [node(env={"NCCL_DEBUG_FILE": "/tmp/n.log"})], "warn", "one file for all"),
    ("NCC012", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC013", "64", [node(env={"NCCL_SOCKET_NTHREADS": "8", "NCCL_NSOCKS_PERTHREAD": "8"})], "ok", ""),
    ("NCC013", "72", [node(env={"NCCL_SOCKET_NTHREADS": "8", "NCCL_NSOCKS_PERTHREAD": "9"})], "warn", "8 threads"),
    ("NCC013", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC014", "fine", [node(env={"NCCL_BUFFSIZE": "8388608", "NCCL_LL128_BUFFSIZE": "122880"})], "ok", ""),
    ("NCC014", "main", [node(env={"NCCL_BUFFSIZE": "6000000"})], "warn", "not a power of two"),
    ("NCC014", "LL128", [node(env={"NCCL_LL128_BUFFSIZE": "123000"})], "fail", "120 times"),
    ("NCC014", "LL", [node(env={"NCCL_LL_BUFFSIZE": "3"})], "fail", "power of two"),
    ("NCC014", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC015", "fine", [node(env={"NCCL_NTHREADS": "256"})], "ok", ""),
    ("NCC015", "odd", [node(env={"NCCL_NTHREADS": "384"})], "fail", "384"),
    ("NCC015", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC016", "small", [node(env={"NCCL_CHUNK_SIZE": "524288"})], "ok", ""),
    ("NCC016", "large", [node(env={"NCCL_CHUNK_SIZE": "0x100000"})], "fail", "1 MiB"),
    ("NCC016", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC017", "crossed", [node(env={"NCCL_MIN_CTAS": "16", "NCCL_MAX_CTAS": "4"})], "warn", "above"),
    ("NCC017", "fixed", [node(env={"NCCL_MIN_NCHANNELS": "16"})], "note", "NCCL_MIN_NCHANNELS=16"),
    ("NCC017", "not set", [node()], "skipped", ""),
    ("NCC017", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC018", "tree", [node(env={"NCCL_ALGO": "Tree"})], "fail", "no algorithm"),
    ("NCC018", "not ring", [node(env={"NCCL_ALGO": "^Ring"})], "fail", "no algorithm"),
    ("NCC018", "both", [node(env={"NCCL_ALGO": "Tree,Ring"})], "ok", ""),
    ("NCC018", "not tree", [node(env={"NCCL_ALGO": "^Tree"})], "ok", ""),
    ("NCC018", "by function", [node(env={"NCCL_ALGO": "allreduce:tree"})], "ok", ""),
    ("NCC018", "falls back", [node(env={"NCCL_ALGO": "Tree"}, version="2.23.4")], "ok", ""),
    ("NCC018", "unread", [node(env={"NCCL_ALGO": "Tree"}, version=DENIED)], "unknown", ""),
    ("NCC019", "pat", [node(env={"NCCL_ALGO": "PAT,Ring"}, version="2.22.3")], "warn", "pat came with NCCL 2.23"),
    ("NCC019", "function", [node(env={"NCCL_PROTO": "allreduce:LL"}, version="2.23.4")], "warn", "2.24"),
    ("NCC019", "new enough", [node(env={"NCCL_ALGO": "NVLS,Ring"})], "ok", ""),
    ("NCC019", "unread", [node(env={"NCCL_ALGO": "PAT"}, version=DENIED)], "unknown", ""),
    ("NCC020", "forced", [node(env={"NCCL_PROTO": "LL128"})], "warn", "forces LL128"),
    ("NCC020", "for one", [node(env={"NCCL_PROTO": "allreduce:ll128;allgather:simple"})], "warn", "forces"),
    ("NCC020", "excluded", [node(env={"NCCL_PROTO": "^LL128"})], "ok", ""),
    ("NCC020", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC021", "both", [node(env={"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"})], "warn", "no effect"),
    ("NCC021", "only 1 disables", [node(env={"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "NVL"})], "ok", ""),
    ("NCC021", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC022", "both", [node(env={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"})], "warn", "leave only"),
    ("NCC022", "one", [node(env={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "0"})], "ok", ""),
    ("NCC022", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC023", "alone", [node(env={"NCCL_DEBUG_SUBSYS": "NET"})], "warn", "without NCCL_DEBUG"),
    ("NCC023", "with", [node(env={"NCCL_DEBUG_SUBSYS": "NET", "NCCL_DEBUG": "INFO"})], "ok", ""),
    ("NCC023", "off", [node(env={"NCCL_OOB_NET_IFNAME": "e", "NCCL_OOB_NET_ENABLE": "0"})], "warn", "OOB"),
    ("NCC023", "range", [node(env={"NCCL_IB_ADDR_RANGE": "::/0", "NCCL_IB_GID_INDEX": "3"})], "warn", "beside"),
    ("NCC023", "automatic", [node(env={"NCCL_IB_ADDR_RANGE": "::/0", "NCCL_IB_GID_INDEX": "-1"})], "ok", ""),
    ("NCC023", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC024", "hidden", [node(env={"NCCL_IB_TC": "1"}, conf_files=conf("NCCL_IB_TC", "106"))], "note", "in vain"),
    ("NCC024", "same", [node(env={"NCCL_IB_TC": "0x10"}, conf_files=conf("NCCL_IB_TC", "16"))], "ok", ""),
    ("NCC024", "unread", [node(conf_files=DENIED)], "unknown", ""),
    ("NCC025", "set", [node(env={"NCCL_COMM_ID": "10.0.0.1:99"})], "warn", "is set"),
    ("NCC025", "loopback", [node("a", {"NCCL_COMM_ID": "127.0.0.1:99"}), node("b")], "fail", "no other node"),
    ("NCC025", "not set", [node()], "ok", ""),
    ("NCC025", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC026", "equal", [node(n, {"NCCL_HOSTID": "x"}) for n in ("a", "b")], "fail", "on 2 machines"),
    ("NCC026", "different", [node(n, {"NCCL_HOSTID": n}) for n in ("a", "b")], "ok", ""),
    ("NCC026", "one machine", [node(n, {"NCCL_HOSTID": "x"}, boot="b") for n in ("a", "b")], "ok", ""),
    ("NCC026", "not set", [node("a"), node("b")], "skipped", ""),
    ("NCC026", "unread", [node(n, {"NCCL_HOSTID": "x"}, boot=DENIED) for n in ("a", "b")], "unknown", ""),
    ("NCC027", "set", [node(env={"NCCL_COMM_BLOCKING": "0"})], "warn", "overrides"),
    ("NCC027", "not set", [node()], "ok", ""),
    ("NCC027", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC028", "hpcx", [node(env={"NCCL_IB_DISABLE": "1"}, plugins=HPCX)], "warn", "all the same"),
    ("NCC028", "both", [node(env={"NCCL_IB_DISABLE": "1", "NCCL_IBEXT_DISABLE": "1"}, plugins=HPCX)], "ok", ""),
    ("NCC028", "another", [node(env={"NCCL_IB_DISABLE": "1"}, plugins=OFI)], "ok", ""),
    ("NCC028", "unread", [node(env={"NCCL_IB_DISABLE": "1"}, plugins=DENIED)], "unknown", ""),
    ("NCC029", "none", [node(env={"FI_PROVIDER": "efa"}, hcas=ABSENT)], "warn", "no RDMA device"),
    ("NCC029", "there", [node(env={"FI_PROVIDER": "efa"})], "ok", ""),
    ("NCC029", "another on EFA", [node(env={"FI_PROVIDER": "tcp"}, devices=EFA)], "warn", "leaves EFA unused"),
    ("NCC029", "not EFA", [node(env={"FI_PROVIDER": "^efa"}, devices=EFA)], "warn", "leaves EFA unused"),
    ("NCC029", "EFA on EFA", [node(env={"FI_PROVIDER": "efa"}, devices=EFA)], "ok", ""),
    ("NCC029", "not TCP", [node(env={"FI_PROVIDER": "^tcp"}, devices=EFA)], "ok", ""),
    ("NCC029", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC030", "stale", [node(env={"FI_EFA_FORK_SAFE": "1"}, plugins=OFI)], "note", "FI_EFA_FORK_SAFE"),
    ("NCC030", "no plugin", [node(env={"FI_EFA_FORK_SAFE": "1"})], "ok", ""),
    ("NCC030", "unread", [node(env={"FI_PROVIDER": "efa"}, plugins=DENIED)], "unknown", ""),
    ("NCC031", "lower", [node(env={"NCCL_IB_TIMEOUT": "14"})], "warn", "default of 20"),
    ("NCC031", "a little lower", [node(env={"NCCL_IB_TIMEOUT": "19"})], "note", "default of 20"),
    ("NCC031", "its default", [node(env={"NCCL_IB_TIMEOUT": "18"}, version="2.20.5")], "ok", ""),
    ("NCC031", "higher", [node(env={"NCCL_IB_TIMEOUT": "22", "NCCL_IB_RETRY_CNT": "7"})], "ok", ""),
    ("NCC031", "retries", [node(env={"NCCL_IB_RETRY_CNT": "2"})], "warn", "default of 7"),
    ("NCC031", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC032", "new", [node(env={"NCCL_NET_GDR_C2C": "1"})], "note", "no effect"),
    ("NCC032", "old", [node(env={"NCCL_NET_GDR_C2C": "1"}, version="2.26.5")], "ok", ""),
    ("NCC032", "a level", [node(env={"NCCL_NET_GDR_LEVEL": "SYS"})], "skipped", ""),
    ("NCC032", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC033", "forced", [node(env={"NCCL_NVLS_ENABLE": "1"})], "note", "forbids"),
    ("NCC033", "before", [node(env={"NCCL_NVLS_ENABLE": "1"}, version="2.26.5")], "ok", ""),
    ("NCC033", "the same", [node(env={"NCCL_NVLS_ENABLE": "1"}, version="2.29.2")], "ok", ""),
    ("NCC033", "automatic", [node(env={"NCCL_NVLS_ENABLE": "2"})], "ok", ""),
    ("NCC033", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC034", "clash", [node(env={"NCCL_CUMEM_ENABLE": "0", "NCCL_MNNVL_ENABLE": "1"})], "warn", "MNNVL"),
    ("NCC034", "alone", [node(env={"NCCL_CUMEM_ENABLE": "0"})], "note", ""),
    ("NCC034", "on", [node(env={"NCCL_CUMEM_ENABLE": "1"})], "ok", ""),
    ("NCC034", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC035", "one", [node(wheels=wheels(cu12="2.27.3"), wanted="2.27.3")], "ok", ""),
    ("NCC035", "newer", [node(wheels=wheels(cu12="2.28.3"), wanted="2.27.3")], "ok", ""),
    ("NCC035", "older", [node(wheels=wheels(cu12="2.18.1"), wanted="2.27.3")], "warn", "torch asks for 2.27.3"),
    ("NCC035", "two", [node(wheels=wheels(cu11="2.20.5", cu12="2.27.3"))], "warn", "2 packages"),
    ("NCC035", "none", [node(wheels=[])], "skipped", ""),
    ("NCC035", "unread", [node(wheels=DENIED)], "unknown", ""),
    ("NCC036", "mixed", [node("a", version="2.18.3"), node("b", version="2.18.3", cpu="GenuineIntel X")], "fail",
     "AuthenticAMD on a; GenuineIntel on b"),
    ("NCC036", "alike", [node("a", version="2.18.3"), node("b", version="2.18.3")], "ok", ""),
    ("NCC036", "mended", [node("a"), node("b", cpu="GenuineIntel X")], "skipped", ""),
    ("NCC036", "unread", [node("a", version="2.18.3"), node("b", cpu=DENIED)], "unknown", ""),
    ("NCC037", "both", [node(env={"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"})],
     "warn", "turns TORCH_NCCL_ASYNC_ERROR_HANDLING off"),
    ("NCC037", "old name", [node(env={"NCCL_BLOCKING_WAIT": "true"})], "note", "NCCL_BLOCKING_WAIT"),
    ("NCC037", "off", [node(env={"TORCH_NCCL_BLOCKING_WAIT": "0"})], "ok", ""),
    ("NCC037", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC038", "off", [node(env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})], "warn", "nobody ends"),
    ("NCC038", "monitor", [node(env={"TORCH_NCCL_ENABLE_MONITORING": "no"})], "warn", "MONITORING"),
    ("NCC038", "on", [node(env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"})], "ok", ""),
    ("NCC038", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC039", "short", [node(env={"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "30"})], "warn", "is killed"),
    ("NCC039", "shorter than the dump", [node(env={"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "200",
     "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "300000"})], "warn", "is killed"),
    ("NCC039", "long", [node(env={"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1800"})], "ok", ""),
    ("NCC039", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC040", "empty", [node(env={"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"})], "warn", "no entries"),
    ("NCC040", "full", [node(env={"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_BUFFER_SIZE": "2000"})], "ok", ""),
    ("NCC040", "by itself", [node(env={"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}, torch="2.11.0")], "ok", ""),
    ("NCC040", "unwatched", [node(env={"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_ENABLE_MONITORING": "0"},
                                  torch="2.11.0")], "warn", "monitor"),
    ("NCC040", "unread", [node(env={"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}, torch=DENIED)], "unknown", ""),
    ("NCC041", "fine", [node(env={"PYTORCH_CUDA_ALLOC_CONF":
     "expandable_segments:True,roundup_power2_divisions:[256:1,512:2],max_split_size_mb:128"})], "ok", ""),
    ("NCC041", "typo", [node(env={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size:128"})], "fail", "split_size_mb?"),
    ("NCC041", "true", [node(env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:true"})], "fail", "neither"),
    ("NCC041", "not known", [node(env={"PYTORCH_ALLOC_CONF": "quantum_pages:7"})], "note", "quantum_pages"),
    ("NCC041", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC042", "clash", [node(env={"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1",
                                   "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})], "warn", "turns"),
    ("NCC042", "hook alone", [node(env={"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"})], "ok", ""),
    ("NCC042", "unread", [node(env=DENIED)], "unknown", ""),
    ("NCC043", "outside", [node(env={"CUDA_DEVICE_MAX_CONNECTIONS": "64"})], "warn", "within 1 to 32"),
    ("NCC043", "one", [node(env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})], "note", ""),
    ("NCC043", "eight", [node(env={"CUDA_DEVICE_MAX_CONNECTIONS": "8"})], "ok", ""),
    ("NCC043", "unread", [node(env=DENIED)], "unknown", ""),
]  # fmt: skip


@pytest.mark.parametrize(("code", "case", "nodes", "state", "words"), CASES, ids=[f"{c[0]} {c[1]}" for c in CASES])
def test_rule(code: str, case: str, nodes: list[Node], state: str, words: str) -> None:
    judgement = verdict(code, *nodes)
    sentences = " / ".join(finding.what for finding in judgement.findings)
    assert judgement.state.value == state, f"{case}: {sentences}"
    assert words in sentences
    assert "could not be judged" not in sentences
