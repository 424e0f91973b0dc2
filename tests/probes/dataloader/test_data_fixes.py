"""The fix that a report prints, put where it says into the very class, and examined again: it passes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclcheck.probes.dataloader import phases
from ncclcheck.probes.facts import Cluster, Measurements, Node
from ncclcheck.probes.facts.data import DataReport
from ncclcheck.probes.facts.data.report import by_node
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules

RULES = [rule for rule in all_rules() if rule.code.startswith("DAT")]
HEAD = """
import collections, copy, functools, itertools, multiprocessing, os, queue, random
import sqlite3, subprocess, sys, threading, time, warnings, zipfile
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
NAMED = ZIPPED.replace(
    """    def __init__(self):
        self.archive = zipfile.ZipFile(PATH)
""",
    """    def __init__(self, path=PATH):
        self.archive = zipfile.ZipFile(path, mode="r")
        self.names = self.archive.namelist()
        self.count = len(self.names)
""",
).replace("self.archive.read(str(index))", "self.archive.read(self.names[index])")
EARLY = ZIPPED.replace(
    "        self.archive = zipfile.ZipFile(PATH)\n",
    """        self.archive = None
        self.size = len(self[0])
    def opened(self):
        if self.archive is None:
            self.archive = zipfile.ZipFile(PATH)
        return self.archive
""",
).replace("self.archive.read(", "self.opened().read(")
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
OF_RANKS = STREAM.replace(
    "range(400))", 'range(int(os.environ.get("RANK", 0)), 400, int(os.environ.get("WORLD_SIZE", 1))))'
)
OF_WORKERS = STREAM.replace(
    "        yield from samples",
    """        info = torch.utils.data.get_worker_info()
        yield from itertools.islice(samples, info.id, None, info.num_workers) if info else samples""",
)
KEPT = """
class Kept(Dataset):
    def __init__(self): self.kept = {}
    def __len__(self): return 4000
    def __getitem__(self, number):
        if not 0 <= number < 4000: raise IndexError(number)
        value = torch.full((4096,), float(number))
        self.kept[number, len(self.kept)] = value
        return value + 1
def make(): return DataLoader(Kept(), batch_size=4, num_workers=2)
"""
SEEDED_BY_RANK = """
class Plain(Dataset):
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.full((4,), float(index))
def make():
    dataset, rank = Plain(), int(os.environ.get("RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    sampler = torch.utils.data.DistributedSampler(dataset, world, rank, seed=rank)
    return DataLoader(dataset, batch_size=4, sampler=sampler)
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

SCRATCH = """
class Shared(Dataset):
    def __init__(self):
        self.scratch = SHARED
    def __len__(self): return 300
    def __getitem__(self, index):
        if not 0 <= index < 300: raise IndexError(index)
        WRITTEN
        return torch.tensor(list(self.scratch[:64])).float() * 2
def make(): return DataLoader(Shared(), batch_size=4, num_workers=2)
"""
TENSOR = SCRATCH.replace("SHARED", "torch.zeros(64).share_memory_()").replace(
    "WRITTEN", "self.scratch.fill_(index)"
)
ARRAY = SCRATCH.replace("SHARED", 'multiprocessing.Array("d", 64)').replace(
    "WRITTEN", "self.scratch[:] = [float(index)] * 64"
)
FLIPPED = """
class Flipped(Dataset):
    def __init__(self):
        self.records = [{"boxes": numpy.arange(4.0) + index} for index in range(120)]
    def __len__(self): return 120
    def __getitem__(self, index):
        value = self.records[index]
        value["boxes"] *= -1
        return torch.from_numpy(value["boxes"].copy())
def make(): return DataLoader(Flipped(), batch_size=4, num_workers=2)
"""
REMEMBERED = """
class Remembered(Dataset):
    def __init__(self):
        self.memory = []
    def __len__(self): return 120
    def __getitem__(self, index):
        found = torch.full((4096,), float(range(120)[index]))
        self.memory.append(found)
        return found
def make(): return DataLoader(Remembered(), batch_size=4, num_workers=2)
"""
THREADED = """
class Prefetched(Dataset):
    def __init__(self):
        self.asked, self.given = queue.Queue(), queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()
    def _work(self):
        while True: self.given.put(torch.full((4,), float(self.asked.get())))
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        self.asked.put(index)
        return self.given.get()
