"""Defects of workers that meet: scratch space, caches, threads and buffers that they share."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import torch
from torch import Tensor

from benchmarks.datasets.material import (
    COUNT,
    RECORD,
    WIDTH,
    Samples,
    decoded,
    encoded,
    folder,
    packed,
    sample,
    table,
)


class SharedScratchTensor(Samples):
    """A tensor in shared memory used as working space by every worker."""

    def __init__(self) -> None:
        self.table = table()
        self.work = torch.zeros(WIDTH)
        self.work.share_memory_()  # type: ignore[no-untyped-call]

    def __getitem__(self, index: int) -> Tensor:
        self.work.copy_(self.table[index])
        for _ in range(4):
            self.work.mul_(2).add_(1)
        return self.work.clone()


class SharedArray(Samples):
    """An unlocked multiprocessing array that each worker decodes into."""

    def __init__(self) -> None:
        self.arena = multiprocessing.RawArray("f", WIDTH)

    def __getitem__(self, index: int) -> Tensor:
        for column in range(WIDTH):
            self.arena[column] = index * 1000.0 + column
        return torch.tensor(list(self.arena))


class ScratchFile(Samples):
    """Every worker converts through the same temporary file."""

    def __init__(self) -> None:
        self.scratch = folder() / "converted.bin"

    def __getitem__(self, index: int) -> Tensor:
        self.scratch.write_bytes(encoded(index))
        return decoded(self.scratch.read_bytes())


class UnlockedCursor(Samples):
    """A shared counter without a lock hands out the samples: which, depends on who asks when."""

    def __init__(self) -> None:
        self.table = table()
        self.cursor = multiprocessing.RawValue("i", 0)

    def __getitem__(self, index: int) -> Tensor:
        row = self.cursor.value % COUNT
        self.cursor.value += 1
        return self.table[row].clone()


class ThreadsSharingSelf(Samples):
    """Threads inside one sample share an attribute of the dataset."""

    def __init__(self) -> None:
        self.table = table()
        self.row = 0

    def _view(self, row: int) -> Tensor:
        self.row = row
        view = self.table[self.row] * 2
        for _ in range(20):
            view = view + 1
        return view + self.row

    def __getitem__(self, index: int) -> Tensor:
        rows = [(index + step) % COUNT for step in range(8)]
        with ThreadPoolExecutor(4) as pool:
            return torch.stack(list(pool.map(self._view, rows)))


class CacheInPlace(Samples):
    """The first reader writes the cache file in place: the others read half of it."""

    def __init__(self) -> None:
        self.cache = folder()

    def __getitem__(self, index: int) -> Tensor:
        path = self.cache / f"{index}.bin"
        if not path.exists():
            with path.open("wb") as file:
                for _ in range(64):
                    file.write(encoded(index) * 16)
        return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32).sum().reshape(1)


class TorchSaveCache(Samples):
    """`torch.save` straight to the name that the other workers look for."""

    def __init__(self) -> None:
        self.cache = folder()

    def __getitem__(self, index: int) -> Tensor:
        path = self.cache / f"{index}.pt"
        if not path.exists():
            torch.save({f"layer {number}": sample(index).repeat(64) for number in range(16)}, path)
        features: dict[str, Tensor] = torch.load(path)
        return torch.cat(list(features.values()))


class IndexBuiltByFirst(Samples):
    """Who comes first writes a shard's index; who comes second finds a file and half an index."""

    def __init__(self) -> None:
        self.path = packed()

    def _offsets(self, shard: int) -> list[int]:
        path = self.path.with_name(f"{shard}.json")
        if not path.exists():
            with path.open("w") as file:
                json.dump([number * RECORD for number in range(shard * 4, shard * 4 + 4)] + [0] * 4000, file)
        return cast("list[int]", json.loads(path.read_text()))

    def __getitem__(self, index: int) -> Tensor:
        with self.path.open("rb") as file:
            file.seek(self._offsets(index // 4)[index % 4])
            return decoded(file.read(RECORD))


class FilledAfterCreation(Samples):
    """A memory map of zeros that its first user fills: the file is complete long before its content."""

    def __init__(self) -> None:
        self.cache = folder()

    def __getitem__(self, index: int) -> Tensor:
        shard, row = divmod(index, 4)
        path = self.cache / f"{shard}.bin"
        ready = path.exists()
        block = torch.from_file(str(path), shared=True, size=4 * WIDTH).reshape(4, WIDTH)
        if not ready:
            for place in range(4 * WIDTH):
                block.view(-1)[place] = (shard * 4 + place // WIDTH) * 1000.0 + place % WIDTH
        return block[row].clone()


class ReturnedBuffer(Samples):
    """Every sample is the same tensor, filled anew: the batch holds its last sample."""

    def __init__(self) -> None:
        self.buffer = torch.zeros(WIDTH)

    def __getitem__(self, index: int) -> Tensor:
        return self.buffer.copy_(sample(index))


class RingOfBuffers(Samples):
    """Four buffers in turn: right until a batch is larger than four."""

    def __init__(self) -> None:
        self.ring = [torch.zeros(WIDTH) for _ in range(4)]
        self.turn = 0

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.turn = (self.turn + 1) % len(self.ring)
        return {"pixels": self.ring[self.turn].copy_(sample(index)), "label": torch.tensor(index)}


class BufferOfNumpy(Samples):
    """`torch.from_numpy` of a decoding buffer that the next sample overwrites."""

    def __init__(self) -> None:
        import numpy as np  # noqa: PLC0415

        self.buffer = np.zeros(WIDTH, dtype=np.float32)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.buffer[:] = sample(index).numpy()
        return torch.from_numpy(self.buffer), index % 10
