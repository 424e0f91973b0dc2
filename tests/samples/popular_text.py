"""Loaders of text and sound as popular repositories write them. Examined by test_popular_libraries.py."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler, get_worker_info

N = 120
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def by_rank(data: Any, **options: Any) -> DistributedSampler[Any]:
    return DistributedSampler(data, num_replicas=WORLD, rank=RANK, **options)


def reader() -> tuple[int, int]:
    """Which reader of how many this worker of this rank is."""
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    return RANK * workers + worker, WORLD * workers


class Indexed(Dataset[Any]):
    """Tokens in one file, where each document begins in another. NVIDIA/Megatron-LM, indexed_dataset.py."""

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, "tokens.bin")
        if not os.path.exists(path):
            np.arange(N * 65, dtype=np.uint16).tofile(f"{path}.{os.getpid()}")
            os.replace(f"{path}.{os.getpid()}", path)
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.shuffled = np.random.RandomState(1234).permutation(N)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start = int(self.shuffled[index]) * 64
        text = torch.from_numpy(self.tokens[start : start + 65].astype(np.int64))
        return {"tokens": text[:-1].contiguous(), "labels": text[1:].contiguous(), "loss_mask": torch.ones(64)}


class Pretraining:
    """Global batches, of which each rank takes its part. Megatron-LM, MegatronPretrainingSampler."""

    def __iter__(self) -> Iterator[list[int]]:
        batch = []
        for index in range(N):
            batch.append(index)
            if len(batch) == 4 * WORLD:
                yield batch[4 * RANK : 4 * RANK + 4]
                batch = []

    def __len__(self) -> int:
        return N // (4 * WORLD)


def megatron(folder: str) -> DataLoader[Any]:
    """Sound."""
    return DataLoader(Indexed(folder), batch_sampler=Pretraining(), num_workers=2)


class Packed(Dataset[Any]):
    """Sound: sequences packed when it is made. pytorch/torchtune, PackedDataset."""

    def __init__(self) -> None:
        self.packs: list[dict[str, torch.Tensor]] = []
        tokens = list(itertools.chain.from_iterable([number] * (3 + number % 7) for number in range(800)))
        for start in range(0, N * 32, 32):
            pack = torch.tensor(tokens[start : start + 32])
            self.packs.append({"tokens": pack, "labels": pack.clone(), "input_pos": torch.arange(32)})

    def __len__(self) -> int:
        return len(self.packs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return dict(self.packs[index])


def packed() -> DataLoader[Any]:
    """Sound."""
    data = Packed()
    return DataLoader(data, batch_size=4, sampler=by_rank(data, seed=0), num_workers=2)


class PackedInPlace(Packed):
    """Defect: the prompt is masked in the pack itself, a little more with each reading."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        pack = self.packs[index]
        pack["labels"][(pack["labels"] != -100).nonzero()[:1]] = -100
        return pack


class ConstantLength(IterableDataset[Any]):
    """Defect: each worker of each rank packs everything. huggingface/trl before 0.17, ConstantLengthDataset."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        buffer: list[int] = []
        for number in range(400):
            buffer += [number] * (3 + number % 5) + [-1]
            while len(buffer) >= 16:
                block, buffer = torch.tensor(buffer[:16]), buffer[16:]
                yield {"input_ids": block, "labels": block}


def constant_length() -> DataLoader[Any]:
    """Defect."""
    return DataLoader(ConstantLength(), batch_size=4, num_workers=2)


class Arrow(Dataset[Any]):
    """Whole batches are asked for at once. huggingface/datasets, Dataset.__getitems__."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [{"input_ids": [range(N)[i]] * (2 + i % 6), "label": i % 2} for i in indices]


