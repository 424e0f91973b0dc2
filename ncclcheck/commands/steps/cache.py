"""`preflight --cache MINUTES`: a fresh result of the same nodes, software and settings is good enough."""

from __future__ import annotations

import errno
import os
import socket
import time
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from ncclcheck import __version__
from ncclcheck.base.errors import UsageError
from ncclcheck.base.progress import complain
from ncclcheck.launch import choose
from ncclcheck.probes.machine import files
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.results import finish, outputs
from ncclcheck.run.plan.options import Options
from ncclcheck.run.plan.preflight_plan import PreflightOptions

_FAMILIES = ("NCCL_", "TORCH_", "GLOO_", "CUDA_", "UCX_", "FI_", "OFI_NCCL_", "LD_LIBRARY_PATH", "NCCLCHECK_")
_MOST_BYTES = 256 * 2**20  # of a saved result: chosen, several times the largest of 2,000 nodes


@dataclass(frozen=True)
class Cache:
    """Where the result of this very call is kept; path None: nothing is kept. seconds: how old it may be."""

    path: Path | None
    seconds: float

    @classmethod
    def of(cls, options: Options, wanted: PreflightOptions) -> Cache:
        """By what was asked for. Raises UsageError for a join, whose nodes must all decide alike."""
        if not wanted.cache_minutes or options.from_file is not None:
            return cls(None, 0.0)
        choice = choose.choose(options, os.environ)
        if choice.who is not None:
            raise UsageError("--cache: the nodes of a join cannot agree on an old result; omit it there")
        key = _key(options, wanted, choice.names, choice.launcher)
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return cls(Path(home, "ncclcheck", f"preflight-{key}.json"), wanted.cache_minutes * 60)

    def fresh(self, options: Options) -> Document | None:
        """A ready result, judged again from its facts by this version. Anything damaged is no result."""
        if self.path is None:
            return None
        try:
            saved = jsondoc.decode(_content(str(self.path), self.seconds), options.policy)
        except (OSError, jsondoc.DocumentError):
            return None
        story = finish.Story(saved.started, saved.seconds, saved.stages)
        document = finish.make(saved.cluster, options, story)
        return document if document.exit_code == 0 else None

    def deliver(self, document: Document, options: Options) -> int:
        """Say that it is old, and print it."""
        complain(f"a result of {document.started} is used again (--cache); nothing was measured now")
        return finish.deliver(document, options)

    def keep(self, document: Document) -> None:
        """For the next call; a cache that cannot be written is only a pity."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            complain(f"--cache: {self.path.parent}: {error.strerror or error}")
            return
        outputs.write_file(str(self.path), jsondoc.encode(document))


def _content(path: str, seconds: float) -> bytes:
    """Of a file that nobody else can have written, and that is not older. Raises OSError."""
    file = files.opened(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(file, "rb"):
        status = os.fstat(file)
        if status.st_uid != os.geteuid() or files.others_may_write(status):
            raise PermissionError(errno.EPERM, "others may have written it")
        if not 0 <= time.time() - status.st_mtime <= seconds:
            raise OSError(errno.ESTALE, "it is too old")
        return files.bounded(file, _MOST_BYTES)


def _key(options: Options, wanted: PreflightOptions, names: tuple[str, ...], launcher: str) -> str:
    """What must be the same: nodes, software, settings, and what was asked for."""
    settings = sorted((name, value) for name, value in os.environ.items() if name.startswith(_FAMILIES))
    asked = (wanted.level, wanted.data, wanted.data_kwargs, wanted.model, wanted.backend, wanted.nproc_per_node)
    judged = (options.only, options.ignore, options.strict, msgspec.json.encode(options.policy))
    whole = (__version__, _torch(), socket.gethostname(), launcher, names, settings, asked, judged, wanted.inject)
    return blake2b(repr(whole).encode(), digest_size=12).hexdigest()


def _torch() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""
