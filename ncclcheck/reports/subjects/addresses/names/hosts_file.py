"""The line of /etc/hosts that gives a name its address, and takes it from wrong ones, harming no other name."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ADDRESS = re.compile(r"[0-9a-fA-F:.]+")


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
