"""The map and the walks in CONTRIBUTING.md are those of the tree."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
# Rooms with more in them than this are hard to look through. Rules, signs and the commands of the command line are
# tables of many equal modules, one for each.
MOST, TABLES = 12, ("rules", "signs", "cli")
_MARKERS = ("__pycache__", "__init__.py")


def _drawn(root: str = "ncclcheck") -> set[str]:
    """Folders of a map, by their indentation."""
    drawn: set[str] = set()
    parents: list[str] = []
    for line in TEXT.partition(f"```text\n{root}/\n")[2].partition("```")[0].splitlines():
        match = re.match(r"( +)(\w+)/", line)
        assert match, line
        parents = [*parents[: len(match[1]) // 2 - 1], match[2]]
        drawn.add("/".join(parents))
    return drawn


def _rooms() -> set[str]:
    package = ROOT / "ncclcheck"
    rooms = {path.parent.relative_to(package) for path in package.rglob("__init__.py")}
    return {str(room) for room in rooms if 1 <= len(room.parts) <= 2}


def test_the_map_is_the_tree() -> None:
    drawn, inner = _drawn(), {room for room in _rooms() if "/" in room}
    assert {room for room in _rooms() if "/" not in room} == {room for room in drawn if "/" not in room}
    assert drawn <= _rooms()
    assert {room for room in inner if room.startswith(("probes/", "reports/", "run/", "launch/"))} == inner & drawn


def test_the_tests_have_the_rooms_of_the_package() -> None:
    """And those of their own, which the second map lists; no test stands outside of them."""
    own = _drawn("tests")
    rooms = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    assert {
        str(room) for room in rooms if room.parts[0] not in own if not (ROOT / "ncclcheck" / room).is_dir()
    } == set()
    assert {room for room in own if not (ROOT / "tests" / room / "__init__.py").exists()} == set()
    assert own.isdisjoint(path.name for path in (ROOT / "ncclcheck").iterdir())


def test_the_walks_lead_through_modules_that_are_there() -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", TEXT)
    assert len(named) > 20
    assert [path for path in named if not any((root / path).exists() for root in (ROOT / "ncclcheck", ROOT))] == []


def test_no_room_is_crowded() -> None:
    rooms = [path.parent for path in (ROOT / "ncclcheck").rglob("*/__init__.py") if not {*path.parts} & {*TABLES}]
    crowded = {
        str(room.relative_to(ROOT)): len(entries)
        for room in rooms
        if len(entries := [entry for entry in room.iterdir() if _counts(entry)]) > MOST
    }
    assert len(rooms) > 50
    assert crowded == {}


def _counts(entry: Path) -> bool:
    """Modules, data and rooms; not the folder that a room left behind, with bytecode alone, when it moved."""
    files = [path for path in (entry, *entry.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    return entry.name not in _MARKERS and bool(files)


def test_slow_tests_are_tests() -> None:
    listed = (ROOT / "tests/slow.txt").read_text().splitlines()
    assert listed == sorted({*listed})
    for line in listed:
        path, _, name = line.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), line
