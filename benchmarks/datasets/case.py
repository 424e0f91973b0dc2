"""One dataset or loader of the collection, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A factory and the kinds of defect that it has: all of them must be found."""

    name: str
    factory: str
    expects: tuple[str, ...] = ()
    clean: bool = False
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Modules that it cannot do without."""
    shm_mb: int | None = None
    """Given a /dev/shm of this size, which needs root."""
    open_files: int | None = None
    """Given this limit of open files."""