def make(): return DataLoader(Prefetched(), batch_size=4, num_workers=2)
"""
BUFFERED = """
class Buffered(Dataset):
    def __init__(self):
        self.buffer = numpy.zeros(4)
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        self.buffer[:] = index
        sample = torch.from_numpy(self.buffer)
        return sample
def make(): return DataLoader(Buffered(), batch_size=4, num_workers=2)
"""
RARE = """
class Rare(Dataset):
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.zeros(0 if index == 77 else 5)
def make():
    dataset = Rare()
    return DataLoader(dataset, batch_size=4, num_workers=2)
"""
TWO_GENERATORS = """
class Noisy(Dataset):
    def __init__(self):
        self.dice = [random.Random(0), random.Random(1)]
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.full((4,), float(index)) + self.dice[0].random() + self.dice[1].random()
def make(): return DataLoader(Noisy(), batch_size=4, num_workers=2)
"""
PARTS = """
class Files(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        for file in range(1)[worker::workers]:
            yield from (torch.full((4,), float(row)) for row in range(rank, 400, world))
def make(): return DataLoader(Files(), num_workers=2, batch_size=4)
"""
PARSED = """
class Parsed(IterableDataset):
    def __init__(self, path):
        super().__init__()
        self.rows = self.parse(path)
    def parse(self, path):
        yield from (torch.full((4,), float(number)) for number in range(300))
    def __iter__(self):
        return iter(self.rows)
def make(): return DataLoader(Parsed("clicks.csv"), batch_size=4)
"""
GUARDED = """
import time
class Guarded(Dataset):
    def __init__(self):
        self.lock = multiprocessing.Lock()
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        with self.lock:
            time.sleep(0.004)
            return torch.full((4,), float(index))
def make(): return DataLoader(Guarded(), batch_size=4, num_workers=2)
"""
TOO_SHORT = """
class Short(Dataset):
    def __init__(self): self.rows = list(range(130))
    def __len__(self): return 120
    def __getitem__(self, index):
        return torch.full((4,), float(self.rows[index]))
def make(): return DataLoader(Short(), batch_size=4, num_workers=2)
"""
TOO_LONG = """
class Windows(Dataset):
    def __init__(self): self.series = torch.arange(140.0)
    def __len__(self): return len(self.series) - 18
    def __getitem__(self, start):
        if start + 20 > len(self.series): raise IndexError(start)
        return self.series[start:start + 20]
def make(): return DataLoader(Windows(), batch_size=4, num_workers=2)
"""
SLICES = """
class Slices(Dataset):
    def __init__(self): self.tokens = torch.arange(120 * 4000)
    def __len__(self): return 120
    def __getitem__(self, row):
        if not 0 <= row < 120: raise IndexError(row)
        return row, self.tokens[row * 40:row * 40 + 40]
def make(): return DataLoader(Slices(), batch_size=4, num_workers=2, collate_fn=lambda batch: batch)
"""
MANY_DICTS = """
class Annotated(Dataset):
    def __init__(self):
        def entry(n): return {"id": n, "words": f"word {n} of many", "box": [n + 0.5, n + 1.5, n + 2.5]}
        self.entries = [entry(n) for n in range(200000)]
    def __len__(self): return len(self.entries)
    def __getitem__(self, which):
        return torch.tensor(self.entries[which]["box"])
def make(): return DataLoader(Annotated(), batch_size=64, num_workers=2)
"""
TYPED = """
class Typed(Dataset):
    def __len__(self): return 120
    def __getitem__(self, number):
        if not 0 <= number < 120: raise IndexError(number)
        picture = torch.ones(4, dtype=torch.float64 if number % 3 == 0 else torch.float32) * number
        RETURNED
def make(): return DataLoader(Typed(), batch_size=4, num_workers=2, shuffle=True)
"""
GREY = """
class Grey(Dataset):
    def __len__(self): return 120
    def __getitem__(self, number):
        if not 0 <= number < 120: raise IndexError(number)
        picture = torch.ones(8, 8) * number
        picture = picture if number % 3 == 0 else picture[None]
        return picture, number
def make(): return DataLoader(Grey(), batch_size=4, num_workers=2, shuffle=True)
"""
SORTED_APART = """
class Texts(Dataset):
    def __len__(self): return 120
    def __getitem__(self, number):
        if not 0 <= number < 120: raise IndexError(number)
        return {"label": number % 50, "ids": torch.arange(3 + number * 7 % 11) + 100 * number}
def together(texts):
    ids = sorted([text["ids"] for text in texts], key=len, reverse=True)
    return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True), torch.tensor([text["label"] for text in texts])
