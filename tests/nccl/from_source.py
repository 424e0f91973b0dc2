"""NCCL's own host code, compiled from NVIDIA/nccl without nvcc and without CUDA's headers.

For versions whose wheels name a proprietary licence, and whose sources are free: 2.28 and 2.29 are BSD, 2.30 is
Apache 2.0 (LICENSE.txt of each tag). What asks for CUDA is declared in cuda_headers/, by us. Kernels are left out,
and each cudaXxx is a place that patch.c fills at run time, as in a wheel: nothing can be computed with it, but
bootstrap, topology, connections, proxies, destruction and RAS are NCCL's own.

    python -m tests.nccl build FOLDER --versions 2.28.9   from a checkout of NVIDIA/nccl; without: git clone
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = "https://github.com/NVIDIA/nccl.git"
TAGS = {"2.28.9": "v2.28.9-1"}
FREE = ("Redistribution and use in source and binary forms", "Apache License")  # of a LICENSE.txt
_HEADERS = Path(__file__).resolve().parent / "cuda_headers"
_FLAGS = (
    "-std=c++17",
    "-O0",
    "-g0",
    "-fPIC",
    "-w",
    "-fvisibility=hidden",
    "-DCUDA_MAJOR=11",
    "-DCUDA_MINOR=3",
    "-DNCCL_OS_LINUX",
)
# enhcompat.cc defines what is missing of CUDA; doca-gpunetio and gdaki are of GPUs that talk to cards themselves.
_LEFT_OUT = ("enhcompat.cc", "gdaki", "src/device/", "src/os/windows")
# A file takes 2 to 8 s alone, and the machine may be busy.
_CLONE_S, _FILE_S, _LINK_S = 120.0, 300.0, 120.0
_ROOM = 90  # bytes of a function, more than patch.c overwrites and takes for one that may be refused


class NotBuilt(RuntimeError):
    """The sources cannot be had or compiled."""


def build(version: str, into: Path, checkout: Path | None = None) -> None:
    """Make into/libnccl.so.2. checkout: NVIDIA/nccl, where it is here already. Raises NotBuilt."""
    with tempfile.TemporaryDirectory(prefix="nccl-source-") as temporary:
        root = Path(temporary)
        sources = checkout or _cloned(TAGS[version], root / "nccl")
        licence = (sources / "LICENSE.txt").read_text()
        if not any(words in licence for words in FREE):
            raise NotBuilt(f"LICENSE.txt of NCCL {version} is neither BSD nor Apache")
        _generate(sources, version, root)
        objects = _compile(sources, root)
        library = _link(objects, root)
        into.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=into.parent))
        fresh.chmod(0o755)
        shutil.copy(library, fresh / "libnccl.so.2")
    try:
        fresh.rename(into)
    except OSError:  # another process was quicker
        shutil.rmtree(fresh)


def _run(argv: Sequence[str], seconds: float, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"{argv[0]}: {error}") from None
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[-1:]
        raise NotBuilt(f"{argv[0]}: {words[0] if words else 'no word'}")
    return done.stdout


def _cloned(tag: str, into: Path) -> Path:
    _run(["git", "clone", "-q", "--depth", "1", "--branch", tag, SOURCES, str(into)], _CLONE_S)
    return into


def _generate(sources: Path, version: str, root: Path) -> None:
    """nccl.h, and the tables of kernels that NCCL's own scripts write."""
    major, minor, patch = version.split(".")
    values = {"Major": major, "Minor": minor, "Patch": patch, "Suffix": ""}
    values["Version"] = str(int(major) * 10000 + int(minor) * 100 + int(patch))
    template = (sources / "src/nccl.h.in").read_text()
    (root / "include").mkdir()
    (root / "include/nccl.h").write_text(re.sub(r"\$\{nccl:(\w+)\}", lambda match: values[match[1]], template))
    names = ("BRANCH", "COMMIT_HASH")
    (root / "include/nccl_git_version.h").write_text(
        "".join(f'#define NCCL_GIT_{name} "{TAGS[version]}"\n' for name in names)
    )
    for name, script in (("kernels", "generate.py"), ("symmetric", "symmetric/generate.py")):
        (root / name).mkdir()
        _run([sys.executable, str(sources / "src/device" / script), str(root / name)], _FILE_S)


def _compile(sources: Path, root: Path) -> list[Path]:
    own = [path for path in sorted((sources / "src").rglob("*.cc"))
           if not any(part in str(path.relative_to(sources)) for part in _LEFT_OUT)]  # fmt: skip
    generated = [*root.glob("kernels/*.cc"), *root.glob("symmetric/*.cc")]
    folders = (root / "include", _HEADERS, *(sources / "src" / part for part in (
        "include", "include/plugin", ".", "device")))  # fmt: skip
    include = [f"-I{folder}" for folder in folders]
    (root / "objects").mkdir()

    def compiled(number_and_file: tuple[int, Path]) -> Path:
        number, file = number_and_file
        made = root / "objects" / f"{number}.o"
        _run(["g++", *_FLAGS, *include, "-c", str(file), "-o", str(made)], _FILE_S)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compiled, enumerate([*own, *generated])))


def _link(objects: list[Path], root: Path) -> Path:
    """What nobody defines: kernels and GPUs' own networking fail, CUDA's functions are room for jumps."""
    names = [str(path) for path in objects]
    symbols = _run(["nm", "--undefined-only", "--format=posix", *names], _LINK_S)
    asked = {line.split()[0] for line in symbols.splitlines() if line.endswith(" U") or " U " in line}
    have = {line.split()[0] for line in _run(
        ["nm", "--defined-only", "--format=posix", *names], _LINK_S).splitlines() if line}  # fmt: skip
    lines = [".text"]
    for name in sorted(symbol for symbol in asked - have if symbol.startswith("cuda") or "nccl" in symbol):
        lines += [".balign 16", f".globl {name}", f".hidden {name}", f".type {name},@function", f"{name}:"]
        lines += [
            "movl $801, %eax" if name.startswith("cuda") else "movl $3, %eax",
            "ret",
            f".fill {_ROOM},1,0x90",
        ]
        lines += [f".size {name}, .-{name}"]
    stubs = root / "stubs.s"
    stubs.write_text("\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""]))
    library = root / "libnccl.so.2"
    argv = ["g++", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-Wl,-z,defs", *names, str(stubs)]
    _run([*argv, "-o", str(library), "-lpthread", "-lrt", "-ldl"], _LINK_S)
    return library