def with_padding(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """huggingface/transformers, DataCollatorWithPadding."""
    ids = pad_sequence([torch.tensor(sample["input_ids"]) for sample in batch], batch_first=True)
    return {
        "input_ids": ids,
        "attention_mask": ids > 0,
        "labels": torch.tensor([sample["label"] for sample in batch]),
    }


class ByLength(Sampler[int]):
    """transformers, trainer_pt_utils.py, DistributedLengthGroupedSampler."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(N, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        mega = [sorted(order[start : start + 40], key=lambda i: -(2 + i % 6)) for start in range(0, N, 40)]
        return iter(list(itertools.chain(*mega))[RANK:N:WORLD])

    def __len__(self) -> int:
        return N // WORLD

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def grouped_by_length() -> DataLoader[Any]:
    """Sound."""
    return DataLoader(Arrow(), batch_size=4, sampler=ByLength(), num_workers=2, collate_fn=with_padding)


class Masking:
    """Drawn anew for each batch. transformers, DataCollatorForLanguageModeling."""

    def __call__(self, batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        padded = with_padding(batch)
        masked = torch.bernoulli(torch.full(padded["input_ids"].shape, 0.15)).bool()
        return {"input_ids": padded["input_ids"].masked_fill(masked, 103), "labels": padded["input_ids"]}


def masked() -> DataLoader[Any]:
    """Sound."""
    data = Arrow()
    return DataLoader(data, batch_size=4, sampler=by_rank(data), num_workers=2, collate_fn=Masking())


def frozen_batches() -> DataLoader[Any]:
    """Sound: batches made before, shared out with padding. facebookresearch/fairseq, iterators.py."""
    batches = [list(range(start, start + 8)) for start in range(0, N, 8)]
    random.Random(1).shuffle(batches)
    mine = batches[RANK::WORLD]
    mine += [[]] * (math.ceil(len(batches) / WORLD) - len(mine))

    def collater(samples: list[Any]) -> Any:
        return with_padding(samples) if samples else {}

    return DataLoader(Arrow(), batch_sampler=mine, num_workers=2, collate_fn=collater)


def frozen_uneven() -> DataLoader[Any]:
    """Defect: the same without padding: 15 batches for two ranks."""
    batches = [list(range(start, start + 8)) for start in range(0, N, 8)]
    return DataLoader(Arrow(), batch_sampler=batches[RANK::WORLD], num_workers=2, collate_fn=with_padding)


class Minibatches(Dataset[Any]):
    """Sound: a sample is a whole minibatch. espnet/espnet, ESPnetDataset of espnet1 (batch_size=1)."""

    def __len__(self) -> int:
        return N // 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = [10 + (range(N // 4)[index] * 4 + place) % 9 for place in range(4)]
        return pad_sequence([torch.full((length, 5), float(index)) for length in lengths], True), torch.tensor(
            lengths
        )


def first(batch: list[Any]) -> Any:
    return batch[0]


def minibatches() -> DataLoader[Any]:
    """Sound."""
    data = Minibatches()
    return DataLoader(data, batch_size=1, sampler=by_rank(data), num_workers=2, collate_fn=first)


class ByDuration(Sampler[list[int]]):
    """Batches of about one duration, of any number. speechbrain/speechbrain, DynamicBatchSampler."""

    def __init__(self) -> None:
        self.epoch = 0
        self._make()

    def _make(self) -> None:
        order = np.random.RandomState(42 + self.epoch).permutation(N).tolist()
        batches: list[list[int]] = [[]]
        for index in sorted(order, key=lambda number: number % 9):
            if sum(10 + number % 9 for number in batches[-1]) > 80:
                batches.append([])
            batches[-1].append(index)
        random.Random(42 + self.epoch).shuffle(batches)
        self.batches = batches + batches[: -len(batches) % WORLD]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches[RANK::WORLD])

    def __len__(self) -> int:
        return len(self.batches[RANK::WORLD])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._make()


class PaddedBatch:
    """An object with the padded signals. speechbrain, dataio/batch.py."""

    def __init__(self, samples: list[dict[str, Any]]) -> None:
        self.id = [sample["id"] for sample in samples]
        self.sig = pad_sequence([sample["sig"] for sample in samples], True)

    def pin_memory(self) -> PaddedBatch:
        return self


class Waves(Dataset[Any]):
    """Signals of several lengths."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": f"utt{index}", "sig": torch.full((10 + range(N)[index] % 9,), float(index))}


def by_duration() -> DataLoader[Any]:
    """Sound."""
    return DataLoader(Waves(), batch_sampler=ByDuration(), num_workers=2, collate_fn=PaddedBatch)


class Mel(Dataset[Any]):
    """Sound: the last file read is kept for a while. jik876/hifi-gan, meldataset.py, n_cache_reuse."""

    def __init__(self) -> None:
        self.files = list(range(N))
        random.seed(1234)
        random.shuffle(self.files)
        self.cached: torch.Tensor | None = None
        self.reuse = 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.reuse == 0:
            self.cached, self.reuse = torch.arange(200.0) + self.files[index], 0
        start = random.randint(0, 200 - 64)
        assert self.cached is not None
        return self.cached[start : start + 64].clone()


def mel() -> DataLoader[Any]:
    """Sound."""
    data = Mel()
    return DataLoader(data, batch_size=4, sampler=by_rank(data), num_workers=2, pin_memory=False)


class Standardised(Dataset[Any]):
    """Windows by their own deviation, which is 0 where the sensor stands still: samples 20 to 22."""

    def __init__(self) -> None:
        self.values = torch.arange(400.0) % 7
        self.values[80:98] = 3.0

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        window = self.values[4 * index : 4 * index + 8]
        return (window - window.mean()) / window.std(), index


class GlobalIndices(IterableDataset[Any]):
    """Sound: one shuffled list, of which each worker of each rank takes its part. allenai/OLMo."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        order = np.random.Generator(np.random.PCG64(6198 + self.epoch)).permutation(400)
        number, of = reader()
        for index in order[number::of]:
            yield {"input_ids": torch.full((32,), int(index)), "index": torch.tensor(int(index))}

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def global_indices() -> DataLoader[Any]:
    """Sound."""
    return DataLoader(GlobalIndices(), batch_size=4, num_workers=2, drop_last=True)