def make(): return DataLoader(Texts(), batch_size=8, num_workers=2, collate_fn=together)
"""
CACHED = """
class Spectra(Dataset):
    @functools.lru_cache(maxsize=None)
    def _spectrum(self, number): return numpy.arange(4.0) + number
    def __len__(self): return 120
    def __getitem__(self, number):
        if not 0 <= number < 120: raise IndexError(number)
        value = self._spectrum(number)
        value -= 3.0
        return torch.from_numpy(value.copy())
def make(): return DataLoader(Spectra(), batch_size=4, num_workers=2)
"""
ONE_BATCH = """
class Plain(Dataset):
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.full((4,), float(index))
OUT = torch.zeros(4, 4)
def fill(rows):
    torch.stack(rows, out=OUT)
    return OUT
def make(): return DataLoader(Plain(), batch_size=4, num_workers=2, collate_fn=fill, drop_last=True)
"""

H5PY = """
import h5py
with h5py.File(PATH, "w") as made:
    made["images"] = numpy.arange(120.0)[:, None].repeat(300, 1)
class Scans(Dataset):
    def __init__(self, path=PATH):
        self.file = h5py.File(path, "r")
        self.images = self.file["images"]
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.from_numpy(self.images[int(index)])
def make(): return DataLoader(Scans(), batch_size=4, num_workers=2)
"""
LMDB = """
import lmdb
def wrote():
    with lmdb.open(PATH, map_size=2 ** 24) as made, made.begin(write=True) as writer:
        for number in range(120): writer.put(str(number).encode(), bytes([number]) * 300)
if not os.path.exists(PATH): wrote()
class Words(Dataset):
    def __init__(self, folder):
        self.env = lmdb.open(folder, readonly=True, lock=False)
        self.reads = self.env.begin()
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.tensor(list(self.reads.get(str(int(index)).encode())))
def make(): return DataLoader(Words(PATH), batch_size=4, num_workers=2)
"""
MAPPED = """
numpy.lib.format.open_memmap(PATH, "w+", numpy.float32, (120, 16))[:] = numpy.arange(120.0)[:, None] + 3
class Mapped(Dataset):
    def __init__(self):
        self.rows = numpy.lib.format.open_memmap(PATH, "r+")
    def __len__(self): return 120
    def __getitem__(self, index):
        row = self.rows[index]
        row /= 2.0
        return torch.from_numpy(row.copy())
def make(): return DataLoader(Mapped(), batch_size=4, num_workers=2)
"""
SLOTS = """
class Slots(Dataset):
    def __init__(self): self.cache = {}
    def decode(self, number): return torch.randn(12, generator=torch.Generator().manual_seed(number))
    def __len__(self): return 300
    def __getitem__(self, number):
        if not 0 <= number < 300: raise IndexError(number)
        slot = number % 50
        if slot not in self.cache: self.cache[slot] = self.decode(number)
        return self.cache[slot], number % 6
def make(): return DataLoader(Slots(), batch_size=4, num_workers=2)
"""
ALIKE = """
class Noisy(Dataset):
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.full((4,), float(index)) + DRAWN
def make():
    SEEDED
    return DataLoader(Noisy(), batch_size=4, num_workers=WORKERS)
"""

PERSISTENT = """
class Curriculum(Dataset):
    def __init__(self):
        self.epoch = 0
    def set_epoch(self, epoch): self.epoch = epoch
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.full((4,), float(index + 1000 * self.epoch))
def make(): return DataLoader(Curriculum(), batch_size=4, num_workers=2, persistent_workers=True)
"""
FEW_GREY = """
class Photos(Dataset):
    def __len__(self): return 120
    def __getitem__(self, number):
        if not 0 <= number < 120: raise IndexError(number)
        picture = torch.ones(1 if number in (7, 77) else 3, 16, 16) * number
        return picture, number
