"""Through all that a struct holds, told apart by what its fields may hold."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

T = TypeVar("T")
Place = tuple[str, str]  # the struct's type and the field's name


def strings(value: Any, place: Place = ("", "")) -> Iterator[tuple[Place, str]]:
    """Every string that is not one of a fixed set of words."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            if not _fixed(type(value), name):
                yield from strings(getattr(value, name), (type(value).__name__, name))
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner, place)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from strings(inner, place)


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
    elif isinstance(value, tuple):
        new = tuple(changed(inner, change, place) for inner in value)
    return new  # type: ignore[no-any-return]


def _struct(value: Struct, change: Callable[[Place, str], str]) -> Struct:
    """Made anew: what reports derived from the old one is kept beside its fields, and must not come along."""
    kind = type(value)
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    new = {
        name: inner if _fixed(kind, name) else changed(inner, change, (kind.__name__, name))
        for name, inner in fields.items()
    }
    return value if all(new[name] is fields[name] for name in fields) else kind(**new)


@cache
def _fixed(kind: type[Struct], name: str) -> bool:
    """A field that holds numbers, enumerations or one of a few words."""
    return not _free(_hints(kind)[name])


@cache
def _hints(kind: type[Struct]) -> dict[str, Any]:
    return get_type_hints(kind)


def _free(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        parts = get_args(hint)
        literal = any(get_origin(part) is Literal for part in parts)
        return any(_free(part) for part in parts if not (literal and part is str))
    return get_origin(hint) is not Literal and hint not in (int, float, bool, type(None))
