"""No command of a fix changes what others use without a word on whom it touches and how it is undone.

Every text of the rules that begins as a command is looked at, whether a story prints it or not.
"""

# ruff: noqa: E501

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from ncclcheck.reports.subjects.nodes.fixes import touched
from tests.conftest import ROOT

# Programs that can change a machine, a queue or a cluster. What they only show is not meant.
_ABLE = re.compile(
    r"(sudo )?(echo .*>|(sysctl|ip|ethtool|systemctl|service|mount|umount|modprobe|rmmod|chmod|tee|sed -i|rm|setpci"
    r"|nft|ip6?tables|ufw|firewall-cmd|hostnamectl|chronyc|scontrol|kubectl|nvidia-smi|mlxconfig|mlxfwreset|mlnx_qos"
    r"|cma_roce\S*|perfquery|tc|grubby|update-grub|reboot|swapoff|cpupower|kill|systemd-tmpfiles|nmcli|netplan) )"
)
_SHOWS = re.compile(
    r"sysctl (-a|[\w. {}*]+)( \||$)|ip (-\S+ )*(addr|address|link|route|rule|neigh|maddr)?( show\b.*| get\b.*| ?[|;].*| +X| of X|)$"
    r"|ethtool (-[SimkacgnlT] )?[\w'{}()./]+( \||;|$)|systemctl (status|show|is-active|cat|list-\S+)\b|service \S+ status"
    r"|mount( \||$)|mount \| |nft (-a )?list|ip6?tables (-t \w+ )?-[SL]\b|ip6?tables-save|ufw status|firewall-cmd --list"
    r"|chronyc (tracking|sources)|scontrol (ping|show)|kubectl (get|describe|explain|logs|top|auth|version)\b"
    r"|nvidia-smi($| \||;| (topo|-L|-q|--query\S*|nvlink|-i \S+($| -q| nvlink)|dmon|pmon|conf-compute))|tc (-s )?(qdisc|class|X) show"
    r"|perfquery(?! -[rR])|mlxconfig -d \S+ (-\w )?q|grubby --info|mlnx_qos -i \S+$|kill -(CONT|0)|setpci -s \S+ [\w+.]+$"
    r"|hostnamectl( status)?$|kubectl label NODE"
)
# The job's own: a process of it, its files, a queue entry, a place that it made.
_OWN = re.compile(
    r"kill |rm (-\w+ )?(--|~|\./|DIR)|chmod (\+x|600 |go-w )|scontrol (release|requeue) |echo .*>> ?~|echo X >X|mount options$"
)


def _texts() -> Iterator[tuple[str, str]]:
    """Where it stands, and every text of the reports; a hole is X."""
    for path in sorted((ROOT / "ncclcheck/reports").rglob("*.py")):
        tree = ast.parse(path.read_text())
        pieces = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            text = None
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
                text = text.replace("ipX ", "ip ")  # with or without -6
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
                text = node.value
            if text is not None and isinstance(node, ast.expr) and "\n    " not in text:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


@cache
def _commands() -> list[tuple[str, str]]:
    return [(place, text) for place, text in _texts() if _ABLE.match(text)]


def _is_unsaid(text: str) -> bool:
    typed = text.partition(" #")[0].strip()
    return not (_SHOWS.match(typed) or _OWN.match(typed) or touched.touching([text]) or "undo" in text)


def test_every_command_that_touches_others_says_so() -> None:
    assert not [(place, text) for place, text in _commands() if _is_unsaid(text)]


def test_there_are_such_commands() -> None:
    assert sum(bool(touched.touching([text])) for _, text in _commands()) > 60


@pytest.mark.parametrize("line", ["ip link set eth0 nomaster", "nft flush ruleset", "mlxconfig -d X -y set A=1",
                                  "systemctl stop slurmd", "sysctl vm.x=1"])  # fmt: skip
def test_what_changes_is_no_showing(line: str) -> None:
    assert _ABLE.match(line)
    assert not _SHOWS.match(line)
    assert touched.touching([line])
