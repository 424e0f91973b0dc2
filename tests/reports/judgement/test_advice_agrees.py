"""What one page says goes together: one value for a variable, and whom a command touches beyond the job."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from ncclcheck.reports.judgement.findings import Remedy, State
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.subjects.nodes import touched
from tests.helpers import stories

_SET = re.compile(r"(\w+)=('[^']*'|\"[^\"]*\"|\S+)")
# /etc/hosts, MTU, sysctl, boot loader, PCI registers, a reset: who else feels it is the first question.
_CHANGES = re.compile(
    r">> ?/etc/hosts|sed -i.*/etc/(hosts|default)|\bmtu \d|sysctl -w|grubby --update|update-grub|\bsetpci\b"
    r"|--gpu-reset|\bip (addr|route|rule) (add|del)|\bmodprobe (?!-r)|systemctl (re)?start|mount -o remount"
)
_UNDONE = re.compile(r"\bundo(es)?\b")


def _remedies(document: Document) -> list[tuple[str, Remedy]]:
    return [(v.code, r) for v in document.verdicts for f in v.findings for r in f.remedies]


def _told(document: Document) -> dict[str, dict[str | None, set[str]]]:
    """Variable -> value (None: unset) -> who says so, over lists of settings and fixes."""
    told: dict[str, dict[str | None, set[str]]] = defaultdict(lambda: defaultdict(set))
    for one in document.recommendations:
        told[one.variable][one.value].add(one.action.upper())
    for code, remedy in _remedies(document):
        for line in remedy.commands:
            typed = line.partition(" #")[0].strip()
            if typed.startswith("export "):
                for name, value in _SET.findall(typed):
                    told[name][value.strip("'\"")].add(code)
            elif typed.startswith("unset "):
                for name in typed.split()[1:]:
                    told[name][None].add(code)
    return told


@pytest.mark.parametrize("name", stories.NAMES)
def test_no_variable_has_two_values_on_one_page(name: str) -> None:
    several = {
        variable: dict(values) for variable, values in _told(stories.document(name)).items() if len(values) > 1
    }
    assert not several


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
    told = touched.said("Do it.", [line])
    assert touches in told if touches else told == "Do it."


def test_what_says_so_itself_is_left_alone() -> None:
    assert touched.said("Do it; 0 undoes it.", ["sysctl -w a=1"]) == "Do it; 0 undoes it."


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
    changed = [(one.action, one.variable) for one in stories.document(name).recommendations if one.action != "try"]
    assert not changed
    assert not any(v.state is State.FAIL for v in stories.document(name).verdicts)
