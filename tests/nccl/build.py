"""The libraries of native/, built by gcc once for what the sources say."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "native"
CUDA = ("calls.c", "devices.c", "memory.c", "streams.c", "ring.c", "nvml.c", "patch.c")
FLAGS = (
    "-std=gnu11",
    "-O2",
    "-g",
    "-Wall",
    "-Wno-unused-parameter",
    "-Wno-format-truncation",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
)
SECONDS = 120.0  # gcc needs about 2 s; the machine may be busy


@cache
def libraries() -> Path:
    """The folder with libnvidia-ml.so.1 (CUDA runtime, driver and NVML in one), and two for LD_LIBRARY_PATH:
    verbs with our libibverbs, and no_verbs, where one is found that cannot be loaded.
    """
    folder = Path(tempfile.gettempdir()) / f"ncclcheck-native-{os.getuid()}-{_state()}"
    if not folder.is_dir():
        fresh = Path(tempfile.mkdtemp(prefix="ncclcheck-native-"))
        fresh.chmod(0o755)
        gcc([*FLAGS, "-Wl,-soname,libnvidia-ml.so.1", *CUDA, "-ldl", "-lpthread"], fresh / "libnvidia-ml.so.1")
        (fresh / "verbs").mkdir()
        version = "-Wl,--version-script=verbs.map"
        gcc([*FLAGS, version, "-Wl,-soname,libibverbs.so.1", "verbs.c"], fresh / "verbs/libibverbs.so.1")
        (fresh / "verbs/libibverbs.so").symlink_to("libibverbs.so.1")
        (fresh / "no_verbs").mkdir()
        for name in ("libibverbs.so", "libibverbs.so.1"):
            (fresh / "no_verbs" / name).touch()
        try:
            fresh.rename(folder)
        except OSError:  # another process was quicker
            return folder
    return folder


def gcc(arguments: list[str], out: Path) -> None:
    """Compile in the folder of the sources. Raises RuntimeError for any word of gcc."""
    done = subprocess.run(
        ["gcc", *arguments, "-o", str(out)],
        cwd=SOURCES,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode or done.stderr:
        raise RuntimeError(f"gcc {out.name}: {done.stderr}")


def _state() -> str:
    """A word for what all sources and this recipe say now."""
    files = [Path(__file__), *sorted(SOURCES.iterdir())]
    content = b"".join(path.name.encode() + path.read_bytes() for path in files)
    return hashlib.sha256(content).hexdigest()[:16]
