"""Values of variables as people mistype them."""

from __future__ import annotations

import random

from msgspec import Struct

# Numbers that every NCCL from 2.23 on reads and prints in init, and that change nothing in two ranks of one host.
NUMBERS = ("NCCL_GRAPH_MIXING_SUPPORT", "NCCL_IGNORE_CPU_AFFINITY", "NCCL_DMABUF_ENABLE", "NCCL_NVB_DISABLE",
           "NCCL_SET_THREAD_NAME", "NCCL_GRAPH_DUMP_FILE_RANK")  # fmt: skip
LEVELS = ("NCCL_P2P_LEVEL",)
_ALGORITHMS = (
    "Ring",
    "tree",
    "RING",
    "CollnetDirect",
    "collnetchain",
    "NVLS",
    "NVLSTree",
    "PAT",
    "Rign",
    "0",
    "",
    "Ring ",
    " tree",
    "^ring",
)
_PROTOCOLS = ("LL", "ll", "LL128", "Simple", "simple", "LL12", "Sample", "2", "", "LL128 ", "^LL")
_OPERATIONS = (
    "allreduce",
    "AllReduce",
    "broadcast",
    "reduce",
    "allgather",
    "ReduceScatter",
    "all_reduce",
    "foo",
    "ring",
    "",
    "sendrecv",
)


class Setting(Struct, frozen=True, kw_only=True):
    """Variables that are set together. numbers, levels: those of which NCCL prints what they became."""

    env: dict[str, str]
    numbers: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()


def setting_case(rng: random.Random) -> Setting:
    """Six numbers and a level at once, or one list, or a level of the log."""
    kind = rng.choice(("numbers", "numbers", "NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG"))
    if kind == "numbers":
        env = {name: _number(rng) for name in NUMBERS}
        env["NCCL_P2P_LEVEL"] = _level(rng)
        return Setting(env=env, numbers=NUMBERS, levels=LEVELS)
    if kind == "NCCL_DEBUG":
        word = rng.choice(("INFO", "WARN", "VERSION", "TRACE", "ABORT", "NONE", "DEBUG", "ERROR", "1", ""))
        return Setting(env={kind: rng.choice((word, word, word.lower(), word.title(), f"{word} ", f" {word}"))})
    return Setting(env={kind: _list(rng, _ALGORITHMS if kind == "NCCL_ALGO" else _PROTOCOLS)})


def _number(rng: random.Random) -> str:
    value = rng.choice(
        (0, 1, 2, rng.randint(-9, 99), rng.randint(-(10**6), 10**6), 2**63 - 1, 2**63, -(2**63), 10**25)
    )
    form = rng.choice(
        (
            str,
            str,
            hex,
            lambda n: f"0{abs(n)}",
            lambda n: f"+{n}",
            lambda n: f"{n}.5",
            lambda n: f"{n}M",
            lambda n: f"{n}e3",
        )
    )
    before = rng.choice(("",) * 6 + (" ", "\t", "-", "=", '"'))
    after = rng.choice(("",) * 6 + (" ", " # why", "k", "_000", ",000", '"'))
    words = ("true", "False", "yes", "no", "on", "", " ", "x", "0x", "0b1", "0o7", "1_000", "٣", "0xg", "08", "09")
    return rng.choice(words) if rng.random() < 0.2 else f"{before}{form(value)}{after}"


def _level(rng: random.Random) -> str:
    word = rng.choice(
        (
            "LOC",
            "NVL",
            "PIX",
            "PXB",
            "PHB",
            "SYS",
            "NODE",
            "NET",
            "DIS",
            "",
            "0",
            "1",
            "5",
            "-1",
            "9x",
            "NVB",
            "PXN",
        )
    )
    return rng.choice((word, word, word.lower(), f"{word} ", f" {word}", word.title()))


def _list(rng: random.Random, words: tuple[str, ...]) -> str:
    entries = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        listed = rng.choice(("", "", "^")) + ",".join(rng.choice(words) for _ in range(rng.choice((1, 1, 2, 3))))
        entries.append(rng.choice((listed, listed, f"{rng.choice(_OPERATIONS)}:{listed}")))
    return ";".join(entries) + rng.choice(("", "", "", ";", ":"))
