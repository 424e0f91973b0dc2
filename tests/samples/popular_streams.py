"""Streams and what lies in files, as popular repositories read it. Examined by test_popular_libraries.py."""

from __future__ import annotations

import os
import queue
import random
import sqlite3
import tarfile
import threading
import zipfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

N = 96
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def by_rank(data: Any, **options: Any) -> DistributedSampler[Any]:
    return DistributedSampler(data, num_replicas=WORLD, rank=RANK, **options)


def reader() -> tuple[int, int]:
    """Which reader of how many this worker of this rank is."""
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    return RANK * workers + worker, WORLD * workers


def loaded(data: Any, **options: Any) -> DataLoader[Any]:
    sampler = {} if isinstance(data, IterableDataset) else {"sampler": by_rank(data)}
    return DataLoader(data, **{"batch_size": 4, "num_workers": 2, **sampler, **options})


def placed(path: str, data: bytes) -> str:
    """The file, whole from the moment at which it is there."""
    if not os.path.exists(path):
        with open(f"{path}.{os.getpid()}", "wb") as file:
            file.write(data)
        os.replace(f"{path}.{os.getpid()}", path)
    return path


class ShuffleBuffer(IterableDataset[Any]):
    """Sound: shards by rank and worker, then a buffer. webdataset, filters.py; torch datapipes, Shuffler."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        number, of = reader()
        buffer: list[torch.Tensor] = []
        for shard in range(number, 32, of):
            for sample in range(16):
                buffer.append(torch.full((4,), float(shard * 100 + sample)))
                if len(buffer) > 24:
                    place = random.randrange(len(buffer))
                    buffer[place], buffer[-1] = buffer[-1], buffer[place]
                    yield buffer.pop()
        random.shuffle(buffer)
        yield from buffer


def shuffle_buffer() -> DataLoader[Any]:
    """Sound."""
    return loaded(ShuffleBuffer())


class Streaming(IterableDataset[Any]):
    """Sound: it has a length and an index, and is a stream. mosaicml/streaming, StreamingDataset."""

    def __len__(self) -> int:
        return 400 // WORLD

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.full(4, float(index)), "id": index}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        number, of = reader()
        for index in np.random.RandomState(9176).permutation(400)[number::of]:
            yield self[int(index)]


def streaming() -> DataLoader[Any]:
    """Sound."""
    return loaded(Streaming())


class Shards(IterableDataset[Any]):
    """Workers take shards in turn; one that finds none ends at once. huggingface/datasets, IterableDataset."""

    def __init__(self, shards: int) -> None:
        self.num_shards = shards

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        mine = range(self.num_shards)[info.id :: info.num_workers] if info else range(self.num_shards)
        for shard in mine:
            for row in range(240 // self.num_shards):
                if row % WORLD == RANK:
                    yield {"x": torch.tensor([float(shard), float(row)])}


def many_shards() -> DataLoader[Any]:
    """Sound."""
    return loaded(Shards(8))


def one_shard() -> DataLoader[Any]:
    """Defect: of two workers one has nothing to do."""
    return loaded(Shards(1))


class Stateful(DataLoader[Any]):
    """It counts batches, so that a job goes on where it ended. pytorch/data, StatefulDataLoader."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.snapshot_every_n_steps, self.yielded = kwargs.pop("snapshot_every_n_steps", 1), 0
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            self.yielded += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"yielded": self.yielded}


def stateful() -> DataLoader[Any]:
    """Sound."""
    data = Lazily.plain()
    return Stateful(data, batch_size=4, sampler=by_rank(data), num_workers=2, snapshot_every_n_steps=2)


class Titan(IterableDataset[Any]):
    """Sound: the rank's part, read by the training process. pytorch/torchtitan, HuggingFaceTextDataset."""

    def __init__(self) -> None:
        self.buffer: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        while True:
            for document in range(RANK, 10_000, WORLD):
                self.buffer += [document] * 20
                while len(self.buffer) >= 33:
                    block, self.buffer = torch.tensor(self.buffer[:33]), self.buffer[33:]
                    yield {"input": block[:-1]}, block[1:]


def titan() -> DataLoader[Any]:
    """Sound."""
    return DataLoader(Titan(), batch_size=4)


