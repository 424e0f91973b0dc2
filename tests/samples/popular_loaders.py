"""Loaders as popular repositories write them, re-written small: some are sound, some have a defect of their kind.

Examined by test_popular_loaders.py; each names where its pattern is found.
"""

from __future__ import annotations

import functools
import os
import random
import struct
import time
from collections.abc import Iterator
from socket import socketpair
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

N = 96


class Images(Dataset[Any]):
    """A dataset of dictionaries with its own collate function. ultralytics/data/dataset.py, YOLODataset."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"img": torch.full((3, 8, 8), range(N)[index], dtype=torch.uint8), "cls": torch.zeros(1, 1)}

    @staticmethod
    def collate_fn(batch: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {key: torch.stack([sample[key] for sample in batch]) for key in batch[0]}


class Repeated:
    """ultralytics/data/build.py, _RepeatSampler."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class Infinite(DataLoader[Any]):
    """It iterates from its constructor on, and asks its batch sampler for the sampler within.

    ultralytics/data/build.py, InfiniteDataLoader.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.iterator)


def infinite() -> DataLoader[Any]:
    """Sound."""
    data, world = Images(), int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    split = DistributedSampler[Any](data, num_replicas=world, rank=rank) if world > 1 else None
    return Infinite(
        data, batch_size=8, shuffle=split is None, sampler=split, num_workers=2, collate_fn=Images.collate_fn
    )


class Pipeline:
    """What follows the loader is done in the training process. webdataset/compat.py, WebLoader."""

    def __init__(self, *stages: Any) -> None:
        self.pipeline = [*stages]

    def __iter__(self) -> Iterator[Any]:
        for batch in self.pipeline[0]:
            yield functools.reduce(lambda value, stage: stage(value), self.pipeline[1:], batch)


class Shards(IterableDataset[Any]):
    """Shards for this rank and worker. webdataset, split_by_node and split_by_worker."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        for shard in range(rank * workers + worker, 16, world * workers):
            yield from (torch.full((4,), float(shard * 100 + sample)) for sample in range(10))


def web_loader() -> Pipeline:
    """Sound."""
    return Pipeline(DataLoader(Shards(), batch_size=5, num_workers=2), lambda batch: batch * 2)


class Refusing:
    """Every attribute that it lacks is an error of its own kind. pydantic, _internal/_mock_val_ser.py."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name}: Pydantic models should inherit from BaseModel")


class Config:
    """A model class as pydantic makes it, with a stand-in for a validator that was not built."""

    __pydantic_validator__ = Refusing()
    size = 4


class Configured(Dataset[Any]):
    """Sound: albumentations and many configurations hold such classes."""

    def __init__(self) -> None:
        self.config, self.models = Config(), {Config: Refusing()}

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < N:
            raise IndexError(index)
        return torch.full((self.config.size,), float(index))


class Mosaic(Dataset[Any]):
    """Sound: mixed with samples from a ring buffer. ultralytics/data/base.py, BaseDataset.buffer."""

    def __init__(self) -> None:
        self.images = np.random.RandomState(1).rand(N, 8, 8).astype("float32")
        self.buffer: list[int] = []

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        self.buffer.append(index)
        if len(self.buffer) > 16:
            self.buffer.pop(0)
        others = random.choices(self.buffer, k=3)
        return torch.from_numpy(np.concatenate([self.images[number] for number in (index, *others)]))


class FlippedInPlace(Dataset[Any]):
    """Defect: boxes of the dataset's own records are flipped. detectron2, dictionaries without deepcopy."""

    def __init__(self) -> None:
        self.records = [{"boxes": np.arange(4.0) + index} for index in range(N)]

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        record = self.records[index]
        if random.random() < 0.5:
            record["boxes"] *= -1
        return torch.from_numpy(record["boxes"].copy())


class Pretokenized(IterableDataset[Any]):
    """Sound: a stream without an end, in an order of its own on each rank and worker. llama2.c, tinystories.py."""

    seed_of_its_own = True

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        info = get_worker_info()
        number = (info.id if info else 0) + 1337 * int(os.environ.get("RANK", "0"))
        dice = random.Random(42 + number if self.seed_of_its_own else 42)
        while True:
            starts = list(range(0, 1_000_000, 64))
            dice.shuffle(starts)
            for start in starts:
                chunk = torch.arange(start, start + 65)
                yield chunk[:-1], chunk[1:]


