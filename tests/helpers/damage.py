"""Recorded machines whose files are damaged: changed, gone, or something else than a file."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.survey import survey

WORDS = (
    b"", b"-1", b"0", b"1", b"3.5", b"1e999", b"nan", b"inf", b"9" * 20, b"9" * 400, b"9" * 4400,
    b"18446744073709551615", b"0xffffffffffffffff", b"1_0", b"+5", b" ", b"\n", b"\0", b"\xff", "²".encode(),
    "١".encode(), b"null", b"true", b"{}", b"[]", b'"', b"%s", b"..", b"/", b"-", b"0-", b"0-9999999999", b":",
    b",", b"=", b"max", b"unlimited", b"\x1b[31m", b"\\ud800",
)  # fmt: skip
_TOKEN = re.compile(rb"[\w.]+")


class Damage(NamedTuple):
    """One path and what becomes of it. place: which word or line, or how many bytes."""

    path: str
    kind: str
    place: int
    text: bytes


def damages(paths: Iterable[str]) -> st.SearchStrategy[list[Damage]]:
    """Up to eight of these paths damaged; most are still read by somebody afterwards."""
    kinds = [
        "word",
        "word",
        "word",
        "bytes",
        "cut",
        "line",
        "twice",
        "missing",
        "folder",
        "loop",
        "pipe",
        "closed",
    ]
    text = st.sampled_from(WORDS) | st.binary(max_size=60)
    damage = st.builds(
        Damage,
        st.sampled_from(sorted(paths)),
        st.sampled_from(kinds),
        st.integers(min_value=0, max_value=400),
        text,
    )
    return st.lists(damage, min_size=1, max_size=8)


class _Spy(Machine):
    """A machine that keeps the paths that were asked for."""

    def __init__(self, root: str) -> None:
        super().__init__(root, recorded=True)
        self.asked: set[str] = set()

    def read_bytes(self, path: str, most: int = 2**20, offset: int = 0) -> bytes | Unread:
        self.asked.add(path)
        return super().read_bytes(path, most, offset)

    def names(self, path: str) -> list[str] | Unread:
        self.asked.add(path)
        return super().names(path)

    def link(self, path: str) -> str | Unread:
        self.asked.add(path)
        return super().link(path)


def asked(folder: Path) -> list[str]:
    """Every path below the root of a recorded machine that some probe asks for, whether it is there or not."""
    spy = _Spy(str(folder))
    survey("a", spy, 20.0)
    return sorted(os.path.normpath(path).lstrip("/") for path in spy.asked if os.path.normpath(path) != "/")


@contextmanager
def damaged(folder: Path, wanted: Iterable[Damage]) -> Iterator[None]:
    """The machine with all this damage, which is mended at the end."""
    kept = folder.with_name(f"{folder.name}-kept")
    kept.mkdir()
    done: list[tuple[Path, Path]] = []
    try:
        for number, damage in enumerate(wanted):
            with suppress(OSError):  # the path leads through what is damaged already
                done.append((folder / damage.path, kept / str(number)))
                _damage(damage, *done[-1])
        yield
    finally:
        for path, original in reversed(done):
            _mend(path, original)
        shutil.rmtree(kept)


def _damage(damage: Damage, path: Path, original: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = path.read_bytes() if path.is_file() else b""
    if os.path.lexists(path):
        path.rename(original)
    if damage.kind == "folder":
        path.mkdir()
    elif damage.kind == "loop":
        path.symlink_to(path.name)
    elif damage.kind == "pipe":
        os.mkfifo(path)
    elif damage.kind != "missing":
        path.write_bytes(_changed(damage, content))
        path.chmod(0 if damage.kind == "closed" else 0o644)


def _changed(damage: Damage, content: bytes) -> bytes:
    if damage.kind == "word" and (words := list(_TOKEN.finditer(content))):
        word = words[damage.place % len(words)]
        return content[: word.start()] + damage.text + content[word.end() :]
    if damage.kind == "cut":
        return content[: damage.place]
    if damage.kind == "line":
        lines = content.splitlines(keepends=True)
        return b"".join(lines[: damage.place % (len(lines) + 1)] + lines[damage.place % (len(lines) + 1) + 1 :])
    return content * 2 if damage.kind in ("twice", "closed") else damage.text


def _mend(path: Path, original: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if os.path.lexists(original):
        original.rename(path)
