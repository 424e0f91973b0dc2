"""Which verdicts count as finding a kind of defect: any one of these codes."""

from __future__ import annotations

KINDS: dict[str, tuple[str, ...]] = {
    "examinable": ("DAT001",),
    "unreadable": ("DAT002",),
    "length": ("DAT002",),
    "none": ("DAT002", "DAT014"),
    "crash": ("DAT003", "DAT002"),
    "hang": ("DAT003", "DAT028"),
    "race": ("DAT004",),
    "threads": ("DAT004", "DAT006"),
    "shared-offset": ("DAT005", "DAT004"),
    "handle-at-fork": ("DAT005",),
    "connection-at-fork": ("DAT005", "DAT004"),
    "order": ("DAT006", "DAT004"),
    "in-place": ("DAT006",),
    "buffer": ("DAT007",),
    "first-touch": ("DAT008", "DAT004"),
    "same-stream": ("DAT009", "DAT010"),
    "same-epochs": ("DAT010",),
    "frozen": ("DAT010",),
    "same-on-ranks": ("DAT011",),
    "uncontrolled": ("DAT012",),
    "hash": ("DAT012", "DAT019"),
    "stale-epoch": ("DAT013",),
    "stacking": ("DAT014",),
    "options": ("DAT015",),
    "refused": ("DAT015", "DAT001"),
    "coverage": ("DAT016",),
    "same-order": ("DAT017",),
    "uneven": ("DAT018",),
    "index-map": ("DAT019",),
    "descriptors": ("DAT020",),
    "memory": ("DAT021",),
    "views": ("DAT022",),
    "shm": ("DAT023",),
    "open-files": ("DAT023", "DAT020"),
    "pickle": ("DAT024",),
    "workers": ("DAT025",),
    "slow": ("DAT026",),
    "fallback": ("DAT027",),
    "fork": ("DAT028", "DAT003"),
}

# Entropy that no seed controls gives no verdict of race: naming it is all that can be done.
NAMED_IS_ENOUGH = frozenset({"uncontrolled", "hash"})