class Replay(IterableDataset[Any]):
    """Sound: without an end, drawn from a buffer. Lightning-AI/lightning-bolts, RLDataset."""

    def __init__(self) -> None:
        self.buffer = deque(((np.full(4, i, "float32"), i % 3, 1.0, False) for i in range(500)), maxlen=500)

    def __iter__(self) -> Iterator[Any]:
        while True:
            for place in np.random.choice(len(self.buffer), 64, replace=False):
                yield self.buffer[int(place)]


def replay() -> DataLoader[Any]:
    """Sound."""
    return loaded(Replay(), num_workers=0)


class Module:
    """Sound: Lightning's Trainer puts the sampler in. Lightning-AI/pytorch-lightning, LightningDataModule."""

    def prepare_data(self) -> None:
        self.ready = True

    def setup(self, _: str) -> None:
        self.train, self.val = torch.utils.data.random_split(
            Lazily.plain(), [80, 16], generator=torch.Generator().manual_seed(42)
        )

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.val, batch_size=4)


class Unseeded(Module):
    """Defect: each rank draws another split, and trains on the samples on which another validates."""

    def setup(self, _: str) -> None:
        self.train, self.val = torch.utils.data.random_split(Lazily.plain(), [80, 16])

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=4, sampler=by_rank(self.train), num_workers=2)


class Lazily(Dataset[Any]):
    """What is opened is opened at the first read. The usual form for h5py, lmdb and zarr."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.handle: Any = None

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < N:
            raise IndexError(index)
        if self.handle is None:
            self.handle = self.opened()
        return torch.from_numpy(self.read(index))

    def opened(self) -> Any:
        return np.memmap(self.path, dtype=np.float32, mode="r", shape=(N, 8))

    def read(self, index: int) -> Any:
        return np.array(self.handle[index])

    @staticmethod
    def plain() -> Dataset[Any]:
        """A dataset in memory."""
        return torch.utils.data.TensorDataset(torch.arange(N * 4.0).reshape(N, 4), torch.arange(N) % 3)


def memmapped(folder: str) -> DataLoader[Any]:
    """Sound: numpy.memmap."""
    return loaded(Lazily(placed(os.path.join(folder, "x.bin"), np.arange(N * 8, dtype=np.float32).tobytes())))


class Rows(Lazily):
    """A connection for each process."""

    def opened(self) -> Any:
        return sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)

    def read(self, index: int) -> Any:
        return np.frombuffer(self.handle.execute("select x from t where i = ?", (index,)).fetchone()[0])


def sqlite_rows(folder: str) -> DataLoader[Any]:
    """Sound: sqlite3, opened by each worker."""
    path = os.path.join(folder, "rows.db")
    if not os.path.exists(path):
        with sqlite3.connect(f"{path}.{os.getpid()}") as made:
            made.execute("create table t (i integer, x blob)")
            made.executemany(
                "insert into t values (?, ?)", [(n, np.full(4, float(n)).tobytes()) for n in range(N)]
            )
        made.close()
        os.replace(f"{path}.{os.getpid()}", path)
    return loaded(Rows(path))


class Zips(Lazily):
    """An archive for each process, by its number. The pattern of torchvision's and of Kaggle's zip readers."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.archives: dict[int, zipfile.ZipFile] = {}

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < N:
            raise IndexError(index)
        if os.getpid() not in self.archives:
            self.archives[os.getpid()] = zipfile.ZipFile(self.path)
        return torch.frombuffer(bytearray(self.archives[os.getpid()].read(str(index))), dtype=torch.uint8)


def zipped(folder: str) -> DataLoader[Any]:
    """Sound."""
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for number in range(N):
            archive.writestr(str(number), bytes([number]) * 30)
    return loaded(Zips(placed(os.path.join(folder, "x.zip"), made.getvalue())))


