"""The bits of a model's parameters and buffers, told apart by name and comparable between ranks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

_PREFIXES = ("module.", "_orig_mod.")


def bytes_of_tensors() -> int:
    """Bytes of the storages, each counted once, of all tensors that Python reaches."""
    gc.collect()
    living = [
        thing for thing in gc.get_objects() if issubclass(type(thing), Tensor) and thing.layout is torch.strided
    ]
    storages = {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
        for tensor in living
        if not _wraps_others(tensor)
    }
    return sum(storages.values())


def _wraps_others(tensor: Tensor) -> bool:
    """Whether it has no memory of its own to ask for: DTensors and other wrappers."""
    return type(tensor) not in (Tensor, nn.Parameter) or tensor.is_meta


def bare(model: nn.Module) -> nn.Module:
    """The model within its wrap."""
    inner = getattr(model, "module", model)
    assert isinstance(inner, nn.Module)
    return inner


class Alone(nn.Module):
    """A bare model for a step that wants a wrapped one: it has `module` and `no_sync`, and sends nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, *given: Any, **named: Any) -> Any:
        """As the model itself."""
        return self.module(*given, **named)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is synchronised anyway."""
        return contextlib.nullcontext()


def plain(name: str) -> str:
    """A parameter's name without what wraps put before it."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def added(model: nn.Module, there: Sequence[Tensor]) -> list[str]:
    """Trained parameters of the model that are none of those that were there."""
    known = {id(tensor) for tensor in there}
    return [
        plain(name)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in known
    ]


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which ranks may hold pieces; then a collective."""
    gather = getattr(tensor, "full_tensor", None)
    full = tensor if gather is None else gather()
    assert isinstance(full, Tensor)
    return full


def tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers with their names, in the order in which every rank has them."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield plain(name), tensor


def fingerprint(tensor: Tensor) -> int:
    """63 bits of a hash over the tensor's bits, type and shape."""
    content = whole(tensor.detach()).to("cpu").contiguous()
    hasher = blake2b(f"{content.dtype}{tuple(content.shape)}".encode(), digest_size=8)
    if content.numel():
        hasher.update(ctypes.string_at(content.data_ptr(), content.numel() * content.element_size()))
    return int.from_bytes(hasher.digest(), "big") >> 1


def fingerprints(model: nn.Module) -> dict[str, int]:
    """One of each parameter and buffer."""
    return {name: fingerprint(tensor) for name, tensor in tensors(model)}


def lasting(model: nn.Module) -> dict[str, int]:
    """The same without buffers that no checkpoint keeps (persistent=False), scratch that may differ."""
    scratch = {
        plain(f"{place}.{name}" if place else name)
        for place, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    return {name: mark for name, mark in fingerprints(model).items() if name not in scratch}


def digest(model: nn.Module) -> str:
    """Of all parameters and buffers together, bit-exact; the same with and without a wrap."""
    return combined(fingerprints(model))


def combined(prints: dict[str, int]) -> str:
    """Names and fingerprints as one word."""
    return blake2b(repr(sorted(prints.items())).encode(), digest_size=8).hexdigest()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the gradient of each parameter that wants one, whole; zeros where it has none."""
    return {
        plain(name): torch.zeros_like(whole(parameter.detach()))
        if parameter.grad is None
        else _dense(parameter.grad)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def _dense(gradient: Tensor) -> Tensor:
    tensor = whole(gradient.detach())
    return (tensor.to_dense() if tensor.is_sparse else tensor).float().clone()


def of_16_bits(model: nn.Module) -> bool:
    """Whether some of what is trained has 16 bits."""
    return any(
        parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16)
        for parameter in model.parameters()
    )


def without_gradient(model: nn.Module) -> list[str]:
    """The parameters that want a gradient and have none."""
    return [
        plain(name)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
