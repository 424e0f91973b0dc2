"""The site file: /etc/ncclcheck.toml, ./ncclcheck.toml, NCCLCHECK_CONFIG; the later one wins, key by key.

Every option of the command line may stand in it under its own name, for all commands at the top or for one
in its table; `[require]`, `[thresholds]` and `contact` are the site's own. What names other machines, or a command
to run there, is taken only from a file that nobody else can have written.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.machine import files
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.results import walk
from ncclcheck.run.plan.bench_plan import BenchOptions
from ncclcheck.run.plan.data_plan import DataOptions
from ncclcheck.run.plan.option_table import CommandOption, Flag, Kind, NumberRange, Text, WordChoice, options_of
from ncclcheck.run.plan.options import Options, codes, requirements
from ncclcheck.run.plan.preflight_plan import PreflightOptions
from ncclcheck.run.plan.smoke_plan import SmokeOptions
from ncclcheck.run.plan.tune_plan import TuneOptions

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

PLACES = ("/etc/ncclcheck.toml", "ncclcheck.toml")
VARIABLE = "NCCLCHECK_CONFIG"
_MOST = 2**20  # bytes of a configuration file: more is not read


def _keys() -> dict[str, CommandOption]:
    """The options that may stand in a site file; one name of several commands has the widest of their ranges."""
    options: dict[str, CommandOption] = {}
    for option in (option for record in RECORDS.values() for option in options_of(record)):
        if option.site is None:
            continue
        known = options.setdefault(option.key, option).site
        if isinstance(known, NumberRange) and isinstance(option.site, NumberRange):
            widest = replace(known, low=min(known.low, option.site.low), high=max(known.high, option.site.high))
            options[option.key] = replace(option, site=widest)
    return options


def _type(kind: Kind | None) -> Any:
    """What msgspec converts a key's value to."""
    if isinstance(kind, NumberRange):
        return Annotated[int if kind.whole else float, Meta(ge=kind.low, le=kind.high)]
    if isinstance(kind, WordChoice):
        return Literal[kind.words]
    return bool if isinstance(kind, Flag) else list[str] if kind == Text(comma_list=True) else str


RECORDS: dict[str, type[Any]] = {
    "": Options, "bench": BenchOptions, "tune": TuneOptions, "data": DataOptions, "smoke": SmokeOptions,
    "preflight": PreflightOptions,
}  # fmt: skip
KEYS = _keys()
GUARDED = tuple(name for name, option in KEYS.items() if option.guarded)
_UNKNOWN = re.compile(r"unknown field `(.*)`$")  # msgspec's words
TABLES = ("env", *filter(None, RECORDS))  # report has no table, and takes what stands at the top
COMMANDS = (*TABLES, "report")
_ALLOWED = {
    "contact": "a text",
    "require": "a table of NAME = a whole number, true or false",
    "thresholds": "a table of CODE.NAME of a rule's page = a number",
}
_NAMES = [*(name.replace("_", "-") for name in KEYS), *TABLES, *_ALLOWED]

_FIELDS = [(name, _type(option.site) | None, None) for name, option in KEYS.items()]
_COMMAND = msgspec.defstruct("CommandOptions", _FIELDS, forbid_unknown_fields=True, rename="kebab")
_OWN: list[tuple[str, Any, Any]] = [
    ("contact", str | None, None),
    ("require", dict[str, int | bool] | None, None),
    ("thresholds", dict[str, float] | None, None),
]
_FILE = msgspec.defstruct(
    "SiteFile", [*_FIELDS, *_OWN, *((name, _COMMAND | None, None) for name in TABLES)],
    forbid_unknown_fields=True, rename="kebab",
)  # fmt: skip


class SiteFile(Struct, frozen=True, kw_only=True):
    """A whole site file. tables: what each command's table sets; "": what stands at the top."""

    contact: str | None
    require: dict[str, int | bool] | None
    thresholds: dict[str, float] | None
    tables: dict[str, dict[str, Any]]


class SiteFiles(Struct, frozen=True, kw_only=True):
    """What all site files together say. defaults: by command, in the shape of click's default_map.

    set_by: by command and option, the file.
    """

    contact: str = ""
    require: str = ""
    thresholds: dict[str, float] = {}
    defaults: dict[str, dict[str, Any]] = {}
    set_by: dict[str, dict[str, str]] = {}


def read(env: Mapping[str, str]) -> SiteFiles:
    """Read the site files that exist. Raises UsageError with the file and the key."""
    named = env.get(VARIABLE)
    places = [path for path in PLACES if not (named and _is_same(path, named))]
    empty: dict[str, dict[str, Any]] = {command: {} for command in COMMANDS}
    site = SiteFiles(defaults=empty, set_by=empty, thresholds={})
    for path in [*places, *([named] if named else [])]:
        if (file := _parse(path, must_exist=path == named)) is not None:
            site = _merge(site, file, path)
    return site


def _is_same(path: str, named: str) -> bool:
    with suppress(OSError, ValueError):
        return os.path.samefile(path, named)
    return False


