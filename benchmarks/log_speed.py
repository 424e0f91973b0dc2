"""How fast logs are read, by what is in them.

    python benchmarks/log_speed.py [--mb 100]

Megabytes a second of one core, the median of three; each kind but the first is a tenth of that size.
"""

from __future__ import annotations

import argparse
import io
import random
import resource
import string
import time
from collections.abc import Callable, Iterator

from tabulate import tabulate

from ncclcheck.probes.logs.reading import LogReading

_RANKS = 128


def big(megabytes: float, chance: random.Random) -> bytes:
    """A log as large jobs write it: the start of 128 ranks, then collectives, connections and training lines."""
    lines = [line for rank in range(_RANKS) for line in _start(rank)]
    size = sum(map(len, lines))
    while size < megabytes * 1e6:
        rank = chance.randrange(_RANKS)
        more = [
            f"{_head(rank)}AllReduce: opCount {size:x} sendbuff 0x7f{size:x} recvbuff 0x7f{size:x} count 1048576 "
            f"datatype 7 op 0 root 0 comm 0x55 [nranks={_RANKS}] stream 0x44",
            f"[rank{rank}]: 2026-05-16 16:39:51,208 INFO train step {size} loss {chance.random():.4f} "
            f"grad_norm {chance.random():.3f} tokens/s {chance.randrange(10000, 99999)}",
            f"{_head(rank)}Channel {rank % 32:02d}/0 : {rank}[0] -> {(rank + 1) % _RANKS}[0] via P2P/CUMEM/read",
        ]
        lines += more
        size += sum(map(len, more))
    return ("\n".join(lines) + "\n").encode()


def _head(rank: int) -> str:
    return f"gpu-a{rank // 8:02d}:{4000 + rank % 8}:4100 [{rank % 8}] NCCL INFO "


def _start(rank: int) -> Iterator[str]:
    head, comm = _head(rank), f"comm 0x55{rank:x} rank {rank} nranks {_RANKS} cudaDev 0 nvmlDev 0 busId 1b000"
    yield f"{head}Bootstrap: Using eth0:10.0.3.{rank // 8}<0>"
    yield f"{head}ncclCommInitRank {comm} commId 0x12 - Init START"
    for channel in range(32):
        yield f"{head}Channel {channel:02d}/0 : {rank}[0] -> {(rank + 8) % _RANKS}[0] [send] via NET/IB/0/GDRDMA"
    yield f"{head}ncclCommInitRank {comm} commId 0x12 - Init COMPLETE"


def kinds(megabytes: float) -> Iterator[tuple[str, bytes]]:
    """What logs are full of, from the usual to what is made to be slow."""
    chance = random.Random(1)
    yield "a large job", big(megabytes, chance)
    part = int(megabytes * 1e5)
    lines = big(part / 1e6, chance).splitlines()
    times = [f"2026-05-16T16:39:07.{chance.randrange(10**9):09d}Z stderr F ".encode() for _ in lines]
    yield "the same under Kubernetes", b"\n".join(time + line for time, line in zip(times, lines, strict=True))
    yield "the same under srun --label", b"\n".join(b"%3d: " % chance.randrange(16) + line for line in lines)
    yield "training steps", _filled(part, lambda: f"step {chance.randrange(10**6)} loss {chance.random():.4f}")
    words = [_word(chance) for _ in range(20_000)]
    yield "prose of 20,000 words", _filled(part, lambda: " ".join(chance.choices(words, k=14)))
    yield "words that are always new", _filled(part, lambda: " ".join(_word(chance) for _ in range(12)))
    yield "nothing but failures", _filled(part, lambda: _failure(chance))


def _filled(size: int, line: Callable[[], str]) -> bytes:
    lines: list[str] = []
    length = 0
    while length < size:
        lines.append(line())
        length += len(lines[-1]) + 1
    return "\n".join(lines).encode()


def _word(chance: random.Random) -> str:
    return "".join(chance.choices(string.ascii_lowercase, k=chance.randrange(2, 11)))


def _failure(chance: random.Random) -> str:
    rank = chance.randrange(64)
    return (
        f"[rank{rank}]:[E516 16:39:51.{chance.randrange(1000):03d} ProcessGroupNCCL.cpp:632] [Rank {rank}] "
        f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={chance.randrange(999)}, "
        f"OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) "
        f"ran for 600{chance.randrange(999):03d} milliseconds before timing out."
    )


def rate(data: bytes) -> float:
    """Megabytes a second of processor time."""
    rates = []
    for _ in range(3):
        begun = time.process_time()
        reading = LogReading()
        reading.take("log", io.BytesIO(data))
        reading.logs()
        rates.append(len(data) / 1e6 / (time.process_time() - begun))
    return sorted(rates)[1]


def main() -> None:
    """Print the table, and how much memory grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=100)
    rows = []
    grown = 0.0
    for kind, data in kinds(parser.parse_args().mb):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rows.append([kind, f"{len(data) / 1e6:.0f}", f"{rate(data):.0f}"])
        grown = max(grown, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    print(tabulate(rows, ["what is in the log", "MB", "MB/s of a core"], colalign=("left", "right", "right")))
    print(f"reading let memory grow by {grown:.0f} MiB at most")


if __name__ == "__main__":
    main()
