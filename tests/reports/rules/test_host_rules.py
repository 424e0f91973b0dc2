"""Rules about the host: each raises, does not, and says unknown for what was not read."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Gpus,
    Job,
    Measurements,
    NameServer,
    Policy,
    Rdma,
    Resolution,
    Resolver,
    Resources,
    Unread,
)
from tests.helpers.clusters import ABSENT, DENIED, host, limits, nic, node, space, states_of, verdict

MIB, GIB = 2**20, 2**30
HCA = Rdma(hcas=["mlx5_0"])
EIGHT = Gpus(pci=[f"0000:{bus:02x}:00.0" for bus in range(8)], usable=8)


@pytest.mark.parametrize(
    ("soft", "locks", "state"),
    [
        (-1, False, "ok"),
        (64 * 1024, False, "fail"),
        (8 * MIB, True, "ok"),
        (GIB, False, "warn"),
        (33 * GIB, False, "ok"),
    ],
)
def test_memlock(soft: int, locks: bool, state: str) -> None:
    judgement = verdict("HST001", node("a", host=host(memlock=limits(soft), ipc_lock=locks), rdma=HCA, gpus=EIGHT))
    assert judgement.state.value == state


def test_memlock_without_rdma_is_skipped() -> None:
    judgement = verdict("HST001", node("a", host=host(memlock=limits(1), ipc_lock=False), rdma=Rdma(hcas=ABSENT)))
    assert (judgement.state.value, judgement.reason) == ("skipped", "there is none")


def test_memlock_of_a_login_node_is_skipped() -> None:
    gpus = Gpus(pci=ABSENT, devices=ABSENT)
    judgement = verdict("HST001", node("a", host=host(memlock=limits(65536), ipc_lock=False), rdma=HCA, gpus=gpus))
    assert (judgement.state.value, judgement.reason) == ("skipped", "no GPU on any node, so NCCL is not used")


@pytest.mark.parametrize(
    ("soft", "ranks", "state"),
    [
        (31, 2, "fail"),
        (32, 2, "warn"),
        (256, 2, "warn"),
        (1024, 2, "note"),
        (20000, 2, "ok"),
        (20000, 256, "warn"),
        (131072, 256, "ok"),
        (-1, 256, "ok"),
    ],
)
def test_open_files(soft: int, ranks: int, state: str) -> None:
    assert verdict("HST002", node("a", host=host(nofile=limits(soft))), job=Job(ranks=ranks)).state.value == state


@pytest.mark.parametrize(
    ("size", "free", "gpus", "state"),
    [
        (64 * MIB, 64 * MIB, 0, "warn"),
        (64 * MIB, 64 * MIB, 8, "fail"),
        (64 * GIB, 0, 8, "fail"),
        (64 * GIB, 60 * GIB, 8, "ok"),
    ],
)
def test_shared_memory(size: int, free: int, gpus: int, state: str) -> None:
    judgement = verdict("HST003", node("a", host=host(shm=space(size, free)), gpus=Gpus(usable=gpus)))
    assert judgement.state.value == state


def test_a_threshold_of_the_site_counts() -> None:
    small = node("a", host=host(shm=space(64 * MIB, 64 * MIB)))
    policy = Policy(thresholds={"HST003.shm_gib": 0.05})
    assert verdict("HST003", small, policy=policy).state.value == "ok"


@pytest.mark.parametrize(("free", "state"), [(0, "fail"), (100 * MIB, "warn"), (GIB, "ok")])
def test_temporary_directory(free: int, state: str) -> None:
    assert verdict("HST004", node("a", host=host(tmp=space(2 * GIB, free)))).state.value == state


@pytest.mark.parametrize(("addresses", "state"), [([], "warn"), (["10.1.0.1"], "ok")])
def test_own_name(addresses: list[str], state: str) -> None:
    named = host(own_name=Resolution(name="a", addresses=addresses))
    assert verdict("HST005", node("a", host=named)).state.value == state


MUTE = NameServer(address="10.9.0.53", answered=False)
LATE = Unread("timed_out", "getaddrinfo(a) gave no answer in 5 s")


@pytest.mark.parametrize(
    ("env", "files", "order", "servers", "state", "says"),
    [
        ({}, [], "files dns", [MUTE], "fail", "takes loopback"),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, [], "files dns", [MUTE], "warn", "takes loopback"),
        ({}, ["10.1.0.1"], "files dns", [MUTE], "unknown", ""),  # the file has it: something else is slow
        ({}, ["10.1.0.1"], "", [MUTE], "unknown", ""),
        ({}, ["10.1.0.1"], "dns files", [MUTE], "fail", "before /etc/hosts (nsswitch.conf: dns files)"),
        ({}, ["10.1.0.1"], "dns", [MUTE], "fail", "before /etc/hosts"),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, ["10.1.0.1"], "dns files", [MUTE], "warn", "before /etc/hosts"),
        ({}, [], "files dns", [MUTE, NameServer(address="10.9.0.54", answered=True)], "fail", "waits 5 s"),
        ({}, [], "files dns", [], "unknown", ""),
    ],
)
def test_an_own_name_that_waits_for_mute_servers(
    env: dict[str, str], files: list[str], order: str, servers: list[NameServer], state: str, says: str
) -> None:
    sources = Resolver(name="a", seconds=5.0, files=files, servers=servers, order=order)
    slow = node("a", host=host(own_name=LATE, own_sources=sources), env=env)
    fine = node("b", host=host(own_name=Resolution(name="b", addresses=["10.1.0.2"])))
    (finding,) = [finding for finding in verdict("HST005", slow, fine).findings if finding.where.node == "a"]
    assert finding.state.value == state
    assert says in finding.what
    assert verdict("RUN004", slow, fine).state.value == ("unknown" if state == "unknown" else "ok")


@pytest.mark.parametrize(
    ("usable", "env", "gpus", "state"),
    [
        (1.0, {}, 8, "warn"),
        (64.0, {}, 8, "ok"),
        (64.0, {"OMP_NUM_THREADS": "64"}, 8, "warn"),
        (64.0, {"OMP_NUM_THREADS": "8,2"}, 8, "ok"),
        (64.0, {"OMP_NUM_THREADS": "a lot"}, 8, "warn"),
        (1.5, {"LOCAL_WORLD_SIZE": "2"}, 8, "warn"),
        (2.0, {}, 0, "ok"),
    ],
)
def test_cores(usable: float, env: dict[str, str], gpus: int, state: str) -> None:
    judgement = verdict(
        "HST006", node("a", env=env, host=host(usable_cores=usable, cores=64), gpus=Gpus(usable=gpus))
    )
    assert judgement.state.value == state


@pytest.mark.parametrize(("order", "helps"), [("dns", True), ("files dns", False), ("", False)])
def test_where_hosts_are_not_read_from_files_the_fix_lets_them_be(order: str, helps: bool) -> None:
    sources = Resolver(name="a", seconds=0.0, order=order)
    own = host(own_name=Resolution(name="a", addresses=[]), own_sources=sources)
    (finding,) = verdict("HST005", node("a", nic("eth0", "10.1.0.1/24"), host=own)).findings
    commands = [line for fix in finding.remedies for line in fix.commands]
    assert any("nsswitch.conf" in line for line in commands) is helps
    assert any("10.1.0.1 a" in line for line in commands)


def test_ranks_that_this_run_planned_come_before_a_leftover_variable() -> None:
    leftover = node("b", env={"LOCAL_WORLD_SIZE": "8"}, host=host(usable_cores=2.0, cores=2))
    job = Job(ranks=2, nodes_asked=2)
    assert (
        verdict("HST006", node("a", host=host(usable_cores=2.0, cores=2)), leftover, job=job).state.value == "ok"
    )
    assert verdict("HST006", leftover).state.value == "warn"


_MAX = "/sys/fs/cgroup/job.slice/t.service/cpu.max"


@pytest.mark.parametrize(
    ("usable", "path", "throttled", "state", "lifts"),
    [
        (0.1, _MAX, None, "fail", "systemctl set-property --runtime t.service CPUQuota="),
        (0.1, "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", 0.98, "fail", "echo -1 >/sys/fs/cgroup/cpu/x/cpu.cfs_q"),
        (0.9, "/sys/fs/cgroup/cpu.max", 0.7, "fail", "echo max >/sys/fs/cgroup/cpu.max"),
        (0.1, "/sys/fs/cgroup/kubepods.slice/p1.slice/cpu.max", None, "fail", "set-property --runtime p1.slice"),
        (0.1, "/sys/fs/cgroup/docker/0123456789abcdef/cpu.max", None, "fail", "docker update --cpus="),
        (0.1, _MAX, 0.1, "warn", "CPUQuota="),
        (0.9, _MAX, None, "warn", "CPUQuota="),
        (1.0, _MAX, 0.9, "ok", ""),
    ],
)  # fmt: skip
def test_a_quota_of_less_than_a_core_a_rank(
    usable: float, path: str, throttled: float | None, state: str, lifts: str
) -> None:
    machine = node("a", host=host(usable_cores=usable, cores=64, quota_path=path))
    had = [] if throttled is None else [Resources(node="a", seconds=9.0, throttled=throttled, quota=usable)]
    judgement = verdict("HST006", machine, measurements=Measurements(resources=had))
    assert judgement.state.value == state
    assert lifts in " ".join(c for f in judgement.findings for r in f.remedies for c in r.commands)


def test_a_quota_of_a_core_a_rank_is_enough_for_one_thread_each() -> None:
    limited = host(usable_cores=8.0, cores=64, quota_path=_MAX)
    (warned,) = verdict(
        "HST006", node("a", env={"OMP_NUM_THREADS": "2"}, host=limited, gpus=Gpus(usable=8))
    ).findings
    assert warned.remedies[0].commands == ["export OMP_NUM_THREADS=1"]


def test_cores_of_simulated_nodes_are_not_judged() -> None:
    machine = node("sim0", host=host(usable_cores=1.0))
    assert verdict("HST006", machine, job=Job(simulated=True, ranks=8, nodes_asked=2)).state.value == "skipped"


@pytest.mark.parametrize(("limit", "state"), [(4 * GIB, "warn"), (64 * GIB, "ok"), (ABSENT, "skipped")])
def test_memory_limit(limit: Any, state: str) -> None:
    judgement = verdict("HST007", node("a", host=host(memory_limit=limit, memory=GIB), gpus=Gpus(usable=8)))
    assert judgement.state.value == state


@pytest.mark.parametrize(
    ("name", "state"), [("hpet", "warn"), ("acpi_pm", "warn"), ("tsc", "ok"), ("kvm-clock", "ok")]
)
def test_clocksource(name: str, state: str) -> None:
    judgement = verdict("HST008", node("a", host=host(clocksource=name)), node("b", host=host(clocksource="tsc")))
    assert judgement.state.value == state
    assert states_of(judgement) == ([("warn", "a")] if state == "warn" else [])


@pytest.mark.parametrize(
    ("code", "fact"),
    [
        ("HST001", "memlock"), ("HST002", "nofile"), ("HST003", "shm"), ("HST004", "tmp"), ("HST005", "own_name"),
        ("HST006", "usable_cores"), ("HST007", "memory_limit"), ("HST008", "clocksource"),
    ],
)  # fmt: skip
def test_what_was_not_read_is_unknown(code: str, fact: str) -> None:
    judgement = verdict(code, node("a", host=host(**{"ipc_lock": False, fact: DENIED}), rdma=HCA, gpus=EIGHT))
    assert states_of(judgement) == [("unknown", "a")]
