"""What one page says goes together: one value for a variable, and whom a command touches beyond the job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Verdict, Where, admin
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.subjects.nodes.fixes import touched
from tests.conftest import ROOT
from tests.helpers import pages, stories
from tests.helpers.logs import parsed

FOLDER = ROOT / "tests/data/logs/stories"

# /etc/hosts, MTU, sysctl, boot loader, PCI registers, a reset: who else feels it is the first question.
_CHANGES = re.compile(
    r">> ?/etc/hosts|sed -i.*/etc/(hosts|default)|\bmtu \d|sysctl -w|grubby --update|update-grub|\bsetpci\b"
    r"|--gpu-reset|\bip (addr|route|rule) (add|del)|\bmodprobe (?!-r)|systemctl (re)?start|mount -o remount"
)
_UNDONE = re.compile(r"\bundo(es)?\b")


def _remedies(document: Document) -> list[tuple[str, Remedy]]:
    return [(v.code, r) for v in document.verdicts for f in v.findings for r in f.remedies]


@pytest.mark.parametrize("name", stories.NAMES)
def test_one_page_says_one_thing(name: str) -> None:
    """Of each variable, and of each setting of the machine that a command changes."""
    document = stories.document(name)
    assert not pages.contradictions(document.verdicts, document.recommendations)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.log")), ids=lambda path: path.stem)
def test_so_does_a_page_of_logs(path: Path) -> None:
    cluster = Cluster(command="logs", measurements=Measurements(logs=parsed(path.read_bytes())))
    assert not pages.contradictions(judge(cluster), [])


def _page(*fixes: list[str]) -> list[Verdict]:
    findings = [
        Finding(state=State.NOTE, where=Where(node="n1"), what="", why="", owner="job", evidence=[],
                remedies=[admin("", *commands)])
        for commands in fixes
    ]  # fmt: skip
    return [Verdict(code="NET004", title="", state=State.NOTE, findings=findings)]


@pytest.mark.parametrize(
    ("line", "other", "differences"),
    [
        ("ip link set dev eth0 mtu 9000", "ip link set eth0 mtu 1500", ["MTU eth0 of n1"]),
        ("ip link set eth0 mtu 9000", "ip link set eth1 mtu 1500", []),
        ("ip link set eth0 mtu 9000   # on n2", "ip link set eth0 mtu 1500", []),
        ("sysctl -w vm.a=1", "sysctl vm.a=2", ["sysctl vm.a of n1"]),
        ("systemctl stop x", "systemctl enable --now x", ["service x of n1"]),
        ("systemctl restart x", "systemctl enable --now x", []),
        ("modprobe nvidia-peermem", "modprobe -r nvidia-peermem", ["module nvidia-peermem of n1"]),
        ("export A=1", "unset A", ["A"]),
        ("grubby --update-kernel=ALL --args='iommu=pt'", "grubby --update-kernel=ALL --args='iommu=off'",
         ["boot iommu of n1"]),
        ("#SBATCH --mem=0", "#SBATCH --mem=64G", ["sbatch mem of n1"]),
    ],
)  # fmt: skip
def test_what_counts_as_two_things(line: str, other: str, differences: list[str]) -> None:
    assert [*pages.contradictions(_page([line], [other]), [])] == differences


def test_a_module_that_is_loaded_anew_is_one_thing() -> None:
    reload = ["modprobe -r nvidia-peermem", "modprobe nvidia-peermem"]
    assert not pages.contradictions(_page(reload), [])


def test_what_changes_a_service_of_others_says_so() -> None:
    bad = [
        (name, code, line)
        for name in stories.NAMES
        for code, remedy in _remedies(stories.document(name))
        for line in remedy.commands
        if _CHANGES.search(line) and not _UNDONE.search(" ".join((remedy.text, *remedy.commands)))
    ]
    assert not bad


@pytest.mark.parametrize(
    ("line", "touches"),
    [
        ("sysctl -w net.ipv4.tcp_rmem='4096 131072 6291456'", "whole node"),
        ("ip link set eth0 mtu 9000", "All traffic"),
        ("echo '10.1.0.1 a' >> /etc/hosts", "asks for the name"),
        ("nvidia-smi --gpu-reset -i 0", "ends"),
        ("nvidia-smi -i 0 -mig 0", "All users of the GPU"),
        ("nvidia-smi -q -d POWER", ""),
        ("getent hosts a", ""),
        ("ip link show eth0", ""),
        ("systemctl status nvidia-fabricmanager", ""),
        ("sysctl net.ipv4.tcp_rmem", ""),
    ],
)
def test_whom_a_command_touches(line: str, touches: str) -> None:
    text = touched.with_touched("Do it.", [line])
    assert touches in text if touches else text == "Do it."


def test_what_says_so_itself_is_left_alone() -> None:
    assert touched.with_touched("Do it; 0 undoes it.", ["sysctl -w a=1"]) == "Do it; 0 undoes it."


# Machines that ran well as they were: nothing is to be set on them, and nothing of theirs to be taken away.
_SOUND = (
    "a-cloud-vm-with-accelerated-networking",
    "a-desktop-with-two-gaming-cards",
    "a-dgx-with-storage-and-a-bond",
    "a-megatron-script",
    "a-pod-beside-its-own-job",
    "a-virtual-function-on-one-host",
    "efa-with-the-plugin-of-2024",
    "googles-profile-for-tcpxo",
    "gpus-divided-by-mig",
    "pods-that-share-the-rdma-namespace",
    "rails-in-one-subnet",
    "roce-without-any-class",
)


@pytest.mark.parametrize("name", _SOUND)
def test_a_sound_machine_is_left_as_it_is(name: str) -> None:
    changed = [
        (recommendation.action, recommendation.variable)
        for recommendation in stories.document(name).recommendations
        if recommendation.action != "try"
    ]
    assert not changed
    assert not any(v.state is State.FAIL for v in stories.document(name).verdicts)