class Tars(Lazily):
    """Where each member begins is known, and the file is opened for each read. webdataset/wids."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        with tarfile.open(path) as archive:
            self.members = [(getmember.offset_data, getmember.size) for getmember in archive.getmembers()]

    def __getitem__(self, index: int) -> torch.Tensor:
        offset, size = self.members[index]
        with open(self.path, "rb") as file:
            file.seek(offset)
            return torch.frombuffer(bytearray(file.read(size)), dtype=torch.uint8)


def tarred(folder: str) -> DataLoader[Any]:
    """Sound."""
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for number in range(N):
            member = tarfile.TarInfo(f"{number}.bin")
            member.size = 30
            archive.addfile(member, BytesIO(bytes([number]) * 30))
    return loaded(Tars(placed(os.path.join(folder, "x.tar"), made.getvalue())))


def archived(folder: str) -> DataLoader[Any]:
    """Sound: .npy files with mmap_mode. The pattern of nnU-Net's dataset."""
    made = BytesIO()
    np.save(made, np.arange(N * 8.0).reshape(N, 8))
    path = placed(os.path.join(folder, "x.npy"), made.getvalue())

    class Mapped(Lazily):
        def opened(self) -> Any:
            return np.load(self.path, mmap_mode="r")

    return loaded(Mapped(path))


class Left(Tars):
    """Defect: the file of each read stays open."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.kept: list[Any] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        offset, size = self.members[index]
        file = open(self.path, "rb")  # noqa: SIM115 - the defect
        self.kept.append(file)
        file.seek(offset)
        return torch.frombuffer(bytearray(file.read(size)), dtype=torch.uint8)


def left_open(folder: str) -> DataLoader[Any]:
    """Defect."""
    tarred(folder)
    return loaded(Left(os.path.join(folder, "x.tar")))


@dataclass
class Graph:
    """A graph: nodes and edges. pyg-team/pytorch_geometric, data/data.py."""

    x: torch.Tensor
    edge_index: torch.Tensor
    y: torch.Tensor | None = None


class Graphs(Dataset[Any]):
    """Graphs of several sizes."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Graph:
        nodes = 3 + range(N)[index] % 5
        return Graph(torch.full((nodes, 4), float(index)), torch.arange(2 * nodes).reshape(2, nodes) % nodes)


class Collater:
    """pytorch_geometric, loader/dataloader.py."""

    def __call__(self, batch: list[Graph]) -> Graph:
        starts = np.cumsum([0, *(len(graph.x) for graph in batch)])
        edges = [graph.edge_index + int(start) for graph, start in zip(batch, starts, strict=False)]
        return Graph(torch.cat([graph.x for graph in batch]), torch.cat(edges, 1))


def graphs() -> DataLoader[Any]:
    """Sound."""
    return loaded(Graphs(), collate_fn=Collater())


class Series(Dataset[Any]):
    """Windows of one long table. jdb78/pytorch-forecasting, TimeSeriesDataSet."""

    def __init__(self) -> None:
        self.data = {"reals": torch.arange(N * 3.0).reshape(N, 3), "time": torch.arange(N)}

    def __len__(self) -> int:
        return N - 8

    def __getitem__(self, index: int) -> Any:
        index = range(N - 8)[index]
        window = self.data["reals"][index : index + 8]
        return {"x_cont": window.clone(), "encoder_length": 6}, (window[6:, 0].clone(), None)

    @staticmethod
    def collate(batch: list[Any]) -> Any:
        x = {"x_cont": torch.stack([features["x_cont"] for features, _ in batch])}
        return x, (torch.stack([target for _, (target, _) in batch]), None)


def series() -> DataLoader[Any]:
    """Sound."""
    return loaded(Series(), collate_fn=Series.collate)


class Normalized(Series):
    """Defect: the table itself is normalised, window by window, again and again."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        self.data["reals"][index : index + 8] *= 0.5
        return x, y


def normalized() -> DataLoader[Any]:
    """Defect."""
    return loaded(Normalized(), collate_fn=Series.collate)


class Prefetched(Dataset[Any]):
    """Defect: a thread that the constructor starts fills a queue; workers have the queue without the thread."""

    def __init__(self) -> None:
        self.asked: queue.Queue[int] = queue.Queue()
        self.given: queue.Queue[torch.Tensor] = queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self.given.put(torch.full((4,), float(self.asked.get())))

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked.put(range(N)[index])
        return self.given.get()


def prefetched() -> DataLoader[Any]:
    """Defect."""
    return loaded(Prefetched())


class Remembered(Dataset[Any]):
    """Defect: every transition that was read is kept, without an end."""

    def __init__(self) -> None:
        self.memory: list[Any] = []

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        tensor = torch.full((4096,), float(range(N)[index]))
        self.memory.append(tensor)
        return tensor


def remembered() -> DataLoader[Any]:
    """Defect."""
    return loaded(Remembered())
