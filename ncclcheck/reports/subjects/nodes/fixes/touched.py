"""Whom a command touches beyond the job, and how it is undone: said beside every fix that has such a command."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ETC = r"/etc/(?!hosts)"
# What a command does to, what else it touches, and the way back.
_SHARED: tuple[tuple[str, str], ...] = (
    (r">> ?/etc/hosts|sed -i.* /etc/hosts",
     "Every program of the node that asks for the name is touched; undo: a copy of /etc/hosts made before."),
    (rf"sed -i.* {_ETC}|>>? ?{_ETC}|\btee (-a )?{_ETC}",
     "All users are touched from their next session, the next start of the service or the next boot on; "
     "undo: the line as it was before."),
    (r"# ?slurm\.conf",
     "All jobs are touched from the next `scontrol reconfigure` on; undo: the line as it was before."),
    (r"\bip link set\b|\bmtu \d",
     "All traffic of the interface is touched; undo: the same with what it had before."),
    (r"\bethtool (-[AGKLNXs]|--set)|\bmlnx_qos\b.*=|\bcma_roce",
     "All traffic of the interface is touched; undo: the same with the value from before."),
    (r"\bsysctl (-\w )?[\w./{}]+=|\bsysctl -w",
     "The whole node is touched; a reboot undoes it, unless it is kept in /etc/sysctl.d."),
    (r"(>|tee) ?'?/(sys|proc)/",
     "The whole node is touched; undo: the value from before, or a reboot."),
    (r"\bgrubby --update|\bupdate-grub",
     "The whole node is touched; undo: the reverse and a reboot."),
    (r"\bsetpci (-v )?-s \S+ \S+=",
     "All cards below the bridge are touched; a reboot undoes it."),
    (r"--gpu-reset",
     "All that runs on the GPU ends, which nothing undoes."),
    (r"\bmlxfwreset\b",
     "All traffic of the card stops for seconds, which nothing undoes."),
    (r"\bmlxconfig\b.* set\b",
     "All users of the card are touched from the next boot on; undo: the same with the value from before."),
    (r"\bperfquery (-\w )?-[rR]\b|\bibclear",
     "The counters begin at 0 again for all who watch them, which nothing undoes."),
    (r"\bnvidia-smi (-i \w+ )?-(mig|pl|rac|rgc|c|e|pm) ?\w*$",
     "All users of the GPU are touched; undo: the same with the value from before."),
    (r"\bip (-\d )?(addr|route|rule|neigh) (add|del|replace|change|flush)",
     "Other programs of the node use it too; undo: the reverse, or a reboot."),
    (r"\btc (qdisc|filter|class) (del|add|replace|change)",
     "All traffic of the interface is touched; undo: what had set it up, started again."),
    (r"\b(ip6?tables (-t \w+ )?-[IADF]\b|nft (insert|add|delete|flush)|ufw \w|firewall-cmd .*--(add|remove)-)",
     "All programs of the node are touched; a reboot, or the firewall read anew, undoes it."),
    (r"\bsystemctl (set-property|edit)\b",
     "All that runs in the unit is touched; undo: systemctl revert and its name."),
    (r"\bsystemctl (isolate|stop|disable|mask)\b",
     "All users of the service lose it; undo: systemctl start (or enable --now, isolate with the target "
     "from before)."),
    (r"\b(systemctl|service) ((re)?start|reload|enable)\b",
     "All users of the service are touched; undo: systemctl stop (or disable --now), where it did not run "
     "before."),
    (r"(?<![\w-])modprobe (?!-r)",
     "The whole node is touched; undo: modprobe -r, or a reboot."),
    (r"(?<![\w-])(modprobe -r|rmmod)\b",
     "All that uses the module is touched; undo: modprobe and its name."),
    (r"\bmount -o \w",
     "All users of the mount are touched; undo: the same with the options from before."),
    (r"(^|&& |; )mount (-a|/|[A-Z])",
     "All users of the directory are touched; undo: umount."),
    (r"(^|&& |; )umount\b",
     "All who have files open there are touched; undo: mount."),
    (r"\bcpupower frequency-set",
     "The whole node is touched; undo: the same with the governor from before."),
    (r"\bswapo(ff|n)\b",
     "The whole node is touched; undo: the other of swapoff and swapon."),
    (r"\bhostnamectl set-hostname",
     "Every program that goes by the node's name is touched; undo: the same with the name from before."),
    (r"\bchronyc makestep|\bdate -s",
     "The clock of every program of the node jumps, which nothing undoes."),
    (r"\bchmod \d+ /(dev|tmp|etc|var)",
     "All users of the node are touched; undo: chmod with the mode from before."),
    (r"\brm (-\w+ )?/(dev/shm|tmp|var)",
     "A job that still runs loses its files there too, which nothing undoes."),
    (r"\bsystemd-tmpfiles --clean",
     "Old files of all users go, which nothing undoes."),
    (r"\bscontrol (update|resume|reconfigure)",
     "All whose jobs wait for the node are touched; undo: scontrol update with the state from before."),
    (r"\bkubectl (label|annotate|patch|delete|drain|(un)?cordon|apply)",
     "All pods that it selects are touched; undo: the same with the value from before."),
    (r"\bkill -STOP",
     "Their work stands still; undo: kill -CONT."),
    (r"(^|\s|systemctl )reboot( |$)",
     "All that runs on the node ends, which nothing undoes."),
)  # fmt: skip
_SAID = re.compile(r"\bundo(es)?\b")


def with_touched(text: str, commands: Sequence[str]) -> str:
    """The text with what its commands touch, each kind once; as it stands where it says so itself."""
    if _SAID.search(" ".join((text, *commands))):
        return text
    return " ".join([text, *touching(commands)])


def touching(commands: Sequence[str]) -> list[str]:
    """What is to be said of these commands; empty where they touch nobody else."""
    return [words for pattern, words in _SHARED if any(re.search(pattern, line) for line in commands)]
