"""Logs that mean harm, or nothing: any bytes in bounded time and memory, and never a traceback."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import random
import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.probes.logs.files import prefixes, times
from ncclcheck.probes.logs.files.lines import LONGEST
from ncclcheck.probes.logs.match import Matcher, bare
from ncclcheck.probes.logs.reading import LogReading
from ncclcheck.probes.logs.signs import Sign, all_signs
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.reports.output import junit, markdown, prometheus, terminal
from ncclcheck.reports.output.anonymise import anonymised
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options
from tests.conftest import environment

SIGNS = all_signs()
_HEADS = st.sampled_from(
    [
        "", "3: ", "[default3]:", "[1,3]<stdout>:", "[rank3]: ", "(Worker pid=7, ip=10.0.0.1) ", "a-1  | ",
        "gpu-a17: ", "\x1b[31m", "gpu-a17:4711:4800 [3] NCCL INFO ", "gpu-a18:1:2 [0] misc/x.cc:7 NCCL WARN ",
        "2026-03-01T10:00:00Z ", "2026-99-99T99:99:99Z ", "[E1399 99:99:99.9 x.cpp:1] ", "99999999999999999999: ",
    ]
)  # fmt: skip
_MATCHER = Matcher()
_EXAMPLES = st.sampled_from([example for sign in SIGNS for example in sign.examples])
_MARKS = st.sampled_from(["\n", "\r\n", "\r", "\0", "NCCL ", " : ", " via ", "<0>"])
_SNIPPETS = st.one_of(_HEADS, _EXAMPLES, _MARKS, st.text())
_MADE = st.lists(_SNIPPETS, max_size=40).map(lambda parts: "".join(parts).encode(errors="replace"))
_ANY = st.one_of(st.binary(max_size=3000), _MADE, _MADE.map(gzip.compress))


def _told(files: list[bytes]) -> jsondoc.Document:
    reading = LogReading()
    for index, data in enumerate(files):
        file: BinaryIO = io.BytesIO(data)
        if data[:2] == b"\x1f\x8b":
            file = gzip.GzipFile(fileobj=file)  # type: ignore[assignment]
        reading.take(f"log{index}", file)
    cluster = Cluster(command="logs", measurements=Measurements(logs=reading.logs()))
    return finish.make(cluster, Options(command="logs"), finish.Story("2026-03-01T10:00:00+00:00", 1.0))


@settings(max_examples=120, deadline=20_000, suppress_health_check=list(HealthCheck))
@given(st.lists(_ANY, max_size=4))
def test_any_bytes_make_a_report(files: list[bytes]) -> None:
    document = _told(files)
    assert not [verdict for verdict in document.verdicts if verdict.code == "RUN004" and verdict.findings]
    assert terminal.text(document, terminal.Style(verbose=True))
    assert terminal.short(document, terminal.Style())
    for module in (markdown, junit, prometheus):
        assert module.text(document)
    assert jsondoc.decode(jsondoc.encode(anonymised(document)), Options(command="logs").policy)


@settings(max_examples=150, deadline=20_000, suppress_health_check=list(HealthCheck))
@given(st.lists(_SNIPPETS, max_size=6).map("".join))
def test_no_sign_is_lost_on_the_fast_way(line: str) -> None:
    fast = {sign.name for sign in _MATCHER.may(line[:LONGEST].encode(errors="replace"))}
    text = bare(line[:LONGEST].encode(errors="replace").decode(errors="backslashreplace"))
    assert {sign.name for sign in SIGNS if not sign.often and re.search(sign.pattern, text)} <= fast


def test_no_sign_is_lost_after_lines_with_other_digits() -> None:
    """Lines that differ in their digits are remembered as one."""
    examples = [example for sign in SIGNS for example in sign.examples]
    matcher, other_digits = Matcher(), str.maketrans("0123456789", "1234567891")
    for example in examples:
        matcher.may(example.translate(other_digits).encode())
    for example in examples:
        possible = {sign.name for sign in matcher.may(example.encode())}
        assert {sign.name for sign in _MATCHER.may(example.encode()) if not sign.often} <= possible


def _fragments(example: str) -> Iterator[str]:
    """Parts of an example, which repeated look like it for a long time."""
    words = re.findall(r"\w+|\W+", example)
    for length in (1, 2, 4, 8):
        yield from ("".join(words[at : at + length]) for at in range(0, len(words), 2))


def _of_class(example: str) -> Iterator[str]:
    """What patterns repeat: blanks, digits, letters, and what is between them."""
    yield from (" ", "0", "a", "A", "a ", "a.", "1,", "-", "[", "/a", "a:1", "\\", "'")
    yield from sorted({character for character in example if not character.isalnum()})


def _worst(pattern: re.Pattern[str], examples: tuple[str, ...]) -> tuple[float, str]:
    worst = (0.0, "")
    for example in examples:
        cuts = [example[:at] for at in range(0, len(example), max(1, len(example) // 6))]
        for before, part in itertools.chain(
            ((example[:-1], part) for part in _fragments(example)),
            itertools.product(cuts, _of_class(example)),
        ):
            for text in ((before + part * LONGEST)[:LONGEST], (before + part * LONGEST)[: LONGEST - 1] + "\1"):
                worst = max(worst, (_seconds(pattern, text), text[:80]))
    return worst


def _seconds(pattern: re.Pattern[str], text: str) -> float:
    """Of this process's own time, the better of two where the first seems slow: others run here too."""
    taken = []
    for _ in range(2):
        begun = time.process_time()
        pattern.search(text)
        taken.append(time.process_time() - begun)
        if taken[-1] < 0.02:
            break
    return min(taken)


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: sign.name)
def test_no_line_makes_a_pattern_slow(sign: Sign) -> None:
    seconds, text = _worst(re.compile(sign.pattern), sign.examples)
    assert seconds < 0.05, text