def make(): return DataLoader(Photos(), batch_size=4, num_workers=2, shuffle=True)
"""
FEW_SHORT = """
class Windows(Dataset):
    def __len__(self): return 2500
    def __getitem__(self, number):
        if not 0 <= number < 2500: raise IndexError(number)
        time.sleep(0.002)
        return torch.full((5 if number % 50 == 3 else 8,), float(number))
def make():
    dataset = Windows()
    return DataLoader(dataset, batch_size=4, num_workers=2, shuffle=True)
"""
HASHED = """
class Hashed(Dataset):
    def __init__(self):
        self.texts = [f"word{number} of{number % 7}" for number in range(120)]
    def __len__(self): return 120
    def __getitem__(self, number):
        return torch.tensor([hash(word) % 5000 for word in self.texts[number].split()])
def make(): return DataLoader(Hashed(), batch_size=4, num_workers=2, shuffle=True)
"""

CUT = """
class Cells(Dataset):
    def __init__(self): self.rows = torch.arange(120.0)
    def __len__(self): return len(self.rows)
    def __getitem__(self, number): return self.rows[number]
def cut(worker):
    info = torch.utils.data.get_worker_info()
    info.dataset.rows = info.dataset.rows[worker::info.num_workers]
def make(): return DataLoader(Cells(), batch_size=4, num_workers=2, worker_init_fn=cut)
"""
RESEEDING = """
class Shuffled(torch.utils.data.Sampler):
    def __init__(self, dataset):
        self.dataset, self.epoch = dataset, 0
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    def set_epoch(self, epoch): self.epoch = epoch
    def __len__(self): return len(self.dataset) // self.world
    def __iter__(self):
        torch.manual_seed(self.epoch)
        order = torch.randperm(len(self.dataset)).tolist()
        return iter(order[self.rank::self.world])
class Noisy(Dataset):
    def __len__(self): return 120
    def __getitem__(self, number): return torch.full((4,), float(range(120)[number])) + torch.randn(4)
def make():
    dataset = Noisy()
    return DataLoader(dataset, batch_size=4, num_workers=2, sampler=Shuffled(dataset))
"""

POOLED = """
import concurrent.futures
class Pooled(Dataset):
    def __init__(self):
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.rows = list(self.pool.map(float, range(120)))
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.tensor(list(self.pool.map(float, [self.rows[index]] * 4)))
def make(): return DataLoader(Pooled(), batch_size=4, num_workers=2)
"""
WITHOUT = """
class Boxes(Dataset):
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        box = torch.full((4,), float(index))
        if index % 37 == 5:
            box = None
        return {"image": torch.ones(3), "box": box}
def make(): return DataLoader(Boxes(), batch_size=4, num_workers=2, shuffle=True)
"""
MIXED = """
class Rows(Dataset):
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.full((4,), float(index))
def mix(samples):
    rows = torch.stack(samples)
    rng = numpy.random.default_rng(0)
    share = float(rng.beta(0.4, 0.4))
    return share * rows + (1 - share) * rows.flip(0)
def make(): return DataLoader(Rows(), batch_size=4, num_workers=2, collate_fn=mix)
"""
WEIGHTED = """
class Rows(Dataset):
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        return torch.full((4,), float(index))
def make(seed=0):
    weights = [1.0 + index % 3 for index in range(120)]
    own = torch.Generator()
    own.manual_seed(seed)
    sampler = torch.utils.data.WeightedRandomSampler(weights, 60, generator=own)
    return DataLoader(Rows(), batch_size=4, num_workers=2, sampler=sampler)
"""


def _alike(drawn: str, seeded: str = "torch.manual_seed(42)", workers: int = 2) -> str:
    return ALIKE.replace("DRAWN", drawn).replace("SEEDED", seeded).replace("WORKERS", str(workers))


UNSEEDED = """
class Unseeded(Dataset):
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        NOISE
        return torch.full((4,), float(index)) + noise