def pretokenized() -> DataLoader[Any]:
    """Sound."""
    return DataLoader(Pretokenized(), batch_size=16, num_workers=2)


class PretokenizedAlike(Pretokenized):
    """Defect: all ranks and workers draw the same order."""

    seed_of_its_own = False


def pretokenized_alike() -> DataLoader[Any]:
    """Defect."""
    return DataLoader(PretokenizedAlike(), batch_size=16, num_workers=2)


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """One batch, and no dataset. nanoGPT, train.py."""
    return torch.zeros(12, 64), torch.zeros(12, 64)


def both_loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """A training loader and one for validation."""
    return DataLoader(Images()), DataLoader(Images())


class Replaced(Dataset[Any]):
    """Defect: each tenth sample is another one, drawn at random, without any error."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < N:
            raise IndexError(index)
        return self[random.randrange(N)] if index % 10 == 3 else torch.full((4,), float(index))


class AnyLength(Dataset[Any]):
    """Defect: nearly every sample has a length of its own, and the collate function is torch's."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((random.Random(index).randint(3, 200),), float(index))


class Served(Dataset[Any]):
    """Defect: a server that the factory forks answers all workers over one socket; past the end it dies."""

    def __init__(self) -> None:
        self.ours, theirs = socketpair()
        values = list(range(N))
        if os.fork() == 0:
            while data := theirs.recv(8):
                theirs.send(struct.pack("q", values[struct.unpack("q", data)[0]]))
            os._exit(0)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        self.ours.send(struct.pack("q", index))
        number: int = struct.unpack("q", self.ours.recv(8))[0]
        return number


class Tokens(Dataset[Any]):
    """Sound: blocks of one long array of tokens. karpathy/minGPT, projects/chargpt, CharDataset."""

    def __init__(self) -> None:
        self.data = np.arange(N * 16 + 1) % 65

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= index < N:
            raise IndexError(index)
        chunk = torch.from_numpy(self.data[index * 16 : index * 16 + 17])
        return chunk[:-1].clone(), chunk[1:].clone()


def by_rank() -> DataLoader[Any]:
    """Sound: a DistributedSampler by the environment. pytorch/examples, distributed/ddp-tutorial-series."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    sampler: DistributedSampler[Any] = DistributedSampler(Tokens(), num_replicas=world, rank=rank, shuffle=True)
    return DataLoader(Tokens(), batch_size=4, num_workers=2, sampler=sampler)


class Crops(Dataset[Any]):
    """Sound: several views of one image, drawn at random. facebookresearch/dino, DataAugmentationDINO."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[list[torch.Tensor], int]:
        image = torch.full((3, 16, 16), float(range(N)[index]))
        return [image + torch.randn(()) for _ in range(2)] + [image[:, :8, :8] * random.random()], index


class Buckets:
    """Batches of samples of about one length. facebookresearch/fairseq, batch_by_size."""

    def __init__(self) -> None:
        self.order = sorted(range(N), key=lambda index: index % 7)

    def __iter__(self) -> Iterator[list[int]]:
        return iter([self.order[start : start + 8] for start in range(0, N, 8)])

    def __len__(self) -> int:
        return N // 8


class Lengths(Dataset[Any]):
    """Sentences of seven lengths. fairseq, LanguagePairDataset."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3 + range(N)[index] % 7,), float(index))


def padded(batch: list[torch.Tensor]) -> torch.Tensor:
    """fairseq, data_utils.collate_tokens."""
    return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)


def bucketed() -> DataLoader[Any]:
    """Sound for one rank: a batch_sampler of the user's own, and padding."""
    return DataLoader(Lengths(), batch_sampler=Buckets(), collate_fn=padded, num_workers=2)


