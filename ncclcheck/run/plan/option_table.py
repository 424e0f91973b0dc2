"""Options as data: a field of a command's record carries the options that fill it.

From these fields come click's options (`cli/common.py`), the keys of the site file (`config.py`), the record that
a command gets, and docs/options.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

MEASURE, WHERE, VERDICT, OUTPUT, SELDOM = "What to measure", "Where to run", "Verdict", "Output", "Seldom needed"
GROUPS = (MEASURE, WHERE, VERDICT, OUTPUT, SELDOM)  # the headings under which --help lists options, in this order

Record = TypeVar("Record")


@dataclass(frozen=True)
class Text:
    """Any text. comma_list: the site file has a list where the command line has commas."""

    comma_list: bool = False

    def __str__(self) -> str:
        return "a list of texts" if self.comma_list else "a text"


@dataclass(frozen=True)
class Flag:
    """True where it is given."""

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class Json:
    """Keyword arguments as one JSON object."""


@dataclass(frozen=True)
class WordChoice:
    """One of these words."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.words)


@dataclass(frozen=True)
class NumberRange:
    """A number from low to high."""

    low: float = -math.inf
    high: float = math.inf
    unit: str = ""
    whole: bool = False

    def __str__(self) -> str:
        kind = self.unit or ("whole numbers" if self.whole else "numbers")
        if self.high < math.inf:
            return f"{self.low:g} to {self.high:g}{f' {self.unit}' if self.unit else ''}"
        return kind if self.low == -math.inf else f"{self.low:g} and more"


Kind = Text | Flag | Json | WordChoice | NumberRange
SECONDS = NumberRange(1, 86400, "seconds")  # a day: longer than any job waits for a check; chosen


@dataclass(frozen=True)
class CommandOption:
    """One option of the command line.

    default: what click gives where nothing is typed. variable: whether NCCLCHECK_NAME sets it too. site: its kind
    in the site file, None where it may not stand there. guarded: it chooses machines, or commands on them, so that
    it is taken only from a site file that nobody else can have written.
    """

    name: str
    help: str
    kind: Kind = field(default_factory=Text)
    group: str = MEASURE
    metavar: str | None = None
    short: str = ""
    default: Any = None
    show_default: bool = False
    multiple: bool = False
    variable: bool = True
    site: Kind | None = None
    guarded: bool = False

    @property
    def key(self) -> str:
        """Its name in what click gives and in default_map."""
        return self.name.lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class FieldSource:
    """What fills a field: options, and what makes its value of theirs; None: the value of the only one."""

    options: tuple[CommandOption, ...]
    make: Callable[..., Any] | None


def typed(
    default: Any, name: str, help: str, kind: Kind | None = None, *, site: bool | Kind = False, **more: Any
) -> Any:
    """A field that is one option, with the same default. site: it may stand in the site file (as that kind)."""
    kind = kind or Text()
    allowed = kind if site is True else site or None
    option = CommandOption(name, help, kind, site=allowed, default="{}" if default is dict else default, **more)
    return _field(default, FieldSource((option,), None))


def made_of(default: Any, make: Callable[..., Any], *options: CommandOption) -> Any:
    """A field whose value is made of what these options give. Raises what `make` raises, when it is read."""
    return _field(default, FieldSource(options, make))


def _field(default: Any, source: FieldSource) -> Any:
    if callable(default):
        return field(default_factory=default, metadata={"from": source})
    return field(default=default, metadata={"from": source})


def sources(record: type[Any]) -> Iterator[tuple[str, FieldSource]]:
    """The fields of a record that options fill."""
    for member in fields(record):
        if "from" in member.metadata:
            yield member.name, member.metadata["from"]


def options_of(record: type[Any], *names: str, **changed: Mapping[str, Any]) -> tuple[CommandOption, ...]:
    """The options of a record in the order of its fields. names: of these fields alone, in this order.

    changed: by an option's key, what this command has otherwise.
    """
    by_field = dict(sources(record))
    options = (option for name in names or by_field for option in by_field[name].options)
    return tuple(replace(option, **changed.get(option.key, {})) for option in options)


def read(record: type[Record], given: Mapping[str, Any], **others: Any) -> Record:
    """The record out of what click gives; a field keeps its default where nothing was given, not even by default.

    others: fields that no option fills. Raises UsageError.
    """
    values = {}
    for name, source in sources(record):
        typed_values = [given.get(option.key) for option in source.options]
        if any(value is not None for value in typed_values):
            values[name] = source.make(*typed_values) if source.make else typed_values[0]
    return record(**values, **others)