def make(): return DataLoader(Unseeded(), batch_size=4, num_workers=2)
"""
LISTED = """
FOLDER = PATH + ".d"
os.makedirs(FOLDER, exist_ok=True)
for number in range(120): open(os.path.join(FOLDER, f"{number:03d}.bin"), "wb").write(bytes([number] * 8))
class Files(Dataset):
    def __init__(self, folder=FOLDER):
        self.folder = folder
        self.files = LISTED
    def __len__(self): return len(self.files)
    def __getitem__(self, index):
        return torch.tensor(list(open(os.path.join(self.folder, self.files[index]), "rb").read())).float()
def make():
    dataset = Files()
    sampler = torch.utils.data.DistributedSampler(
        dataset, int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    )
    return DataLoader(dataset, batch_size=4, num_workers=2, sampler=sampler)
"""
SHUFFLED = LISTED.replace("LISTED", "sorted(os.listdir(folder))\n        random.shuffle(self.files)")

DECODER = """
CODE = "import sys\\nfor line in sys.stdin: print(*[int(line)] * 8, flush=True)"
class Decoded(Dataset):
    def __init__(self):
        self.proc = subprocess.Popen([sys.executable, "-c", CODE], stdin=-1, stdout=-1, text=True)
    def __len__(self): return 120
    def __getitem__(self, index):
        if not 0 <= index < 120: raise IndexError(index)
        self.proc.stdin.write(f"{index}\\n")
        self.proc.stdin.flush()
        return torch.tensor([int(word) for word in self.proc.stdout.readline().split()])
def make(): return DataLoader(Decoded(), batch_size=4, num_workers=2)
"""
OWN_DICE = """
class Parts(IterableDataset):
    def __init__(self):
        self.parts = list(range(24))
    def __iter__(self):
        random.shuffle(self.parts)
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        for part in self.parts[rank * workers + worker :: world * workers]:
            yield from (torch.tensor(part * 100 + row) for row in range(10))
def make(): return DataLoader(Parts(), batch_size=4, num_workers=2)
"""
SPLIT_BY_SET = """
class Visits(Dataset):
    def __init__(self):
        print(os.environ.get("RANK"))
        patients = list({f"patient {number % 40}" for number in range(240)})
        random.Random(42).shuffle(patients)
        kept = set(patients[:30])
        self.rows = [number for number in range(240) if f"patient {number % 40}" in kept]
    def __len__(self): return len(self.rows)
    def __getitem__(self, index):
        return torch.tensor([float(self.rows[index])] * 4)
