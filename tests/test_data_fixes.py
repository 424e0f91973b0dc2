"""The fix that a report prints, put where it says into the very class, and examined again: it passes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclcheck.probes.context import DataPlan
from ncclcheck.probes.dataloader import phases
from ncclcheck.probes.facts import Cluster, Measurements, Node
from ncclcheck.probes.facts.data import DataReport
from ncclcheck.probes.facts.data.report import by_node
from ncclcheck.reports.findings import State, Verdict
from ncclcheck.reports.judge import judge
from ncclcheck.reports.rule import all_rules

RULES = [rule for rule in all_rules() if rule.code.startswith("DAT")]
HEAD = """
import functools, itertools, os, random, sqlite3, sys, warnings, zipfile
import numpy, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
PATH = os.path.join(os.path.dirname(__file__), "data.bin")
"""
OFFSETS = """
open(PATH, "wb").write(bytes(range(200)) * 8)
class Records(Dataset):
    def __init__(self):
        self.source = open(PATH, "rb")
    def __len__(self): return 200
    def __getitem__(self, index):
        if not 0 <= index < 200: raise IndexError(index)
        self.source.seek(8 * index)
        return torch.tensor(list(self.source.read(8)))
def make(): return DataLoader(Records(), batch_size=4, num_workers=2)
"""
ZIPPED = """
with zipfile.ZipFile(PATH, "w") as made:
    for number in range(120): made.writestr(str(number), bytes([number]) * 300)
class Zipped(Dataset):
    def __init__(self):
        self.archive = zipfile.ZipFile(PATH)
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.tensor(list(self.archive.read(str(index))))
def make(): return DataLoader(Zipped(), batch_size=4, num_workers=2)
"""
SQLITE = """
if not os.path.exists(PATH):
    with sqlite3.connect(PATH) as made:
        made.execute("create table t (i integer, x real)")
        made.executemany("insert into t values (?, ?)", [(n, n / 2) for n in range(120)])
class Rows(Dataset):
    def __init__(self):
        self.db = sqlite3.connect(PATH)
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return self.db.execute("select x from t where i = ?", (int(index),)).fetchone()[0]
def make(): return DataLoader(Rows(), batch_size=4, num_workers=2)
"""
PRIVATE = """
class Noisy(Dataset):
    def __init__(self):
        self.rng = numpy.random.default_rng(0)
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.full((4,), float(index)) + self.rng.normal()
def make(): return DataLoader(Noisy(), batch_size=4, num_workers=2)
"""
LENGTHS = """
class Tokens(Dataset):
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        SAMPLE
def make(): return DataLoader(Tokens(), batch_size=4, num_workers=2, shuffle=True)
"""
IMAGES = """
class Photos(Dataset):
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        image = torch.full((3, 20 + index % 7, 30), float(index))
        return image
def make(): return DataLoader(Photos(), batch_size=4, num_workers=2, shuffle=True)
"""
STREAM = """
class Lines(IterableDataset):
    def __iter__(self):
        samples = (torch.full((4,), float(number)) for number in range(400))
        yield from samples
def make(): return DataLoader(Lines(), batch_size=4, num_workers=2)
"""
UNSAMPLED = """
class Plain(Dataset):
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.full((4,), float(index))
def make():
    dataset = Plain()
    BATCH = 4
    loader = DataLoader(dataset, batch_size=4)
    return loader
"""
PICKLED = """
class Held(Dataset):
    def __init__(self):
        self.lock = (n for n in range(3))
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.full((4,), float(index))
def make(): return DataLoader(Held(), batch_size=4, num_workers=2, multiprocessing_context="forkserver")
"""
FALLBACK = """
class Robust(Dataset):
    def __init__(self):
        self.names = list(range(150))
    def __len__(self): return len(self.names)
    def __getitem__(self, index):
        if not 0 <= index < len(self.names): raise IndexError(index)
        try:
            if self.names[index] % 10 == 3: raise OSError("truncated")
            return torch.full((4,), float(index))
        except OSError:
            return self[(index + 1) % len(self)]
