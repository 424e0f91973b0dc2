"""Docker's own files of a container's log: each line is JSON, `{"log":"text\\n","stream":...,"time":"..."}`."""

from __future__ import annotations

import io
from typing import BinaryIO

import msgspec

HEADS = (b'{"log":', b'{"log" ')
_LONGEST = 2**20  # Docker cuts at 16 KiB


class _Line(msgspec.Struct):
    log: str
    time: str = ""


class Unwrapped(io.RawIOBase):
    """The lines themselves, each after its time, as `docker logs -t` prints them; other lines as they are."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._rest = file, b""
        self._decoder = msgspec.json.Decoder(_Line)

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """The next bytes."""
        if not self._rest and (line := self._file.readline(_LONGEST)):
            self._rest = self._text(line)
        data, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def _text(self, line: bytes) -> bytes:
        try:
            entry = self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return line
        text = f"{entry.time} {entry.log}" if entry.time else entry.log
        return text.rstrip("\r\n").replace("\n", " ").encode(errors="replace") + b"\n"

    def close(self) -> None:
        """Also the file."""
        self._file.close()
        super().close()
