"""Files that Python would import in place of its own modules, and those that it runs at its start."""

from __future__ import annotations

import importlib.machinery
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress

from ncclcheck.probes.facts import Hiding

# Loaded before any folder of the user's is looked at, or part of the interpreter: no file hides them.
_ALWAYS_THERE = {"abc", "codecs", "io", "genericpath", "os", "posixpath", "runpy", "site", "stat", "zipimport"}
_OF_TORCH = {"torch", "numpy", "typing_extensions", "filelock", "sympy", "networkx", "jinja2", "fsspec"}
_MOST_NAMES = 10_000  # entries of a folder that are looked at; a folder of samples may have millions


def hiding() -> list[Hiding]:
    """What `python train.py` in this directory would import first."""
    own = {name for name in sys.stdlib_module_names if name not in {*sys.builtin_module_names, *_ALWAYS_THERE}}
    folders = [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    installed = {*_installed()}
    hidings: list[Hiding] = []
    for folder in folders:
        if os.path.realpath(folder) not in installed:
            hidings += [
                Hiding(module=name, path=path, by="PYTHONPATH") for name, path in _modules(folder, own | _OF_TORCH)
            ]
    with suppress(FileNotFoundError):
        here = os.getcwd()
        if here not in folders and os.path.realpath(here) not in installed:
            names = _modules(here, own | _OF_TORCH)
            hidings += [Hiding(module=name, path=path, by="the working directory") for name, path in names]
    return hidings


def customised() -> list[str]:
    """The files of sitecustomize and usercustomize that every Python here runs first."""
    specs = [importlib.machinery.PathFinder.find_spec(name) for name in ("sitecustomize", "usercustomize")]
    return [spec.origin for spec in specs if spec is not None and spec.origin]


def _installed() -> Iterator[str]:
    """Folders of Python itself and of its packages."""
    yield from map(os.path.realpath, site.getsitepackages())
    yield from (
        os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    )


def _modules(folder: str, names: set[str]) -> list[tuple[str, str]]:
    """Modules of these names in a folder: files, and packages with an __init__.py (others give way)."""
    with suppress(OSError), os.scandir(folder) as entries:
        listed = [entry.name for _, entry in zip(range(_MOST_NAMES), entries, strict=False)]
        kinds = tuple(importlib.machinery.all_suffixes())
        files = [name for name in sorted(listed) if name.partition(".")[0] in names]
        return [
            (file.partition(".")[0], f"{folder}/{file}")
            for file in files
            if (file.endswith(kinds) and file[len(file.partition(".")[0]) :] in kinds)
            or os.path.exists(f"{folder}/{file}/__init__.py")
        ]
    return []