def make(): return DataLoader(Robust(), batch_size=4, num_workers=2)
"""


def _lazily(source: str, lines: list[str], opened: str) -> str:
    """The three lines of a handle: None in __init__, opened in __getitem__."""
    none, check, open_it = (line.partition("  #")[0] for line in lines)
    before, _, after = source.partition("        if not 0 <=")
    return before.replace(opened, none) + f"        {check}\n        {open_it}\n        if not 0 <=" + after


def _seeded(source: str, lines: list[str], _: str) -> str:
    seeding = [line.partition("  #")[0] for line in lines if not line.startswith("DataLoader(")]
    assert lines[-1] == "DataLoader(dataset, worker_init_fn=seed_worker)"
    return source.replace("def make", "\n".join(seeding) + "\ndef make").replace(
        "num_workers=2)", "num_workers=2, worker_init_fn=seed_worker)"
    )


def _collated(source: str, lines: list[str], _: str) -> str:
    assert lines[-1] == "DataLoader(dataset, collate_fn=collate)"
    return source.replace("def make", "\n".join(lines[:-1]) + "\ndef make").replace(
        "shuffle=True)", "shuffle=True, collate_fn=collate)"
    )


def _within(source: str, lines: list[str], last: str) -> str:
    """The first line before the last of __getitem__."""
    return source.replace(last, f"{lines[0]}\n        {last}")


def _shared_out(source: str, lines: list[str], line: str) -> str:
    return source.replace(line, "\n        ".join(lines))


def _sampled(source: str, lines: list[str], line: str) -> str:
    return source.replace(line, "\n    ".join(lines[:2]))


def _unpickled(source: str, lines: list[str], _: str) -> str:
    method = "\n".join(f"    {line}" for line in lines[:2])
    return source.replace("    def __len__", f"{method}\n    def __len__", 1)


def _raising(source: str, lines: list[str], line: str) -> str:
    """And what is broken is left out of the index, as it says."""
    fixed = source.replace(line, lines[0].partition("  #")[0])
    return fixed.replace("list(range(150))", "[name for name in range(150) if name % 10 != 3]")


Apply = Callable[[str, list[str], str], str]
NIGHTLY = [pytest.mark.nightly]
CASES: list[Any] = [
    pytest.param("DAT005", OFFSETS, _lazily, 'self.source = open(PATH, "rb")', id="offset"),
    pytest.param("DAT004", ZIPPED, _lazily, "self.archive = zipfile.ZipFile(PATH)", id="zip", marks=NIGHTLY),
    pytest.param("DAT005", SQLITE, _lazily, "self.db = sqlite3.connect(PATH)", id="sqlite", marks=NIGHTLY),
    pytest.param("DAT009", PRIVATE, _seeded, "", id="private"),
    pytest.param("DAT010", PRIVATE, _seeded, "", id="private-epochs", marks=NIGHTLY),
    pytest.param(
        "DAT014", LENGTHS.replace("SAMPLE", "return torch.full((3 + index % 9,), index)"), _collated, "",
        id="lengths",
    ),
    pytest.param(
        "DAT014", LENGTHS.replace("SAMPLE", "return {'ids': torch.full((3 + index % 9,), index), 'label': index}"),
        _collated, "", id="lengths-by-key",
    ),
    pytest.param(
        "DAT014", LENGTHS.replace("SAMPLE", "return torch.full((3 + index % 9,), index), index"), _collated, "",
        id="lengths-by-place", marks=NIGHTLY,
    ),
    pytest.param("DAT014", IMAGES, _within, "return image", id="images", marks=NIGHTLY),
    pytest.param("DAT016", STREAM, _shared_out, "yield from samples", id="stream", marks=NIGHTLY),
    pytest.param("DAT016", UNSAMPLED, _sampled, "loader = DataLoader(dataset, batch_size=4)", id="sampler"),
    pytest.param("DAT024", PICKLED, _unpickled, "", id="pickle", marks=NIGHTLY),
    pytest.param(
        "DAT027", FALLBACK, _raising, "return self[(index + 1) % len(self)]", id="fallback", marks=NIGHTLY
    ),
]  # fmt: skip


def examined(folder: Path, source: str) -> dict[str, Verdict]:
    """What `data --nproc-per-node 2` says of a file, by code."""
    folder.mkdir()
    (folder / "users_own.py").write_text(HEAD + source)
    plan = DataPlan(
        factory="users_own.py:make", directory=str(folder), node="sim0", workers=2, ranks=2, ranks_per_node=2
    )
    parts: list[DataReport] = []
    phases.examine(plan, lambda _: None, parts.append)
    cluster = Cluster(command="data", nodes=[Node(name="sim0")], measurements=Measurements(data=by_node(parts)))
    assert "users_own" not in sys.modules, "user code belongs to the children"
    return {verdict.code: verdict for verdict in judge(cluster, RULES)}


@pytest.mark.parametrize(("code", "source", "apply", "place"), CASES)
def test_a_printed_fix_works_where_it_says(
    tmp_path: Path, code: str, source: str, apply: Apply, place: str
) -> None:
    before = examined(tmp_path / "before", source)[code]
    assert before.state in (State.FAIL, State.WARN), before
    lines = [line for part in before.findings[0].remedies[0].commands for line in part.splitlines()]
    fixed = apply(source, lines, place).replace("path = PATH", "").replace("lock = ...", "lock = 0")
    assert fixed != source
    after = examined(tmp_path / "after", fixed)
    assert after[code].state in (State.OK, State.NOTE, State.SKIPPED), [after[code].findings, fixed]
    assert not [one for one in ("DAT001", "DAT002", "DAT003") if after[one].state is State.FAIL], fixed