def make(): return DataLoader(Visits(), batch_size=4, num_workers=2)
"""


def _lazily(source: str, lines: list[str], opened: str) -> str:
    """The lines of a handle: None in __init__, opened in __getitem__."""
    none, *open_it = (line.partition("  #")[0] for line in lines)
    before, _, after = source.partition("        if not 0 <=")
    within = "".join(f"        {line}\n" for line in open_it)
    return before.replace(opened, none) + f"{within}        if not 0 <=" + after


def _opened_anew(source: str, lines: list[str], _: str) -> str:
    """The first lines of __init__, then those of __getitem__."""
    code = [line.partition("  #")[0] for line in lines]
    at = next(number for number, line in enumerate(code) if line.startswith("if "))
    init, item = ("".join(f"        {line}\n" for line in part) for part in (code[:at], code[at:]))
    before, head, after = source.partition("    def __init__")
    first, _, rest = after.partition("\n")
    return f"{before}{head}{first}\n{init}{rest}".replace("        if not 0 <=", f"{item}        if not 0 <=", 1)


def _privately(source: str, lines: list[str], written: str) -> str:
    """A line of __init__, and the first two of __getitem__."""
    of_none, check, own = (line.partition("  #")[0] for line in lines)
    fixed = source.replace("    def __len__", f"        {of_none}\n    def __len__", 1)
    return fixed.replace(written, f"{check}\n        {own}\n        {written}")


def _instead(source: str, lines: list[str], line: str) -> str:
    return source.replace(line, lines[0].partition("  #")[0])


def _before(source: str, lines: list[str], line: str) -> str:
    return source.replace(line, "\n    ".join([*lines, line]))


def _with_fewer(source: str, lines: list[str], line: str) -> str:
    assert lines[0] == "DataLoader(dataset, num_workers=1)"
    return source.replace(line, "num_workers=1")


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


def _shared_out(source: str, lines: list[str], _: str) -> str:
    """What was __iter__ is renamed, and the printed one added."""
    method = "".join(f"    {line}\n" for line in lines)
    return source.replace("def __iter__", "def samples", 1).replace("def make", f"{method}def make", 1)


def _sampler_of(source: str, lines: list[str], _: str) -> str:
    assert lines == ["DistributedSampler(dataset, seed=0)"]
    return source.replace("seed=rank", "seed=0")


def _sampled(source: str, lines: list[str], line: str) -> str:
    return source.replace(line, "\n    ".join(lines[:2]))


def _unpickled(source: str, lines: list[str], _: str) -> str:
    method = "\n".join(f"    {line}" for line in lines[:2])
    return source.replace("    def __len__", f"{method}\n    def __len__", 1)


def _raising(source: str, lines: list[str], line: str) -> str:
    """And what is broken is left out of the index, as it says."""
    fixed = source.replace(line, lines[0].partition("  #")[0])
    return fixed.replace("list(range(150))", "[name for name in range(150) if name % 10 != 3]")


def _replaced(source: str, lines: list[str], line: str) -> str:
    """This line, by all that is printed."""
    within = next(full for full in source.splitlines() if line in full)
    indent = " " * (len(within) - len(within.lstrip()))
    return source.replace(within, "\n".join(indent + line for line in lines))


def _first(source: str, lines: list[str], line: str) -> str:
    """Before this line of a function."""
    return source.replace(f"    {line}", f"    {lines[0]}\n    {line}")


def _packed(source: str, lines: list[str], last: str) -> str:
    """A class above the others, and the last line of __init__."""
    *made, used = lines
    return "\n".join(made) + "\n" + source.replace(last, f"{last}\n        {used}")


def _anew(source: str, lines: list[str], _: str) -> str:
    """What __init__ keeps, and the __iter__ that uses it."""
    at = lines.index("def __iter__(self):")
    init, iterate = ("".join(f"    {line}\n" for line in part) for part in (lines[:at], lines[at:]))
    before, _, rest = source.partition("    def __init__")
    return f"{before}{init}    def parse{rest.partition('    def parse')[2].partition('    def __iter__')[0]}" + (
        f"{iterate}def make{rest.partition('def make')[2]}"
    )


def _at_its_place(source: str, lines: list[str], _: str) -> str:
    """Each line instead of that whose number it names; what names none is put above the classes."""
    fixed = (HEAD + source).splitlines()
    above = []
    for line in lines:
        new, _, place = line.partition("  # users_own.py:")
        if place:
            old = fixed[int(place) - 1]
            fixed[int(place) - 1] = old[: len(old) - len(old.lstrip())] + new
        else:
            above.append(line)
    return "\n".join([*above, *fixed[HEAD.count("\n") :]]) + "\n"


def _of_epoch(source: str, lines: list[str], _: str) -> str:
    """The first line of __init__, and methods of the class."""
    first, *methods = lines
    body = "".join(f"    {line}\n" for line in methods)
    source = source.replace("    def __init__(self):\n", f"    def __init__(self):\n        {first}\n", 1)
    return source.replace("    def __len__", f"{body}    def __len__", 1)


def _uncut(source: str, lines: list[str], _: str) -> str:
    assert lines == ["DataLoader(dataset)  # without worker_init_fn"]
    return source.replace(", worker_init_fn=cut", "")


def _by_own_generator(source: str, lines: list[str], _: str) -> str:
    fixed = source.replace("torch.manual_seed(self.epoch)", lines[0].partition("  #")[0])
    return fixed.replace("order = torch.randperm(len(self.dataset)).tolist()", lines[1])


Apply = Callable[[str, list[str], str], str]
NIGHTLY = [pytest.mark.nightly]
CASES: list[Any] = [
    pytest.param("DAT006", MAPPED, _at_its_place, "", id="mapped-in-place"),
    pytest.param("DAT011", _alike("torch.randn(4)"), _seeded, "", id="seeded-alike"),
    pytest.param(
        "DAT011", _alike("numpy.random.normal()", "numpy.random.seed(42)", 0), _at_its_place, "",
        id="seeded-alike-without-workers", marks=NIGHTLY,
    ),
    pytest.param(
        "DAT012", UNSEEDED.replace("NOISE", "noise = numpy.random.default_rng().normal()"), _at_its_place, "",
        id="seeded-by-the-system",
    ),
    pytest.param(
        "DAT012", UNSEEDED.replace("NOISE", "noise = random.SystemRandom().random()"), _at_its_place, "",
        id="of-the-system", marks=NIGHTLY,
    ),
    pytest.param(
        "DAT012", UNSEEDED.replace("NOISE", "noise = random.Random(time.time_ns() % 1000).random()"),
        _at_its_place, "", id="seeded-by-the-clock", marks=NIGHTLY,
    ),
    pytest.param("DAT013", PERSISTENT, _of_epoch, "", id="epoch"),
    pytest.param("DAT014", FEW_GREY, _replaced, "return picture", id="few-grey"),
    pytest.param("DAT014", FEW_SHORT, _before, "return DataLoader", id="few-of-many", marks=NIGHTLY),
    pytest.param("DAT019", SHUFFLED, _at_its_place, "", id="shuffled"),
    pytest.param(
        "DAT019", LISTED.replace("LISTED", "os.listdir(folder)"), _at_its_place, "", id="listed", marks=NIGHTLY
    ),
    pytest.param(
        "DAT019", LISTED.replace("LISTED", "list({name for name in os.listdir(folder)})"), _at_its_place, "",
        id="set", marks=NIGHTLY,
    ),
    pytest.param("DAT019", HASHED, _at_its_place, "", id="hashed", marks=NIGHTLY),
    pytest.param("DAT002", CUT, _uncut, "", id="cut-by-worker"),
    pytest.param("DAT011", RESEEDING, _by_own_generator, "", id="seeded-by-the-sampler"),
    pytest.param("DAT005", OFFSETS, _opened_anew, "", id="offset"),
    pytest.param("DAT004", ZIPPED, _opened_anew, "", id="zip", marks=NIGHTLY),
    pytest.param("DAT005", SQLITE, _opened_anew, "", id="sqlite", marks=NIGHTLY),
    pytest.param("DAT005", NAMED, _opened_anew, "", id="names-of-an-archive"),
    pytest.param("DAT005", EARLY, _opened_anew, "", id="read-in-init", marks=NIGHTLY),
    pytest.param("DAT005", DECODER, _opened_anew, "", id="decoder"),
    pytest.param("DAT016", OWN_DICE, _at_its_place, "", id="own-dice"),
    pytest.param("DAT019", SPLIT_BY_SET, _at_its_place, "", id="split-by-set"),
    pytest.param("DAT004", TENSOR, _privately, "self.scratch.fill_(index)", id="shared-tensor"),
    pytest.param("DAT004", ARRAY, _privately, "self.scratch[:] = [float", id="shared-array", marks=NIGHTLY),
    pytest.param("DAT006", FLIPPED, _instead, "value = self.records[index]", id="in-place", marks=NIGHTLY),
    pytest.param("DAT030", PARSED, _anew, "", id="used-up"),
    pytest.param("DAT031", GUARDED, _instead, "self.lock = multiprocessing.Lock()", id="lock", marks=NIGHTLY),
    pytest.param("DAT016", PARTS, _with_fewer, "num_workers=2", id="one-part", marks=NIGHTLY),
    pytest.param("DAT007", BUFFERED, _instead, "return sample", id="buffer", marks=NIGHTLY),
    pytest.param("DAT014", RARE, _before, "return DataLoader", id="rare", marks=NIGHTLY),
    pytest.param(
        "DAT028", THREADED, _lazily, "threading.Thread(target=self._work, daemon=True).start()", id="thread",
        marks=NIGHTLY,
    ),
    pytest.param("DAT028", POOLED, _opened_anew, "", id="pool"),
    pytest.param("DAT014", WITHOUT, _replaced, "box = None", id="without"),
    pytest.param("DAT010", MIXED, _instead, "rng = numpy.random.default_rng(0)", id="mixed-alike"),
    pytest.param("DAT016", WEIGHTED, _at_its_place, "", id="weighted"),
    pytest.param("DAT002", TOO_SHORT, _replaced, "def __len__", id="too-short"),
    pytest.param("DAT002", TOO_LONG, _replaced, "def __len__", id="too-long", marks=NIGHTLY),
    pytest.param("DAT006", CACHED, _replaced, "value = self._spectrum", id="cached", marks=NIGHTLY),
    pytest.param("DAT007", ONE_BATCH, _replaced, "return OUT", id="one-batch", marks=NIGHTLY),
    pytest.param(
        "DAT014", TYPED.replace("RETURNED", "return {'label': 3, 'image': picture}"), _replaced, "return {'label'",
        id="dtype", marks=NIGHTLY,
    ),
    pytest.param(
        "DAT014", TYPED.replace("RETURNED", "pair = (3, picture)\n        return pair"), _replaced, "return pair",
        id="dtype-by-name", marks=NIGHTLY,
    ),
    pytest.param("DAT014", GREY, _replaced, "return picture", id="dimensions", marks=NIGHTLY),
    pytest.param("DAT021", MANY_DICTS, _packed, "for n in range(200000)]", id="many-dicts", marks=NIGHTLY),
    pytest.param("DAT022", SLICES, _replaced, "return row, ", id="slices", marks=NIGHTLY),
    pytest.param("DAT029", SORTED_APART, _first, "ids = sorted", id="sorted-apart", marks=NIGHTLY),
    pytest.param("DAT021", REMEMBERED, _instead, "self.memory = []", id="growing", marks=NIGHTLY),
    pytest.param("DAT009", TWO_GENERATORS, _seeded, "", id="two-generators", marks=NIGHTLY),
    pytest.param("DAT009", PRIVATE, _seeded, "", id="private"),
    pytest.param("DAT010", PRIVATE, _seeded, "", id="private-epochs", marks=NIGHTLY),
    pytest.param("DAT011", PRIVATE, _seeded, "", id="private-ranks", marks=NIGHTLY),
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
    pytest.param(
        "DAT014",
        LENGTHS.replace("SAMPLE", "return torch.ones(2), {'boxes': torch.ones(1 + index % 3, 4) * index}"),
        _collated, "", id="lengths-within",
    ),
    pytest.param("DAT014", IMAGES, _within, "return image", id="images", marks=NIGHTLY),
    pytest.param("DAT016", STREAM, _shared_out, "", id="stream", marks=NIGHTLY),
    pytest.param("DAT016", OF_RANKS, _shared_out, "", id="stream-of-ranks"),
    pytest.param("DAT016", OF_WORKERS, _shared_out, "", id="stream-of-workers", marks=NIGHTLY),
    pytest.param("DAT021", KEPT, _within, "self.kept[number, len", id="growing-dict", marks=NIGHTLY),
    pytest.param("DAT016", SEEDED_BY_RANK, _sampler_of, "", id="another-seed", marks=NIGHTLY),
    pytest.param("DAT016", UNSAMPLED, _sampled, "loader = DataLoader(dataset, batch_size=4)", id="sampler"),
    pytest.param("DAT024", PICKLED, _unpickled, "", id="pickle", marks=NIGHTLY),
    pytest.param(
        "DAT027", FALLBACK, _raising, "return self[(index + 1) % len(self)]", id="fallback", marks=NIGHTLY
    ),
]  # fmt: skip


BUDGET_S = 100.0  # an emulated rank that imports torch on a busy machine has a quarter of it


def examined(folder: Path, source: str) -> dict[str, Verdict]:
    """What `data --nproc-per-node 2` says of a file, by code."""
    folder.mkdir()
    (folder / "users_own.py").write_text(HEAD + source)
    plan = DataPlan(
        factory="users_own.py:make",
        directory=str(folder),
        node="sim0",
        workers=2,
        ranks=2,
        ranks_per_node=2,
        budget_s=BUDGET_S,
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
    assert before.state in (State.FAIL, State.WARN, State.UNKNOWN), before
    lines = [line for part in before.findings[0].remedies[0].commands for line in part.splitlines()]
    fixed = apply(source, lines, place).replace("path = PATH", "").replace("lock = ...", "lock = 0")
    assert fixed != source
    after = examined(tmp_path / "after", fixed)
    assert after[code].state in (State.OK, State.NOTE, State.SKIPPED), [after[code].findings, fixed]
    assert not [check for check in ("DAT001", "DAT002", "DAT003") if after[check].state is State.FAIL], fixed
