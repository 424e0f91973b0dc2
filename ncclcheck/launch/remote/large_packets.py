"""Whether ssh fails for the size of its packets: the same ssh once more, over small TCP segments.

Where a path loses large packets, ssh connects, hears the other side's first line, and falls silent in its key
exchange, whose messages are large. That it works over small segments proves it, in either direction.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence

from ncclcheck.launch.remote import segments
from ncclcheck.probes.facts import Unread
from ncclcheck.probes.machine import process

# Over full-size segments the same login must be this much slower to be held up: seconds, and times the other's.
_AT_LEAST_S, _TIMES = 3.0, 4
WITHIN_S = 8.0  # a login and `true` take 0.2 s in the lab, 2 s on hosts whose home comes over NFS


def explanation(argv: Sequence[str], env: Mapping[str, str], name: str) -> str:
    """What is told of a host that answered ssh and fell silent; empty where it is not the size of packets.

    argv: the whole ssh command; a ProxyCommand or ProxyJump of the user's is not used, so that nothing is proved.
    """
    relay = shlex.join([sys.executable, "-I", segments.__file__]).replace("%", "%%")
    end = argv.index("--")
    small = ["-o", f"ProxyCommand={relay} %h %p", "-o", "ProxyJump=none"]
    begun = time.monotonic()
    done = process.run([*argv[:end], *small, *argv[end : end + 2], "true"], WITHIN_S, env=env)
    if isinstance(done, Unread) or done.status != 0:
        return ""
    as_before = max(_AT_LEAST_S, _TIMES * (time.monotonic() - begun))
    again = process.run([*argv[: end + 2], "true"], as_before, env=env)
    if not isinstance(again, Unread) and again.status == 0:
        return ""  # large ones pass as well: what waits there is something else, such as a shell that reads stdin
    return (
        f"ncclcheck: {name}: it answered, but nothing large came through: ssh works there over TCP segments of "
        f"{segments.SMALL_SEGMENT} bytes and not over full-size ones"
    )
