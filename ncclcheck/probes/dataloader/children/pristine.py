"""What forked children share with their parent: put back before each look, so that all start alike."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import torch

from ncclcheck.probes.dataloader.children import surroundings
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.samples.graph import walk
from ncclcheck.probes.facts.data.content import Memory

# of shared memory that is copied and put back before each look: chosen, 0.1 s of copying
_MOST_BYTES = 256 * 2**20


class Pristine:
    """Offsets of inherited files, and the memory shared between processes, as the factory left them."""

    def __init__(self, made: FactoryLoader) -> None:
        self._offsets = dict(_offsets(made))
        shared = list(_shared_memory(made))
        self._memory = [piece for _, piece in shared]
        self._where = [where for where, _ in shared]
        self._bytes = [_content(piece) for piece in self._memory]

    @property
    def has_memory(self) -> bool:
        """Whether any memory is shared."""
        return bool(self._memory)

    def restore(self) -> None:
        """Put all of it back."""
        for number, offset in self._offsets.items():
            with contextlib.suppress(OSError):
                os.lseek(number, offset, os.SEEK_SET)
        for (address, size), data in zip(self._memory, self._bytes, strict=True):
            ctypes.memmove(address, data, size)

    def changed(self) -> list[Memory]:
        """The shared memory that is not what it was."""
        both = zip(self._where, self._memory, self._bytes, strict=True)
        return [where for where, piece, data in both if _content(piece) != data]


def offsets(made: FactoryLoader) -> dict[int, int]:
    """Where the inherited files that can be read stand now, by descriptor."""
    return dict(_offsets(made))


def _offsets(made: FactoryLoader) -> Iterator[tuple[int, int]]:
    for handle in made.handles:
        if handle.kind == "file" and handle.access != "w":
            with contextlib.suppress(OSError, ValueError):
                yield handle.number, surroundings.position(handle.number)


def _shared_memory(made: FactoryLoader) -> Iterator[tuple[Memory, tuple[int, int]]]:
    """With address and size, tensors and multiprocessing values that forked processes share."""
    left = _MOST_BYTES
    for path, value in walk([made.dataset, made.loader.get("collate_fn")]):
        piece = _piece(value)
        if piece is not None and 0 < piece[1] <= left:
            left -= piece[1]
            yield Memory(path=path.replace("self[0]", "self", 1), type=_type(value)), piece


def _piece(value: Any) -> tuple[int, int] | None:
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.layout is not torch.strided or not value.is_shared():  # type: ignore[no-untyped-call]
            return None
        storage = value.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    if getattr(value, "mode", "") in ("r+", "w+") and hasattr(value, "__array_interface__"):  # numpy.memmap
        return value.ctypes.data, int(value.nbytes)
    if isinstance(value, SharedMemory) and value.buf is not None:
        return ctypes.addressof(ctypes.c_char.from_buffer(value.buf)), value.size
    if type(value).__module__ == "multiprocessing.sharedctypes" and hasattr(value, "get_obj"):
        value = value.get_obj()
    if isinstance(value, ctypes._SimpleCData | ctypes.Array | ctypes.Structure):
        return ctypes.addressof(value), ctypes.sizeof(value)
    return None


def _type(value: Any) -> str:
    """`torch.Tensor`, `numpy.memmap`, `multiprocessing.Array`: as the user knows it."""
    kind = type(value)
    if kind.__module__ == "multiprocessing.sharedctypes":
        return f"multiprocessing.{'Value' if kind.__name__ == 'Synchronized' else 'Array'}"
    if isinstance(value, ctypes._SimpleCData | ctypes.Array | ctypes.Structure):
        return "multiprocessing.RawArray"
    return f"{kind.__module__}.{kind.__name__}"


def _content(piece: tuple[int, int]) -> bytes:
    return ctypes.string_at(*piece)
