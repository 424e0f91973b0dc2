"""Connected components: names that pairs join."""

from __future__ import annotations

from collections.abc import Iterable


def connected(names: list[str], pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Groups of names that pairs join: the largest first, in the order of names within."""
    group_of = {name: [name] for name in names}
    for a, b in pairs:
        if group_of[a] is not group_of[b]:
            small, large = sorted((group_of[a], group_of[b]), key=len)
            large += small
            group_of |= dict.fromkeys(small, large)
    groups: dict[int, list[str]] = {}
    for name in names:
        groups.setdefault(id(group_of[name]), []).append(name)
    return sorted(groups.values(), key=lambda group: -len(group))
