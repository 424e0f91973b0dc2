"""Torch's CUDA operators, done by its CPU kernels on the same memory: device memory is memory of the host here.

`ncclcheck_cuda.pth` of the environment that tests.nccl.torch_cuda makes imports this in every process. It loads
our CUDA (native/) before anything else, and when torch has been imported it puts a function of its own in the
place of each aten operator that is registered for CUDA. An operator waits for the current stream first, so values
are those that a GPU would have computed, in the order of the stream; times are those of a CPU.

What is left alone makes no values (views, sizes, allocations), or would need a library of kernels (cuDNN, sparse,
quantised): there torch launches its own kernel, and native/torch.c refuses it.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
LIBRARY, SETTINGS = "libnvidia-ml.so.1", "settings.json"
_LEFT = (
    *(
        "empty",
        "set_",
        "resize",
        "_local_scalar",
        "view",
        "as_strided",
        "record_stream",
        "is_pinned",
        "pin",
        "_to_copy",
    ),
    *(
        "alias",
        "_reshape_alias",
        "unfold",
        "is_set_to",
        "sym_",
        "lift",
        "cudnn",
        "cuda",
        "_nested",
        "sparse",
        "quant",
    ),
)
_LEFT_ANYWHERE = ("cudnn", "sparse", "quant", "nested")
_PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")
_LARGEST_PRODUCT = 2**20  # elements that are multiplied into; beyond it a CPU would take minutes
_SPEED_TEST = 2**26  # from here on it is a speed test, whose values nobody looks at


class Operators:
    """Builds what takes an operator's place."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def install(self) -> int:
        """Replace what is registered for CUDA; how many there are."""
        torch, done = self.torch, 0
        library = torch.library.Library("aten", "IMPL")
        for full in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
            name, _, overload = full.removeprefix("aten::").partition(".")
            left = name == "copy_" or name.startswith(_LEFT) or any(word in name for word in _LEFT_ANYWHERE)
            if not full.startswith("aten::") or left:
                continue
            with suppress(AttributeError, RuntimeError):  # names that Python has no operator of
                operator = getattr(getattr(torch.ops.aten, name), overload or "default")
                library.impl(full.removeprefix("aten::"), self.instead_of(operator), "CUDA", allow_override=True)
                done += 1
        library.impl("copy_", self.copy_, "CUDA", allow_override=True)
        torch._ncclcheck_operators = library  # kept: it is undone when it is freed
        return done

    def alias(self, tensor: Any) -> Any:
        """The same memory as a tensor of the CPU."""
        torch = self.torch
        if tensor.device.type != "cuda" or tensor.layout is not torch.strided:
            return tensor
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if not size:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        memory = (ctypes.c_char * size).from_address(storage.data_ptr())
        here = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
        whole = torch.empty(0, dtype=tensor.dtype)
        return whole.set_(here, tensor.storage_offset(), tensor.size(), tensor.stride())

    def wait(self, device: Any) -> None:
        """For all that the current stream was given before."""
        self.torch.cuda.current_stream(device).synchronize()

    def copy_(self, to: Any, source: Any, _non_blocking: bool = False) -> Any:
        """Between any two devices."""
        for tensor in (to, source):
            if tensor.device.type == "cuda":
                self.wait(tensor.device)
        self.alias(to).copy_(self.alias(source))
        return to

    def instead_of(self, operator: Any) -> Callable[..., Any]:
        """The operator on the CPU's view of its arguments."""
        schema = operator._schema
        outs = {argument.name for argument in schema.arguments if argument.is_out}
        tensors = [str(argument.type) == "Tensor" for argument in schema.arguments]
        product = schema.name in _PRODUCTS

        def run(*given: Any, **named: Any) -> Any:
            if product and "out" in named and (size := named["out"].numel()) > _LARGEST_PRODUCT:
                if size < _SPEED_TEST:
                    raise RuntimeError(f"a product of {size} elements is not computed here")
                return named["out"].fill_(float("nan"))  # nobody shall take it for a product
            call = _Call(self)
            wrapped = [
                self.torch.tensor(argument)
                if tensors[place] and isinstance(argument, bool | int | float)
                else argument
                for place, argument in enumerate(given)
            ]
            there = [call.down(argument) for argument in wrapped]
            more = {name: call.down(argument, grows=name in outs) for name, argument in named.items()}
            if call.device is not None:
                self.wait(call.device)
            result = operator(*there, **more)
            call.grow()
            return call.up(result)

        return run


class _Call:
    """One call: which tensor of the CPU stands for which of the device."""

    def __init__(self, operators: Operators) -> None:
        self.operators, self.torch = operators, operators.torch
        self.device: Any = None
        self.stands_for: dict[int, tuple[Any, Any]] = {}
        self.grown: list[tuple[Any, Any]] = []

    def down(self, argument: Any, grows: bool = False) -> Any:
        """What the CPU's operator is given."""
        torch = self.torch
        if isinstance(argument, torch.Tensor) and argument.device.type == "cuda":
            self.device = argument.device
            if grows and not argument.numel():
                here = torch.empty(0, dtype=argument.dtype)
                self.grown.append((argument, here))
            else:
                here = self.operators.alias(argument)
            self.stands_for[id(here)] = (argument, here)
            return here
        if isinstance(argument, list | tuple):
            return type(argument)(self.down(each, grows) for each in argument)
        if isinstance(argument, torch.device) and argument.type == "cuda":
            self.device = argument
            return torch.device("cpu")
        return None if isinstance(argument, torch.Generator) else argument

    def grow(self) -> None:
        """Outputs that were empty get what was put into them."""
        for grown, here in self.grown:
            grown.resize_(here.size())
            self.operators.alias(grown).copy_(here)

    def up(self, result: Any) -> Any:
        """What the caller gets: its own tensors, or new ones on the device."""
        torch = self.torch
        if isinstance(result, torch.Tensor):
            if id(result) in self.stands_for:
                return self.stands_for[id(result)][0]
            if result.device.type == "cuda" or self.device is None:
                return result
            made = torch.empty_strided(result.size(), result.stride(), dtype=result.dtype, device=self.device)
            self.operators.alias(made).copy_(result)
            return made
        if isinstance(result, list | tuple):
            return type(result)(map(self.up, result))
        return result


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Installs the operators when torch has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """torch alone, found as always."""
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            import warnings  # noqa: PLC0415 - every process imports this file

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that kernels are overridden is what we want
                Operators(module).install()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def start() -> None:
    """In every process: the host's settings, our CUDA for all that is loaded later, torch's operators."""
    settings = HERE / SETTINGS
    if settings.exists():
        named = json.loads(settings.read_text())
        for name, value in {**named.get("", {}), **named.get(socket.gethostname(), {})}.items():
            os.environ.setdefault(name, value)
    ctypes.CDLL(str(HERE / LIBRARY), ctypes.RTLD_GLOBAL)
    sys.meta_path.insert(0, _AfterTorch())
