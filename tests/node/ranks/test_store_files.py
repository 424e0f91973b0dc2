"""Files of torch's FileStore: those that a run makes go with it, and what stood there before stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.node.ranks.store_files import StoreFiles
from ncclcheck.probes.facts import FileInit, InitSeen


def _after(path: Path, *urls: str, **seen: object) -> list[str]:
    """What is left in the folder after a run whose jobs used these URLs."""
    files = StoreFiles()
    files.tried(InitSeen(node="a", file=FileInit(path=str(path), **seen)))  # type: ignore[arg-type]
    for url in urls:
        files.begin(url)
        Path(url.removeprefix("file://")).write_bytes(b"of a job")
    files.remove()
    return sorted(path.name for path in path.parent.iterdir())


def test_what_the_jobs_made_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "init"
    assert _after(path, f"file://{path}", f"file://{path}.17") == []


@pytest.mark.parametrize("seen", [{"kind": "file", "bytes": 29}, {"problem": "Permission denied"}])
def test_what_stood_there_before_stays(tmp_path: Path, seen: dict[str, object]) -> None:
    path = tmp_path / "init"
    assert _after(path, f"file://{path}", **seen) == ["init"]


def test_no_other_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "init"
    assert _after(path, f"file://{tmp_path}/initial") == ["initial"]


def test_without_a_trial_or_with_tcp_there_is_nothing_to_remove(tmp_path: Path) -> None:
    files = StoreFiles()
    files.begin(f"file://{tmp_path}/init")
    files.tried(InitSeen(node="a"))
    files.begin("tcp://a:1")
    files.remove()
    assert list(tmp_path.iterdir()) == []