def _parse(path: str, *, must_exist: bool) -> SiteFile | None:
    try:
        text, doubt = _content(path)
        data = tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError) as error:
        if must_exist:
            raise UsageError(f"{VARIABLE}: {path} cannot be read: {error.strerror}") from None
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    try:
        site = _tables(msgspec.convert(data, _FILE))
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {_refusal(str(error))}") from None
    _check(path, site)
    if doubt:
        _check_guarded(path, site, doubt)
    return site


def _content(path: str) -> tuple[str, str]:
    """A regular file's text, and why others may have written it. Raises OSError, UnicodeDecodeError."""
    file = files.opened(path)
    with open(file, "rb"):
        return files.bounded(file, _MOST).decode(), _doubt(path, file)


def _doubt(path: str, file: int) -> str:
    """Why somebody else may have written or placed this file; empty where only we or root can have.

    A file that is named by NCCLCHECK_CONFIG, or lies in /etc, was chosen; only root asks who may change it.
    """
    stats = os.fstat(file)
    changed = f"{files.described(stats)}: others may change it" if files.others_may_write(stats) else ""
    if path != PLACES[-1]:
        return changed if os.geteuid() == 0 else ""
    try:
        with walk.walk(path) as place:
            around = os.fstat(place.folder)
            kept = around.st_mode & stat.S_ISVTX and files.trusted_owner(around.st_uid) and stats.st_nlink == 1
            if place.status is None or not os.path.samestat(place.status, stats):
                return "it was exchanged for another while it was read"
            placed = f"its folder has {files.described(around)}: others may put it there"
            return changed or (placed if place.shared and not kept else "")
    except OSError as error:
        return error.strerror or str(error)


def _check_guarded(path: str, site: SiteFile, doubt: str) -> None:
    """Raises UsageError."""
    for table, options in site.tables.items():
        for name in GUARDED:
            if name in options:
                option = name.replace("_", "-")
                raise UsageError(
                    f"{path}: key {table}{'.' if table else ''}{option}: it is only taken from a file that nobody "
                    f"but you and root can write or replace ({doubt}); make file and folder yours alone (chown, "
                    f"chmod go-w), or take the key out and give --{option}"
                )


def _check(path: str, site: SiteFile) -> None:
    """What the types do not say: codes that exist, finite numbers. Raises UsageError with file and key."""
    known = {rule.code for rule in all_rules()} if site.thresholds else set()
    for name, value in (site.thresholds or {}).items():
        if name.partition(".")[0] not in known or not math.isfinite(value):
            raise UsageError(f"{path}: key thresholds.{name}: allowed is {_ALLOWED['thresholds']}")
    for table, options in site.tables.items():
        for key in ("only", "ignore"):
            codes(f"{path}: key {table}{'.' if table else ''}{key}", options.get(key, ""))
    if site.require:
        requirements(_require(site), f"{path}: key require")


def _refusal(message: str) -> str:
    """msgspec's `... - at `$.bench.nodes`` as `key bench.nodes: allowed is ...`."""
    what, _, where = message.partition(" - at `$")
    key = where.rstrip("`").lstrip(".")
    if unknown := _UNKNOWN.search(what):
        name = unknown[1]
        near = difflib.get_close_matches(name, _NAMES, 1)
        hint = f"; did you mean {near[0]}?" if near else "; docs/options.md lists the keys of a site file"
        return f"key {f'{key}.' if key else ''}{name}: there is no such key{hint}"
    option = KEYS.get(key.rpartition(".")[2].replace("-", "_"))
    allowed = option.site if option else _ALLOWED.get(key.partition("[")[0], "a table of options")
    return f"key {key}: allowed is {allowed}"


def _merge(site: SiteFiles, file: SiteFile, path: str) -> SiteFiles:
    given = {command: {**file.tables[""], **file.tables.get(command, {})} for command in COMMANDS}
    return SiteFiles(
        contact=file.contact if file.contact is not None else site.contact,
        require=_require(file) if file.require is not None else site.require,
        thresholds={**site.thresholds, **(file.thresholds or {})},
        defaults={command: {**site.defaults[command], **given[command]} for command in COMMANDS},
        set_by={command: {**site.set_by[command], **dict.fromkeys(given[command], path)} for command in COMMANDS},
    )


def _tables(file: Any) -> SiteFile:
    tables = {"": file, **{name: getattr(file, name) for name in TABLES}}
    return SiteFile(
        contact=file.contact,
        require=file.require,
        thresholds=file.thresholds,
        tables={name: _given(table) for name, table in tables.items() if table is not None},
    )


def _given(table: Any) -> dict[str, Any]:
    """The options that are set, by their Python names; lists as the command line writes them."""
    given = {name: getattr(table, name) for name in KEYS}
    return {n: ",".join(v) if isinstance(v, list) else v for n, v in given.items() if v is not None}


def _require(file: SiteFile) -> str:
    """`{gpu = 8, NET003 = true}` -> `gpu=8,NET003`."""
    parts = []
    for name, wanted in (file.require or {}).items():
        if wanted is not False:
            parts.append(name if wanted is True else f"{name}={wanted}")
    return ",".join(parts)
