"""The line of /etc/hosts that gives a name its address, and takes it from wrong ones, harming no other name."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ncclcheck.probes.facts import Node, Resolver, at

FILES_FIRST = "sed -i.before -E '/^hosts:/{s/[[:space:]]files//; s/^hosts:/hosts: files/}' /etc/nsswitch.conf"
# Of the files that Debian and Red Hat install: names of every machine's loopback, which its programs ask for.
LOOPBACK_NAMES = {"localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"}
_ADDRESS = re.compile(r"[0-9a-fA-F:.]+")


def asked(node: Node) -> list[str]:
    """What lets a node ask /etc/hosts at all, before its name servers, where nsswitch.conf leaves it out."""
    sources = at(node, "host.own_sources")
    left_out = isinstance(sources, Resolver) and bool(sources.order) and "files" not in sources.order.split()
    return [f"{FILES_FIRST}   # on {node.name}: it asks {sources.order} alone now"] if left_out else []


def named(name: str, address: str, wrong: Iterable[str]) -> str:
    """A command for the shell: the name leaves the lines of these addresses, and gets its own.

    Other names stay on their lines (`127.0.0.1 localhost NAME` keeps localhost); a line without a name is removed.
    """
    word = name if re.fullmatch(r"[A-Za-z0-9_.-]+", name) else "NAME"
    mine = rf"s/[[:space:]]+{_literal(word)}([[:space:]]|$)/\1/g"
    right = address if _ADDRESS.fullmatch(address) else "ADDRESS"
    lines = [_literal(old) for old in dict.fromkeys(wrong) if old != address and _ADDRESS.fullmatch(old)]
    edits = [
        f"-e '/^[[:space:]]*{line}[[:space:]]/{mine}' -e '/^[[:space:]]*{line}[[:space:]]*$/d'" for line in lines
    ]
    removed = f"sed -i -E {' '.join(edits)} /etc/hosts && " if edits else ""
    return f"{removed}echo '{right} {word}' >> /etc/hosts"


def _literal(text: str) -> str:
    return text.replace(".", "[.]")