def test_no_line_makes_prefixes_and_times_slow() -> None:
    parts = (" ", "2026-03-01T10:00:00Z ", "3: ", "[rank3]: ", "[default3]:", "a", "a.", "a ", "a | ", "(a pid=1")
    for before, part in itertools.product(("", "gpu-a17", "[pod/"), parts):
        text = (before + part * LONGEST)[:LONGEST]
        begun = time.process_time()
        prefixes._prefix.__wrapped__(text)
        times.when(text)
        assert time.process_time() - begun < 0.05, text[:60]


def test_5_mb_are_read_at_once() -> None:
    """How fast it really is, benchmarks/log_speed.py tells; this only holds it to what no machine should miss."""
    data = b"".join(_lines(40_000))
    begun = time.process_time()
    reading = LogReading()
    reading.take("train.log", io.BytesIO(data))
    facts = reading.logs()
    assert len(data) > 5_000_000 * 0.8
    assert facts.files[0].lines == 40_000
    assert time.process_time() - begun < 5


def _lines(count: int) -> Iterator[bytes]:
    """A log of many ranks that says something new in every line."""
    chance = random.Random(7)
    for index in range(count):
        rank = chance.randrange(64)
        head = f"{rank}: gpu-a{rank // 8:02}:{4000 + rank}:{5000 + rank} [{rank % 8}] NCCL"
        yield (
            f"{head} INFO AllReduce: opCount {index:x} sendbuff {chance.getrandbits(48):#x} recvbuff 0x7f count "
            f"{chance.randrange(10**6)} datatype 7 op 0 root 0 comm 0x55 [nranks=64]\n",
            f"{head} INFO Channel {index % 32:02}/0 : {rank}[0] -> {(rank + 1) % 64}[0] via NET/IB/0/GDRDMA\n",
            f"{rank}: step {index} loss {chance.random():.6f} {chance.randbytes(60).hex()}\n",
            f"{head} WARN {chance.randbytes(20).hex()} failed\n",
            f"{chance.getrandbits(40)}: RuntimeError: Connection reset by peer {chance.randbytes(8).hex()}\n",
        )[index % 5].encode()


class _Endless(io.RawIOBase):
    """A file that is made while it is read."""

    def __init__(self, size: int) -> None:
        self._left, self._lines, self._rest = size, _lines(10**9), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while self._left > 0 and len(self._rest) < len(buffer):
            self._rest += b"".join(itertools.islice(self._lines, 5000))
        part, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        part = part if self._left > 0 else b""
        self._left -= len(part)
        buffer[: len(part)] = part
        return len(part)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_memory_is_bounded_where_every_line_is_a_new_one() -> None:
    reading = LogReading()
    tracemalloc.start()
    reading.take("train.log", io.BufferedReader(_Endless(40_000_000)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150_000_000


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_300_mb_fit_into_little_memory(tmp_path: Path) -> None:
    log, part = tmp_path / "train.log", b"".join(_lines(200_000))
    with log.open("wb") as file:
        while file.tell() < 300_000_000:
            file.write(part)
    argv = [sys.executable, "-m", "ncclcheck", "logs", str(log), "-o", "short"]
    with subprocess.Popen(argv, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        _, status, used = os.wait4(child.pid, 0)  # this child alone: others of the tests are larger
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 1
    assert used.ru_maxrss < 400_000  # KiB


@pytest.mark.parametrize(
    "line",
    [
        "gpu-a17:4711:4800 [3] NCCL INFO P2P Chunksize set to 999999999",
        "[rank9999999]: RuntimeError: NCCL error",
        "[1,9999999]<stderr>: RuntimeError: NCCL error",
        "gpu-a17:4711:4800 [3] NCCL INFO comm 0x1 rank 9999999 nranks 9999999 cudaDev 0 busId 1 - Init COMPLETE",
        "gpu-a17:4711:4800 [3] NCCL INFO Channel 00/0 : 9999999[0] -> 1[0] via NET/Socket/0",
    ],
)
def test_a_number_beyond_reason_leaves_a_result_that_can_be_read_again(line: str) -> None:
    data = b"gpu-a17:4711:4711 [3] NCCL INFO NCCL version 2.27.3+cuda12.9\n" + line.encode() + b"\n"
    assert jsondoc.decode(jsondoc.encode(_told([data])), Options(command="logs").policy)
