"""Through all that a struct holds, told apart by what its fields may hold."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

T = TypeVar("T")
Place = tuple[str, str]  # the struct's type and the field's name


def strings(value: Any) -> Iterator[tuple[Place, str]]:
    """Every string that is not one of a fixed set of words, in order."""
    waiting: list[tuple[Place, Any]] = [(("", ""), value)]
    while waiting:  # a large cluster has millions of values: generators within generators take twice the time
        place, value = waiting.pop()
        if isinstance(value, str):
            yield place, value
        elif isinstance(value, Struct):
            names = reversed(_free_fields(type(value)))
            waiting += [((type(value).__name__, name), getattr(value, name)) for name in names]
        elif isinstance(value, (list, tuple, dict)):
            inner = value.values() if isinstance(value, dict) else value
            waiting += [(place, part) for part in reversed([*inner])]


def changed(value: T, change: Callable[[Place, str], str], place: Place = ("", "")) -> T:
    """The same with every such string changed; what does not change is not copied."""
    new: Any = value
    if isinstance(value, str):
        new = change(place, value)
    elif isinstance(value, Struct):
        new = _struct(value, change)
    elif isinstance(value, dict):
        new = {key: changed(inner, change, place) for key, inner in value.items()}
    elif isinstance(value, list):
        new = [changed(inner, change, place) for inner in value]
        new = value if all(part is was for part, was in zip(new, value, strict=True)) else new
    elif isinstance(value, tuple):
        new = tuple(changed(inner, change, place) for inner in value)
    return new  # type: ignore[no-any-return]


def _struct(value: Struct, change: Callable[[Place, str], str]) -> Struct:
    """Made anew: what reports derived from the old one is kept beside its fields, and must not come along."""
    kind, new = type(value), {}
    for name in _free_fields(kind):
        inner = getattr(value, name)
        if inner and (image := changed(inner, change, (kind.__name__, name))) is not inner:
            new[name] = image
    if not new:
        return value
    return kind(**{name: new[name] if name in new else getattr(value, name) for name in value.__struct_fields__})


@cache
def _free_fields(kind: type[Struct]) -> tuple[str, ...]:
    """The fields that hold more than numbers, enumerations or one of a few words."""
    return tuple(name for name, hint in _hints(kind).items() if name in kind.__struct_fields__ and _free(hint))


@cache
def _hints(kind: type[Struct]) -> dict[str, Any]:
    return get_type_hints(kind)


def _free(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        parts = get_args(hint)
        literal = any(get_origin(part) is Literal for part in parts)
        return any(_free(part) for part in parts if not (literal and part is str))
    return get_origin(hint) is not Literal and hint not in (int, float, bool, type(None))