class Cached(Dataset[Any]):
    """Sound: decoded once, augmented each time. Project-MONAI/MONAI, CacheDataset."""

    def __init__(self) -> None:
        self.cache: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        if index not in self.cache:
            self.cache[index] = torch.full((8, 8), float(range(N)[index]))
        return self.cache[index] + torch.randn(8, 8)


class CachedAugmented(Cached):
    """Defect: the augmented sample is cached, so that each epoch sees it again. The reverse of CacheDataset."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index not in self.cache:
            self.cache[index] = torch.full((8, 8), float(range(N)[index])) + torch.randn(8, 8)
        return self.cache[index]


def cached_augmented() -> DataLoader[Any]:
    """Defect."""
    return DataLoader(CachedAugmented(), batch_size=8, num_workers=2, persistent_workers=True)


class Noisy(Dataset[Any]):
    """Defect: a generator of its own, copied to all workers. pytorch/pytorch#5059; albumentations 2.0.8."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(137)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(range(N)[index])) + self.rng.normal()


def noisy() -> DataLoader[Any]:
    """Defect."""
    return DataLoader(Noisy(), batch_size=8, num_workers=2)


def reseeded(_: int) -> None:
    """A generator for each worker. PyTorch, Reproducibility, DataLoader."""
    info: Any = get_worker_info()
    info.dataset.rng = np.random.default_rng(info.seed)


def noisy_reseeded() -> DataLoader[Any]:
    """Sound: by worker_init_fn each worker of each rank has another generator."""
    return DataLoader(Noisy(), batch_size=8, num_workers=2, worker_init_fn=reseeded)


class Lines(IterableDataset[Any]):
    """Defect: neither ranks nor workers take a part of their own. PyTorch, torch.utils.data, IterableDataset."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((4,), float(number)) for number in range(400))


def lines() -> DataLoader[Any]:
    """Defect."""
    return DataLoader(Lines(), batch_size=4, num_workers=2)


class Stamped(Dataset[Any]):
    """Sound: the time of reading beside the data, as loaders keep that measure themselves."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": float(range(N)[index]), "t": time.time()}


class Photos(Dataset[Any]):
    """Defect: images of the size that they have. PyTorch's imagenet example without RandomResizedCrop."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(3, 20 + range(N)[index] % 9, 30)


def photos() -> DataLoader[Any]:
    """Defect."""
    return DataLoader(Photos(), batch_size=8, num_workers=2, shuffle=True)


def seeded_shuffle() -> DataLoader[Any]:
    """A note: a loop that makes it anew in each epoch has one order. PyTorch, Reproducibility, DataLoader."""
    generator = torch.Generator().manual_seed(0)
    return DataLoader(Tokens(), batch_size=4, num_workers=2, shuffle=True, generator=generator)


class Lite:
    """No dataset: it has batches of its own. karpathy/build-nanogpt, DataLoaderLite."""

    def next_batch(self) -> torch.Tensor:
        """The next one."""
        return torch.zeros(4, 8)


class Records(Dataset[Any]):
    """Fixed-length records of a file (this one) that this process has open; the offset is moved by every read."""

    def __init__(self) -> None:
        self.path = __file__
        self.file = open(self.path, "rb")  # noqa: SIM115 - as users write it

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= len(self):
            raise IndexError(index)
        self.file.seek(16 * index)
        return torch.frombuffer(bytearray(self.file.read(16)), dtype=torch.uint8)


class OpenedByEach(Records):
    """Each process opens the file anew, and lets the one that it was forked with go."""

    def __init__(self) -> None:
        super().__init__()
        self.opened_by = os.getpid()

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.opened_by != os.getpid():
            self.file.close()
            self.file, self.opened_by = open(self.path, "rb"), os.getpid()  # noqa: SIM115 - as users write it
        return super().__getitem__(index)


class Unpickled(Records):
    """Opens its file where it is unpickled: sound under spawn alone."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.file = open(self.path, "rb")  # noqa: SIM115 - as users write it


def spawned() -> DataLoader[Any]:
    data = Unpickled()
    sampler = DistributedSampler[Any](data)
    return DataLoader(data, batch_size=8, sampler=sampler, num_workers=2, multiprocessing_context="spawn")
