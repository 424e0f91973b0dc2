"""The folder of a fleet: three Parquet files a result, written whole or not at all, read as three tables.

DuckDB does both: it writes and reads Parquet and answers in SQL, is one wheel without dependencies, and what it
leaves behind any tool reads. pyarrow would be twice the size, and every question code of ours.

A year of daily results is a thousand files, which take longer to open than to read: every 64th result leaves one
file of each table that holds them all, with the size and time of each, and so does who asks where more are not in
it. Where any of these differs it is not used.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from ncclcheck.base.errors import UsageError
from ncclcheck.fleet.rows import MeasuredRow, NodeRow, Rows, VerdictRow
from ncclcheck.results import destination

TABLES: dict[str, Any] = {"nodes": NodeRow, "verdicts": VerdictRow, "measurements": MeasuredRow}
_TYPES = {"value": "DOUBLE", "more_is_better": "BOOLEAN"}  # all else is text
_NAME = re.compile(r"(?P<all>all-)?(?P<table>nodes|verdicts|measurements)(?(all)|-[0-9a-f]{16})\.parquet")
_MOST_APART = 64  # files of a table; fewer are read one by one: 0.06 s of CPU; chosen
_MOST_FILES = 200_000  # 60 years of daily results
_MOST_BYTES = 16 * 2**30  # of the Parquet files together: chosen, so that a wrong folder is not read as a fleet
_LIMIT_S = 120.0  # a year of 1,000 nodes takes 2 s
_MEMORY = "4GB"
_LONGEST = 500  # characters of a text


def _duckdb(asked_by: str) -> Any:
    try:
        return import_module("duckdb")
    except ImportError:
        raise UsageError(f"{asked_by}: it needs duckdb; type: pip install 'ncclcheck[fleet]'") from None


def check(folder: str) -> None:
    """Whether results can be kept there; makes the folder. Raises UsageError."""
    _duckdb("--parquet")
    try:
        os.makedirs(folder, exist_ok=True)
        destination.check(str(Path(folder) / "nodes-0000000000000000.parquet"))
    except OSError as error:
        raise UsageError(f"--parquet: {folder!r} cannot be written: {error.strerror or error}") from None


def write(folder: str, rows: Rows) -> None:
    """Keep one result; one that is there already is replaced by itself. Raises OSError."""
    duckdb = _duckdb("--parquet")
    one_thread = {"threads": "1"}  # a result is small: starting threads took longer than the work
    with tempfile.TemporaryDirectory() as private, duckdb.connect(config=one_thread) as made:
        for name, kind in TABLES.items():
            listed: Sequence[tuple[Any, ...]] = getattr(rows, name)
            columns = [*zip(*listed, strict=True)] or [()] * len(kind._fields)
            picked = ", ".join(
                f"unnest(${place}::{_type(field)}[]) AS {field}" for place, field in enumerate(kind._fields, 1)
            )
            there = str(Path(private) / f"{name}.parquet")
            parameters = {str(place): [*column] for place, column in enumerate(columns, 1)}
            made.sql(f"SELECT {picked}", params=parameters).write_parquet(there, compression="zstd")
            destination.write(str(Path(folder) / f"{name}-{rows.key}.parquet"), Path(there).read_bytes())
    with suppress(UsageError):  # this result is kept; that others cannot be read is for him who asks
        if len(_files(folder)["nodes"].keys() - {_whole("nodes")}) % _MOST_APART == 0:
            with opened(folder):
                pass


def _type(field: str) -> str:
    return _TYPES.get(field, "VARCHAR")


@contextmanager
def opened(folder: str) -> Iterator[Any]:
    """A DuckDB connection with the tables nodes, verdicts and measurements in memory. Raises UsageError."""
    duckdb = _duckdb("fleet")
    files = _files(folder)
    with duckdb.connect(config={"autoinstall_known_extensions": "false", "memory_limit": _MEMORY}) as made:
        watch = threading.Timer(_LIMIT_S, made.interrupt)
        watch.daemon = True
        watch.start()
        try:
            made.execute("SET TimeZone = 'UTC'")
            for name, kind in TABLES.items():
                _load(made, duckdb, Path(folder), name, kind._fields, files[name])
            made.execute("SET enable_external_access = false")
            yield made
        except duckdb.InterruptException:
            raise UsageError(f"fleet: {folder} was not read within {_LIMIT_S:.0f} s; give --days") from None
        except duckdb.OutOfMemoryException:
            raise UsageError(f"fleet: {folder} does not fit into {_MEMORY} of memory; give --days") from None
        finally:
            watch.cancel()


def _load(
    made: Any, duckdb: Any, folder: Path, name: str, fields: Sequence[str], files: Mapping[str, str]
) -> None:
    """What is no time or no number is left out, and no text is longer than ours are."""
    picked = ", ".join(
        f"{field}::{_type(field)} AS {field}"
        if field in _TYPES
        else f"left({field}::VARCHAR, {_LONGEST}) AS {field}"
        for field in fields
        if field != "started"
    )
    sound = "WHERE isfinite(value) AND value > 0 AND value < 1e15" if "value" in fields else ""
    whole = _whole(name)
    there = {file: version for file, version in files.items() if file != whole}
    try:
        merged = _held(made, duckdb, folder, whole, files)
        if not merged.items() <= there.items():
            merged = {}
        apart = [file for file in there if file not in merged]
        made.execute(f"CREATE TABLE {name} ({', '.join(f'{field} {_type_of(field)}' for field in fields)})")
        for listed, time in ([[whole] * bool(merged), "TIMESTAMP"], [apart, "TIMESTAMPTZ"]):
            if listed:
                query = f"""INSERT INTO {name} SELECT * FROM (
                    SELECT TRY_CAST(started AS {time})::TIMESTAMP AS started, {picked} FROM read_parquet($1)
                ) {sound}"""
                made.execute(query, [[str(folder / file) for file in listed]])
        made.execute(f"DELETE FROM {name} WHERE started IS NULL OR serial IS NULL")
        if len(apart) >= _MOST_APART:
            _keep(made, folder, name, there)
    except (duckdb.InterruptException, duckdb.OutOfMemoryException):
        raise
    except duckdb.Error as error:
        wanted = ", ".join(fields)
        raise UsageError(
            f"fleet: a file {name}-*.parquet is none of ncclcheck (columns {wanted}): {str(error).splitlines()[0]}"
        ) from None


def _whole(name: str) -> str:
    """The file of a table that holds all others; `nodes-*.parquet` is still every result once."""
    return f"all-{name}.parquet"


def _type_of(field: str) -> str:
    return "TIMESTAMP" if field == "started" else _type(field)


def _held(made: Any, duckdb: Any, folder: Path, whole: str, files: Mapping[str, str]) -> dict[str, str]:
    """The files that the one file holds, as they were; none where it is not there or is not ours."""
    if whole not in files:
        return {}
    try:
        asked = "SELECT decode(value) FROM parquet_kv_metadata($1) WHERE decode(key) = 'ncclcheck'"
        row = made.execute(asked, [str(folder / whole)]).fetchone()
        return msgspec.json.decode(row[0] if row else "{}", type=dict[str, str])
    except (duckdb.InterruptException, duckdb.OutOfMemoryException):
        raise
    except (duckdb.Error, msgspec.MsgspecError):
        return {}


def _keep(made: Any, folder: Path, name: str, files: Mapping[str, str]) -> None:
    """One file for all of them; where the folder may not be written, it is done without."""
    versions = msgspec.json.encode(files).decode()
    with tempfile.TemporaryDirectory() as private, suppress(OSError):
        there = str(Path(private) / f"{name}.parquet")
        made.execute(
            f"COPY {name} TO '{there}' (FORMAT parquet, COMPRESSION zstd, KV_METADATA {{ncclcheck: '{versions}'}})"
        )
        destination.write(str(folder / _whole(name)), Path(there).read_bytes())


def _files(folder: str) -> dict[str, dict[str, str]]:
    """The files of each table, with size and time: only regular ones of our names, never through a link.

    Raises UsageError.
    """
    listed: dict[str, dict[str, str]] = {name: {} for name in TABLES}
    size = 0
    try:
        for entry in os.scandir(folder):
            if (match := _NAME.fullmatch(entry.name)) and entry.is_file(follow_symlinks=False):
                stats = entry.stat(follow_symlinks=False)
                size += stats.st_size if stat.S_ISREG(stats.st_mode) else 0
                listed[match["table"]][entry.name] = f"{stats.st_size} {stats.st_mtime_ns}"
    except OSError as error:
        raise UsageError(f"fleet: {folder!r} cannot be read: {error.strerror or error}") from None
    if empty := [name for name, files in listed.items() if not files.keys() - {_whole(name)}]:
        raise UsageError(
            f"fleet: {folder!r} has no {empty[0]}-*.parquet; make it with: ncclcheck report FILE --parquet DIR"
        )
    if sum(map(len, listed.values())) > _MOST_FILES or size > _MOST_BYTES:
        raise UsageError(f"fleet: {folder!r} holds more than {_MOST_FILES:,} files or {_MOST_BYTES >> 30} GiB")
    return {name: dict(sorted(files.items())) for name, files in listed.items()}
