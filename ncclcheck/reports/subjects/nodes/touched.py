"""Whom a command touches beyond the job, and how it is undone: said beside every fix that has such a command."""

from __future__ import annotations

import re
from collections.abc import Sequence

# What a command does to, what else it touches, and the way back.
_SHARED: tuple[tuple[str, str], ...] = (
    (r">> ?/etc/hosts|sed -i.* /etc/hosts", "Every program of the node that asks for the name is touched; undo: a "
     "copy of /etc/hosts made before."),
    (r"\bmtu \d", "All traffic of the interface is touched; undo: the same with the size from before."),
    (r"\bsysctl -w", "The whole node is touched; a reboot undoes it, unless it is kept in /etc/sysctl.d."),
    (r"\bgrubby --update|\bupdate-grub", "The whole node is touched; undo: the reverse and a reboot."),
    (r"\bsetpci\b", "All cards below the bridge are touched; a reboot undoes it."),
    (r"--gpu-reset", "All that runs on the GPU ends, which nothing undoes."),
    (r"\bnvidia-smi (-i \w+ )?-(mig|pl|rac|rgc|c|e|pm) ?\w*$", "All users of the GPU are touched; undo: the same "
     "with the value from before."),
    (r"\bip (addr|route|rule) (add|del)", "Other programs of the node use it too; undo: the reverse, or "
     "a reboot."),
    (r"\btc qdisc del", "All traffic of the interface is touched; undo: what had set it up, started again."),
    (r"\b(ip6?tables -I|nft (insert|add))", "All programs of the node are touched; a reboot, or the firewall read "
     "anew, undoes it."),
    (r"\b(systemctl|service) (start|restart|enable --now)", "All users of the service are touched; undo: "
     "systemctl stop (or disable --now), where it did not run before."),
    (r"(?<![\w-])modprobe (?!-r)", "The whole node is touched; undo: modprobe -r, or a reboot."),
    (r"\bmount -o remount", "All users of the mount are touched; undo: the same with the options from before."),
    (r"\bcpupower frequency-set", "The whole node is touched; undo: the same with the governor from before."),
    (r"\bhostnamectl set-hostname", "Every program that goes by the node's name is touched; undo: the same with "
     "the name from before."),
    (r"(^|\s|systemctl )reboot( |$)", "All that runs on the node ends, which nothing undoes."),
    (r"> ?/etc/(security|modules-load|sysctl|systemd)", "All users are touched from their next session or "
     "the next boot on; undo: the line taken out again."),
)  # fmt: skip
_SAID = re.compile(r"\bundo(es)?\b")


def said(text: str, commands: Sequence[str]) -> str:
    """The text with what its commands touch, each kind once; as it stands where it says so itself."""
    if _SAID.search(" ".join((text, *commands))):
        return text
    return " ".join([text, *touching(commands)])


def touching(commands: Sequence[str]) -> list[str]:
    """What is to be said of these commands; empty where they touch nobody else."""
    return [told for pattern, told in _SHARED if any(re.search(pattern, line) for line in commands)]
