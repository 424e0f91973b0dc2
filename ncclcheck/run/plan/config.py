"""The site file: /etc/ncclcheck.toml, ./ncclcheck.toml, NCCLCHECK_CONFIG; the later one wins, key by key.

Every option of the command line may stand in it under its own name, for all commands at the top or for one
in its table; `[require]`, `[thresholds]` and `contact` are the site's own. What names other machines, or a command
to run there, is taken only from a file that nobody else can have written.
"""

from __future__ import annotations

import math
import os
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.machine import files
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.results import walk
from ncclcheck.run.plan.options import codes, requirements

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

PLACES = ("/etc/ncclcheck.toml", "ncclcheck.toml")
VARIABLE = "NCCLCHECK_CONFIG"
COMMANDS = ("env", "bench", "data", "smoke", "preflight", "report")
GUARDED = ("hosts", "hostfile", "via", "launch", "rdzv_endpoint")
_MOST = 2**20  # bytes of a configuration file: more is not read


Seconds = Annotated[float, Meta(ge=1, le=86400)]


class CommandOptions(Struct, forbid_unknown_fields=True, rename="kebab"):
    """Options that may stand in a site file; None is not set."""

    nodes: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    launch: Literal["local", "slurm", "ssh", "join"] | None = None
    hosts: str | None = None
    hostfile: str | None = None
    via: str | None = None
    rdzv_endpoint: str | None = None
    wait: Seconds | None = None
    output: Literal["text", "short", "json"] | None = None
    only: list[str] | None = None
    ignore: list[str] | None = None
    strict: bool | None = None
    deadline: Seconds | None = None
    color: Literal["auto", "always", "never"] | None = None
    quiet: bool | None = None
    verbose: bool | None = None
    anonymise: bool | None = None
    ops: str | None = None
    sizes: str | None = None
    reduce_op: str | None = None
    dtype: str | None = None
    nproc_per_node: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    backend: Literal["auto", "nccl", "gloo"] | None = None
    start: Literal["torchrun", "spawn"] | None = None
    init: Literal["env", "tcp", "file"] | None = None
    time_budget: Annotated[float, Meta(ge=0.1, le=86400)] | None = None
    min_busbw: str | None = None
    quick: bool | None = None
    full: bool | None = None
    force: bool | None = None
    factory_limit: Seconds | None = None
    workers: Annotated[int, Meta(ge=1, le=64)] | None = None
    need: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    steps: Annotated[int, Meta(ge=4, le=100_000)] | None = None
    batch: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    accumulate: Annotated[int, Meta(ge=1, le=1024)] | None = None
    precision: Literal["fp32", "bf16", "fp16"] | None = None
    strategy: Literal["ddp", "fsdp", "zero3"] | None = None
    save_mib: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    model_params: str | None = None
    no_kill: bool | None = None
    level: Literal["quick", "standard", "full"] | None = None
    no_verify: bool | None = None
    cache: Annotated[float, Meta(ge=1, le=10_080)] | None = None


class SiteFile(CommandOptions, forbid_unknown_fields=True, rename="kebab"):
    """A whole site file."""

    contact: str | None = None
    require: dict[str, int | bool] | None = None
    thresholds: dict[str, float] | None = None
    env: CommandOptions | None = None
    bench: CommandOptions | None = None
    data: CommandOptions | None = None
    smoke: CommandOptions | None = None
    preflight: CommandOptions | None = None

    def tables(self) -> dict[str, CommandOptions | None]:
        """The tables of commands; report has none of its own."""
        return {name: getattr(self, name, None) for name in COMMANDS}


class Site(Struct, frozen=True, kw_only=True):
    """What all site files together say. defaults: by command, in the shape of click's default_map.

    set_by: by command and option, the file.
    """

    contact: str = ""
    require: str = ""
    thresholds: dict[str, float] = {}
    defaults: dict[str, dict[str, Any]] = {}
    set_by: dict[str, dict[str, str]] = {}


def read(env: Mapping[str, str]) -> Site:
    """Read the site files that exist. Raises UsageError with the file and the key."""
    named = env.get(VARIABLE)
    places = [path for path in PLACES if not (named and _is_same(path, named))]
    empty: dict[str, dict[str, Any]] = {command: {} for command in COMMANDS}
    site = Site(defaults=empty, set_by=empty, thresholds={})
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
        site = msgspec.convert(data, SiteFile)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {_with_key(str(error))}") from None
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
    told = os.fstat(file)
    changed = f"{files.described(told)}: others may change it" if files.others_may_write(told) else ""
    if path != PLACES[-1]:
        return changed if os.geteuid() == 0 else ""
    try:
        with walk.found(path) as place:
            around = os.fstat(place.folder)
            kept = around.st_mode & stat.S_ISVTX and files.trusted_owner(around.st_uid) and told.st_nlink == 1
            if place.told is None or not os.path.samestat(place.told, told):
                return "it was exchanged for another while it was read"
            placed = f"its folder has {files.described(around)}: others may put it there"
            return changed or (placed if place.shared and not kept else "")
    except OSError as error:
        return error.strerror or str(error)


def _check_guarded(path: str, site: SiteFile, doubt: str) -> None:
    """Raises UsageError."""
    for table, options in {"": site, **site.tables()}.items():
        for name in GUARDED:
            if options is not None and getattr(options, name) is not None:
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
            raise UsageError(f"{path}: key thresholds.{name}: allowed is CODE.NAME of a rule's page = a number")
    for table, options in {"": site, **site.tables()}.items():
        for key in ("only", "ignore"):
            if options is not None and (given := getattr(options, key)):
                codes(f"{path}: key {table}{'.' if table else ''}{key}", ",".join(given))
    if site.require:
        requirements(_require(site), f"{path}: key require")


def _with_key(message: str) -> str:
    """msgspec's `... - at `$.bench.nodes`` as `key bench.nodes: ...`."""
    what, found, where = message.partition(" - at `$")
    key = where.rstrip("`").lstrip(".")
    return f"key {key}: {what}" if found and key else what


def _merge(site: Site, file: SiteFile, path: str) -> Site:
    shared = _given(file)
    given = {command: {**shared, **(_given(table) if table else {})} for command, table in file.tables().items()}
    return Site(
        contact=file.contact if file.contact is not None else site.contact,
        require=_require(file) if file.require is not None else site.require,
        thresholds={**site.thresholds, **(file.thresholds or {})},
        defaults={command: {**site.defaults[command], **given[command]} for command in COMMANDS},
        set_by={command: {**site.set_by[command], **dict.fromkeys(given[command], path)} for command in COMMANDS},
    )


def _given(options: CommandOptions) -> dict[str, Any]:
    """The options that are set, by their Python names; lists as the command line writes them."""
    found = {name: getattr(options, name) for name in CommandOptions.__struct_fields__}
    return {n: ",".join(v) if isinstance(v, list) else v for n, v in found.items() if v is not None}


def _require(file: SiteFile) -> str:
    """`{gpu = 8, NET003 = true}` -> `gpu=8,NET003`."""
    parts = []
    for name, wanted in (file.require or {}).items():
        if wanted is not False:
            parts.append(name if wanted is True else f"{name}={wanted}")
    return ",".join(parts)
