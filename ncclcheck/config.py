"""The site file: /etc/ncclcheck.toml, ./ncclcheck.toml, NCCLCHECK_CONFIG; the later one wins, key by key.

Every option of the command line may stand in it under its own name, for all commands at the top or for one
in its table; `[require]`, `[thresholds]` and `contact` are the site's own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ncclcheck.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

PLACES = ("/etc/ncclcheck.toml", "ncclcheck.toml")
VARIABLE = "NCCLCHECK_CONFIG"
_MOST = 2**20


class CommandOptions(Struct, forbid_unknown_fields=True, rename="kebab"):
    """Options that may stand in a site file; None is not set."""

    nodes: int | None = None
    launch: str | None = None
    hosts: str | None = None
    hostfile: str | None = None
    via: str | None = None
    rdzv_endpoint: str | None = None
    wait: float | None = None
    output: str | None = None
    only: list[str] | None = None
    ignore: list[str] | None = None
    strict: bool | None = None
    deadline: float | None = None
    color: str | None = None
    quiet: bool | None = None
    verbose: bool | None = None
    ops: str | None = None
    sizes: str | None = None
    reduce_op: str | None = None
    dtype: str | None = None
    nproc_per_node: int | None = None
    backend: str | None = None
    time_budget: float | None = None


class SiteFile(CommandOptions, forbid_unknown_fields=True, rename="kebab"):
    """A whole site file."""

    contact: str | None = None
    require: dict[str, int | bool] | None = None
    thresholds: dict[str, float] | None = None
    env: CommandOptions | None = None
    bench: CommandOptions | None = None


class Site(Struct, frozen=True, kw_only=True):
    """What all site files together say. defaults: by command, in the shape of click's default_map."""

    contact: str = ""
    require: str = ""
    thresholds: dict[str, float] = {}
    defaults: dict[str, dict[str, Any]] = {}


def read(env: Mapping[str, str]) -> Site:
    """Read the site files that exist. Raises UsageError with the file and the key."""
    named = env.get(VARIABLE)
    files = [_parse(path, must_exist=path == named) for path in [*PLACES, *([named] if named else [])]]
    site = Site(defaults={"env": {}, "bench": {}}, thresholds={})
    for file in files:
        if file is not None:
            site = _merge(site, file)
    return site


def _parse(path: str, *, must_exist: bool) -> SiteFile | None:
    try:
        with open(path, "rb") as file:
            data = tomllib.loads(file.read(_MOST).decode())
    except (FileNotFoundError, NotADirectoryError) as error:
        if must_exist:
            raise UsageError(f"{VARIABLE}: {path} cannot be read: {error.strerror}") from None
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    try:
        return msgspec.convert(data, SiteFile)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {_with_key(str(error))}") from None


def _with_key(message: str) -> str:
    """msgspec's `... - at `$.bench.nodes`` as `key bench.nodes: ...`."""
    what, found, where = message.partition(" - at `$")
    key = where.rstrip("`").lstrip(".")
    return f"key {key}: {what}" if found and key else what


def _merge(site: Site, file: SiteFile) -> Site:
    shared = _given(file)
    defaults = {
        command: {**site.defaults[command], **shared, **(_given(table) if table else {})}
        for command, table in (("env", file.env), ("bench", file.bench))
    }
    return Site(
        contact=file.contact if file.contact is not None else site.contact,
        require=_require(file) if file.require is not None else site.require,
        thresholds={**site.thresholds, **(file.thresholds or {})},
        defaults=defaults,
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
