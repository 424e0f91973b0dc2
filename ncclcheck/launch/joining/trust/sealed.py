"""What keeps the conversation of a join to those who take part: proofs at its start, and a seal on every line.

Both sides show, over everything that was said so far, that they know the run's secret (or, without one, its id
alone, which is no secret). Each direction then has a key of its own, made from the secret and both sides' nonces,
and every line is sealed under that key with its number: a line that is changed, repeated, left out, sent back to
where it came from or put in by a stranger ends the conversation. HMAC-SHA256 (RFC 2104), 128 bits of it a line.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

_SEAL = 32  # hexadecimal digits: 128 bits


class BrokenSeal(ValueError):
    """A line whose seal does not fit: it is not from the other side, or not the next one."""


def nonce() -> str:
    """A number that nobody can foresee."""
    return secrets.token_hex(16)


def run_key(secret: bytes, run_id: str) -> bytes:
    """The key of a run: the secret, for this run's id."""
    return _mac(secret, b"ncclcheck run", run_id.encode(errors="backslashreplace"))


def proof(key: bytes, side: str, transcript: bytes) -> str:
    """What only who knows the key can say on this side over what was said."""
    return _mac(key, b"proof", side.encode(), transcript).hex()


def same(text: str, other: str) -> bool:
    """Compared in a time that shows nothing of where they differ."""
    return hmac.compare_digest(text.encode(errors="backslashreplace"), other.encode(errors="backslashreplace"))


class Seal:
    """One direction of a conversation. side: who speaks; transcript: both sides' first lines, with nonces."""

    def __init__(self, key: bytes, side: str, transcript: bytes) -> None:
        self._key = _mac(key, b"lines", side.encode(), transcript)
        self._count = 0

    def close(self, line: bytes) -> bytes:
        """The line as it is sent: its seal before it."""
        return self._next(line) + b" " + line

    def open(self, line: bytes) -> bytes:
        """The line as it was said. Raises BrokenSeal."""
        if not hmac.compare_digest(line[: _SEAL + 1], self._next(line[_SEAL + 1 :]) + b" "):
            raise BrokenSeal("a line that is not sealed by this run")
        return line[_SEAL + 1 :]

    def _next(self, line: bytes) -> bytes:
        self._count += 1
        return _mac(self._key, b"%d" % self._count, line).hex()[:_SEAL].encode()


def _mac(key: bytes, *parts: bytes) -> bytes:
    """Over the parts with their lengths, so that no two lists of parts are the same bytes."""
    framed = b"".join(b"%d:%s" % (len(part), part) for part in parts)
    return hmac.new(key, framed, hashlib.sha256).digest()
