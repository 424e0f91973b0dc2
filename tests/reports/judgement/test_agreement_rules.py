"""Agreement between machines: the odd one out by majority, a draw said as such, and what was not read."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Host,
    JobFacts,
    Limits,
    Nccl,
    Network,
    Node,
    PluginFile,
    Space,
    Stack,
    System,
    Variable,
)
from ncclcheck.reports.subjects.nodes.agree.alike import alike
from tests.helpers.clusters import ABSENT, DENIED, nic, verdict

TIB = 2**40


def node(name: str, **facts: Any) -> Node:
    """A node of a healthy cluster but for these facts."""
    get = facts.get
    shm = Space(size=get("shm", TIB // 2), free=TIB // 4, path="/dev/shm")
    plugins = [PluginFile(name=n, path=f"/x/{n}", sha256=digest) for n, digest in get("plugins", {}).items()]
    return Node(
        name=name,
        host=Host(
            kernel=get("kernel", "6.8.0"), system=get("system", "Ubuntu 24.04"), cores=get("cores", 96),
            memory=get("memory", TIB), memlock=get("memlock", Limits(soft=-1, hard=-1)),
            nofile=Limits(soft=get("nofile", 65536), hard=65536), shm=shm,
        ),
        network=Network(interfaces=[nic(f"e{i}", driver="mlx5_core") for i in range(get("cards", 2))]),
        nccl=Nccl(plugin_files=get("plugin_files", plugins)),
        stack=Stack(
            torch="2.8.0", torch_cuda=get("cuda", "12.8"), python="3.11.7",
            executable=get("python", "/v/bin/python"),
        ),
        system=System(cpu=get("cpu", "AuthenticAMD EPYC 9654")),
        job=JobFacts(variables=get("variables", [Variable(name=k, value=v) for k, v in get("env", {}).items()])),
    )  # fmt: skip


NET = {"libnccl-net.so": "1111111111112222"}
OTHER = {"libnccl-net.so": "3333333333332222"}
CASES: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    ("VER006", {}, {"kernel": "5.4.0"}, "warn", "kernel is 5.4.0; 2 of 3 nodes have 6.8.0"),
    ("VER007", {}, {"system": "Rocky 9"}, "warn", "Rocky 9"),
    ("VER008", {}, {"cuda": "11.8"}, "fail", "the CUDA of torch is 11.8"),
    ("VER009", {"plugins": NET}, {"plugins": OTHER}, "fail", "libnccl-net.so is 333333333333"),
    ("VER010", {}, {"cores": 95}, "warn", "the number of cores is 95"),
    ("VER010", {}, {"memory": TIB - 96 * 2**30}, "warn", "memory is 928 GiB"),
    ("VER010", {}, {"memory": TIB - 2**30}, "ok", ""),
    ("VER011", {}, {"nofile": 1024}, "warn", "the limit of open files is 1024"),
    ("VER011", {}, {"memlock": Limits(soft=65536, hard=-1)}, "warn", "locked memory is 65536"),
    ("VER011", {}, {"shm": 2**26}, "warn", "/dev/shm is 64 MiB"),
    ("VER012", {}, {"cards": 1}, "warn", "1 x mlx5_core; 2 of 3 nodes have 2 x mlx5_core"),
    ("VER013", {}, {"python": "/usr/bin/python3"}, "note", "the interpreter is /usr/bin/python (3.11.7)"),
    ("VER013", {}, {"python": "/v/bin/python3"}, "ok", ""),
    ("VER013", {}, {"python": "/v/bin/python3.11"}, "ok", ""),
    ("VER013", {}, {"python": "/v/bin/python3-dbg"}, "warn", "/v/bin/python3-dbg"),
    ("VER013", {"env": {"LD_LIBRARY_PATH": "/a"}}, {}, "warn", "LD_LIBRARY_PATH is not set"),
    ("VER013", {"env": {"CUDA_VISIBLE_DEVICES": "0,1"}}, {"env": {"CUDA_VISIBLE_DEVICES": "4,5"}}, "ok", ""),
    (
        "VER013",
        {"env": {"CUDA_VISIBLE_DEVICES": "0,1"}},
        {"env": {"CUDA_VISIBLE_DEVICES": "0"}},
        "warn",
        "is 1; 2",
    ),
    ("VER013", {"env": {"OMP_NUM_THREADS": "4"}}, {}, "note", "OMP_NUM_THREADS is not set"),
    ("VER014", {}, {"cpu": "GenuineIntel Xeon"}, "warn", "the processor is GenuineIntel Xeon"),
]


@pytest.mark.parametrize(("code", "all_", "odd", "state", "words"), CASES, ids=[f"{c[0]} {c[4]}" for c in CASES])
def test_the_odd_one_out(code: str, all_: dict[str, Any], odd: dict[str, Any], state: str, words: str) -> None:
    judgement = verdict(code, node("a", **all_), node("b", **all_), node("c", **odd))
    bad = [finding for finding in judgement.findings if finding.state is judgement.state and state != "ok"]
    assert judgement.state.value == state
    assert [finding.where.node for finding in bad] == ["c"] * len(bad)
    assert words in " / ".join(finding.what for finding in bad)


@pytest.mark.parametrize(("code", "all_"), sorted({case[0]: case[1] for case in CASES}.items()))
def test_all_alike_is_ok(code: str, all_: dict[str, Any]) -> None:
    assert verdict(code, node("a", **all_), node("b", **all_)).state.value == "ok"


UNREAD = [
    ("VER006", {"kernel": DENIED}), ("VER007", {"system": DENIED}), ("VER008", {"cuda": DENIED}),
    ("VER009", {"plugin_files": DENIED}), ("VER010", {"cores": DENIED}), ("VER011", {"memlock": DENIED}),
    ("VER013", {"variables": DENIED}), ("VER014", {"cpu": DENIED}),
]  # fmt: skip


@pytest.mark.parametrize(("code", "facts"), UNREAD)
def test_what_was_not_read_is_unknown(code: str, facts: dict[str, Any]) -> None:
    judgement = verdict(code, node("a"), node("b"), node("c", **facts))
    assert (judgement.state.value, judgement.findings[0].where.node) == ("unknown", "c")


def test_two_against_two_names_nobody() -> None:
    kernels = ("6.8.0", "6.8.0", "5.4.0", "5.4.0")
    judgement = verdict("VER006", *[node(f"n{i}", kernel=kernel) for i, kernel in enumerate(kernels)])
    assert [finding.where.node for finding in judgement.findings] == [None]
    assert "no value has the majority: 6.8.0 on n[0-1]; 5.4.0 on n[2-3]" in judgement.findings[0].what


def test_plugins_of_different_versions_are_named_by_them() -> None:
    files = [
        [PluginFile(name="net", path="/x", sha256=sha, product=product)]
        for sha, product in (("a" * 64, "aws-ofi-nccl 1.16.3"), ("b" * 64, "aws-ofi-nccl 1.9.1"))
    ]
    judgement = verdict("VER009", *[node(f"n{i}", plugin_files=files) for i, files in enumerate(files)])
    assert "aws-ofi-nccl 1.9.1 (bbbbbbbbbbbb) on n1" in judgement.findings[0].what


def test_no_plugin_anywhere_is_skipped() -> None:
    assert verdict("VER009", node("a"), node("b")).state.value == "skipped"


def test_a_torch_without_cuda_is_left_out() -> None:
    assert verdict("VER008", node("a"), node("b"), node("c", cuda=ABSENT)).state.value == "ok"


def test_sizes_within_five_percent_are_the_same() -> None:
    assert alike({"a": 1000, "b": 1040, "c": 1060}) == {"a": "1.02 KiB", "b": "1.02 KiB", "c": "1.02 KiB"}
    assert len(set(alike({"a": 1000, "b": 1000, "c": 1060}).values())) == 2
