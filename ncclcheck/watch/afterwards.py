"""What processes that COMMAND left in the background still print: relayed by a small process after us.

`python afterwards.py SOURCE:TARGET...`, descriptors: it ends when nobody can print any more, or nobody reads.
It does without the package, for its memory and its start.
"""

from __future__ import annotations

import os
import select
import signal
import sys

TYPE_CHECKING = False  # typing takes as long to import as all of this
if TYPE_CHECKING:
    from collections.abc import Mapping

_CHUNK = 65536  # bytes of a read: the capacity of a pipe. Source: pipe(7)
_ENDS_JOBS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def hand_over(targets: Mapping[int, int]) -> None:
    """Let it go on from here. targets: where what comes from a descriptor goes."""
    import fcntl  # noqa: PLC0415 - not in the small process
    import subprocess  # noqa: PLC0415

    try:
        copies = {
            fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3): target for descriptor, target in targets.items()
        }
        pairs = [f"{source}:{target}" for source, target in copies.items()]
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *pairs], stdin=subprocess.DEVNULL, cwd="/",
            start_new_session=True, pass_fds=[*copies, *copies.values()],
        )  # fmt: skip
    except OSError:
        return  # they get SIGPIPE
    child.returncode = 0  # nobody waits for it, and that is not to be complained of


def written(target: int, data: bytes) -> bool:
    """Whether all of it reached the user's file."""
    while data:
        try:
            data = data[os.write(target, data) :]
        except BlockingIOError:
            select.select([], [target], [])
        except OSError:
            return False
    return True


def main(pairs: list[str]) -> None:
    """SOURCE:TARGET of each stream."""
    for signals in _ENDS_JOBS:
        signal.signal(signals, signal.SIG_IGN)  # last words of what they end come through here
    targets = {int(source): int(target) for source, _, target in (pair.partition(":") for pair in pairs)}
    for number in {0, 1, 2} - {*targets.values()}:
        os.close(number)  # a reader of it waits for its end
    while targets:
        for source in select.select([*targets], [], [])[0]:
            try:
                data = os.read(source, _CHUNK)
            except OSError:  # EIO of a pty whose other end is closed
                data = b""
            if not data or not written(targets[source], data):
                os.close(source)
                target = targets.pop(source)
                if target not in targets.values():
                    os.close(target)


if __name__ == "__main__":
    main(sys.argv[1:])
