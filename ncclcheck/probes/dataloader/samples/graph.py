"""Everything that a user's object holds or uses, by path, without touching what it means. Bounded."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

_MOST_OBJECTS = 20_000  # chosen, some tens of milliseconds; what lies deeper is not looked at
_MOST_DEPTH = 10  # of attributes and containers: chosen; wrappers of wrappers take two levels each
_MOST_ITEMS = 64  # of one container: items of one list are nearly always alike
_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), range, types.ModuleType)
_NOT_THE_USERS = ("torch", "numpy", "builtins", "random", "typing", "collections", "ncclcheck")


def walk(obj: Any, name: str = "self") -> Iterator[tuple[str, Any]]:
    """Objects reachable through attributes, containers, closures, and the globals that methods name.

    Breadth first, each object once; of a long container its first items. Properties are not called.
    """
    waiting: deque[tuple[str, Any, int]] = deque([(name, obj, 0)])
    seen: set[int] = set()
    kept: list[Any] = []  # ids are only unique among the living
    while waiting and len(seen) < _MOST_OBJECTS:
        path, value, depth = waiting.popleft()
        if type(value) in _LEAVES or id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        yield path, value
        if depth < _MOST_DEPTH:
            waiting.extend((inner, item, depth + 1) for inner, item in _inside(path, value))


def _inside(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if isinstance(value, dict):
        for key, item in first(value.items()):
            yield f"{path}[{_key(key)}]", item
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for position, item in enumerate(first(value)):
            yield f"{path}[{position}]", item
    elif kind is types.MethodType:
        yield path, value.__self__
        yield path, value.__func__
    elif kind is types.FunctionType:
        yield from _of_function(path, value)
    elif isinstance(value, functools.partial):
        yield f"{path}.func", value.func
        yield from ((f"{path}.args", item) for item in (*value.args, *value.keywords.values()))
    elif isinstance(value, type):
        yield from _of_class(value)
    if not isinstance(value, type | types.FunctionType | types.MethodType):
        yield from _of_instance(path, value)


def _of_instance(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    members = attributes(value)
    if isinstance(members, dict):
        yield from ((f"{path}.{key}", item) for key, item in list(members.items()))
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            member = base.__dict__.get(slot)
            if isinstance(member, types.MemberDescriptorType) and (item := _read(member, value)) is not None:
                yield f"{path}.{slot}", item
    yield path, kind


def attributes(value: Any) -> Any:
    """Its `__dict__`, without its `__getattr__`: pydantic's stand-ins raise there what they like."""
    try:
        return object.__getattribute__(value, "__dict__")
    except Exception:  # a class may make a property of it
        return None


def _key(key: Any) -> str:
    """Of a dictionary; the user's own class is named alone, its `__repr__` is not called."""
    return f"{key!r:.40}" if type(key) in _LEAVES else type(key).__name__


def _read(member: types.MemberDescriptorType, value: Any) -> Any:
    try:
        return member.__get__(value)
    except AttributeError:
        return None


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """Attributes and methods of the user's classes and of their bases."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in _NOT_THE_USERS:
            for key, item in list(vars(base).items()):
                inner = item.__func__ if isinstance(item, classmethod | staticmethod) else item
                yield f"{base.__name__}.{key}", inner


def _of_function(path: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What it closes over, its defaults, and the globals that its code names."""
    if (function.__module__ or "").partition(".")[0] in _NOT_THE_USERS:
        return
    for cell in function.__closure__ or ():
        try:
            yield f"{path}()", cell.cell_contents
        except ValueError:
            continue
    yield from ((f"{path}()", item) for item in function.__defaults__ or ())
    for key in sorted(_names(function.__code__)):  # which come first must not depend on PYTHONHASHSEED
        if key in function.__globals__:
            yield f"{function.__module__}.{key}", function.__globals__[key]
    if hasattr(function, "__wrapped__"):
        yield path, function.__wrapped__


def _names(code: types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*(_names(c) for c in inner))


def first(items: Any) -> list[Any]:
    """Of a long container its first items."""
    try:
        return [item for _, item in zip(range(_MOST_ITEMS), items, strict=False)]
    except RuntimeError:  # another thread changes it
        return []
