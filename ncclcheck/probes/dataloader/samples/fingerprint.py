"""A sample, leaf by leaf: path -> dtype, shape and a digest of its bytes."""

from __future__ import annotations

import ctypes
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import torch
from msgspec import Struct

_MOST_LEAVES = 256  # of a sample: chosen, bounds the time; more are not compared
_MOST_DEPTH = 8  # of containers: chosen; a cycle ends too
_MOST_BRIEF = 60  # characters of a value that is shown: chosen, half a line
_SCALARS = (bool, int, float, complex, str, bytes, type(None))


class SampleLeaf(Struct, frozen=True, kw_only=True):
    """One tensor, array, number or text of a sample. storage: bytes of all that a view keeps alive."""

    dtype: str
    shape: tuple[int, ...] = ()
    digest: str
    brief: str = ""
    bytes: int = 0
    storage: int = 0

    @property
    def identity(self) -> str:
        """Equal for leaves that are equal."""
        return f"{self.dtype} {self.shape} {self.digest}"


def leaves(sample: Any) -> dict[str, SampleLeaf]:
    """By path: "image", "0", "meta.id"; a bare tensor has the path "". A list of numbers is one leaf."""
    by_path: dict[str, SampleLeaf] = {}
    for path, value in _parts("", sample, 0):
        if len(by_path) == _MOST_LEAVES:
            break
        by_path[path] = _leaf(value)
    return by_path


def _parts(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    inner = list(_inner(value)) if depth < _MOST_DEPTH else []
    if not inner:
        yield path, value
    for name, item in inner:
        yield from _parts(f"{path}.{name}" if path else name, item, depth + 1)


def _inner(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (torch.Tensor, *_SCALARS)) or _is_array(value):
        return
    if isinstance(value, Mapping):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, list | tuple):
        if not all(isinstance(item, _SCALARS) for item in value) or (isinstance(value, tuple) and len(value) < 5):
            yield from ((str(position), item) for position, item in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((part.name, getattr(value, part.name)) for part in dataclasses.fields(value))
    elif not _is_image(value) and isinstance(attributes := getattr(value, "__dict__", None), dict):
        yield from ((str(key), item) for key, item in attributes.items())


def _leaf(value: Any) -> SampleLeaf:
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if _is_array(value):
        return _of_array(value)
    if _is_image(value):
        return SampleLeaf(
            dtype=f"image {value.mode}", shape=tuple(value.size), digest=_digest(value.tobytes()),
            brief=f"{value.mode} {value.size}",
        )  # fmt: skip
    return _of_object(value)


def _of_tensor(value: torch.Tensor) -> SampleLeaf:
    dtype, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
    if value.device.type != "cpu":  # a forked child may not touch the device
        return SampleLeaf(dtype=f"{dtype} on {value.device}", shape=shape, digest="")
    if value.layout is not torch.strided:
        return _of_tensor(value.detach().to_dense())
    whole = value.detach().resolve_conj().resolve_neg().contiguous()
    count = whole.numel() * whole.element_size()
    data = (ctypes.c_char * count).from_address(whole.data_ptr()) if count else b""
    return SampleLeaf(
        dtype=dtype, shape=shape, digest=_digest(data), brief=_brief(whole.flatten()[:6].tolist(), whole.numel()),
        bytes=count, storage=value.untyped_storage().nbytes(),
    )  # fmt: skip


def _of_array(value: Any) -> SampleLeaf:
    shape = tuple(int(size) for size in value.shape)
    if value.dtype.hasobject:
        return SampleLeaf(dtype="object", shape=shape, digest=_digest(repr(value.tolist()).encode()))
    root = value
    while getattr(getattr(root, "base", None), "nbytes", None) is not None:
        root = root.base
    first = value.reshape(-1)[:6].tolist()
    return SampleLeaf(
        dtype=str(value.dtype), shape=shape, digest=_digest(value.tobytes()), brief=_brief(first, value.size),
        bytes=int(value.nbytes), storage=int(root.nbytes),
    )  # fmt: skip


def _of_object(value: Any) -> SampleLeaf:
    name = type(value).__name__
    if isinstance(value, list | tuple | set | frozenset):
        ordered = sorted(map(repr, value)) if isinstance(value, set | frozenset) else value
        kinds = "|".join(sorted({type(item).__name__ for item in value}))
        return SampleLeaf(
            dtype=f"{name}[{kinds}]", shape=(len(value),), digest=_digest(repr(ordered).encode()),
            brief=_brief(list(ordered)[:6], len(value)), bytes=sys.getsizeof(value), storage=sys.getsizeof(value),
        )  # fmt: skip
    text = repr(value) if isinstance(value, _SCALARS) else _repr(value)
    size = len(value) if isinstance(value, str | bytes) else 8
    return SampleLeaf(
        dtype=name, digest=_digest(text.encode(errors="replace")), brief=text[:_MOST_BRIEF], bytes=size
    )


def _repr(value: Any) -> str:
    """What an object says of itself; an address is not content."""
    try:
        text = repr(value)
    except Exception:
        return type(value).__name__
    return type(value).__name__ if " at 0x" in text else text


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray | numpy.generic)


def _is_image(value: Any) -> bool:
    image = sys.modules.get("PIL.Image")
    return image is not None and isinstance(value, image.Image)


def _brief(first: list[Any], count: int) -> str:
    text = ", ".join(f"{item:.6g}" if isinstance(item, float) else str(item) for item in first)
    return f"{text}{', ...' if count > len(first) else ''}"[:_MOST_BRIEF]


def _digest(data: Any) -> str:
    return blake2b(data, digest_size=8).hexdigest()
