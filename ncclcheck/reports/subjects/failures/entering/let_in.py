"""A login that one host refuses and the others take: its sshd's own settings, or its authorized_keys."""

from __future__ import annotations

import re
from shlex import quote

from ncclcheck.probes.facts import Cluster, replace
from ncclcheck.reports.judgement.findings import Finding, Remedy, admin
from ncclcheck.reports.text.words.fold import fold_names

_USER = re.compile(r"^(?P<user>[A-Za-z_][\w.-]*)@\S+: Permission denied", re.MULTILINE)


def explained(cluster: Cluster, finding: Finding, words: re.Match[str] | None) -> Finding:
    """The finding of a host that refuses the keys with which others were entered. words: what ssh said of it."""
    keys = words.groupdict().get("keys") if words else None
    silent = {silence.node: silence for silence in cluster.run.silent}
    others = [node.name for node in cluster.nodes if node.name not in silent]
    node = finding.where.node or ""
    if not keys or not others or node not in silent or cluster.job.launcher != "ssh":
        return finding
    named = _USER.search(silent[node].detail)
    user = named["user"] if named else "the account"
    return replace(
        finding,
        what=f"its sshd refuses {user} (permission denied), and {fold_names(others)} did not: its authorized_keys "
        "lacks the key, or is not read since others may write to it, to .ssh or to the home folder (StrictModes); "
        "or AllowUsers or DenyUsers leave the account out, it has expired, or its login shell does not exist; "
        f"offered: {keys}",
        remedies=[_see(node, user if named else "USER"), *finding.remedies],
    )


def _see(node: str, user: str) -> Remedy:
    node = quote(node)
    home = f"~{user}"
    shell = f"getent passwd {user} | cut -d: -f7 | xargs ls -l   # on {node}: its login shell"
    return admin(
        "Read why in sshd's log: `bad ownership or modes for` names what others may write to, `not allowed "
        "because ...` the setting or the login shell, `has expired` the account, `Failed publickey` the key. "
        "Where it is AllowUsers, add the account; undo: the copy of the file.",
        "journalctl -u ssh -u sshd | grep -E 'bad ownership|not allowed|refused|expired|Failed publickey' | "
        f"tail -3   # on {node}",
        f"ls -ld {home} {home}/.ssh {home}/.ssh/authorized_keys   # on {node}",
        f"chmod go-w {home} {home}/.ssh {home}/.ssh/authorized_keys   # on {node}: where others may write",
        f"chage -l {user} | grep -i 'account expires'; chage -E -1 {user}   # on {node}: the second where it has",
        shell,
        f"sshd -T | grep -iE '^(allow|deny)(users|groups)'   # on {node}",
        f"sed -i.before -E 's/^([[:space:]]*AllowUsers[[:space:]].*)$/\\1 {user}/I' /etc/ssh/sshd_config && "
        f"{{ systemctl reload ssh || systemctl reload sshd; }}   # on {node}",
    )
