"""Commands that change the kernel command line, as the distribution of a node does it; each with its way back."""

from __future__ import annotations

import re

from ncclcheck.probes.facts import Node, at, value_or

_WITH_UPDATE_GRUB = ("ubuntu", "debian", "dgx os", "mint", "pop!_os")


def add(node: Node, option: str) -> list[str]:
    """Add an option from the next boot on."""
    edit = f"sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{option} /' /etc/default/grub"
    return _either(node, edit, f"--args='{option}'", f"--remove-args='{option}'")


def remove(node: Node, option: str) -> list[str]:
    """Take an option out from the next boot on."""
    word = re.sub(r"([\\/.*^$\[\]&])", r"\\\1", option)
    edit = f"sed -i -E '/^GRUB_CMDLINE_LINUX/s/(\"| ){word}( |\")/\\1\\2/' /etc/default/grub"
    return _either(node, edit, f"--remove-args='{option}'", f"--args='{option}'")


def _either(node: Node, edit: str, change: str, undo: str) -> list[str]:
    """By the name of the distribution; where it is not known, by grubby, which others than Debian have."""
    system = value_or(at(node, "host.system"), "").lower()
    if any(name in system for name in _WITH_UPDATE_GRUB):
        back = "# undo: cp -p /etc/default/grub.before /etc/default/grub && update-grub"
        return ["cp -p /etc/default/grub /etc/default/grub.before", edit, f"update-grub   {back}"]
    return [f"grubby --update-kernel=ALL {change}   # undo: grubby --update-kernel=ALL {undo}"]
