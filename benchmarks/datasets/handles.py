"""Defects of handles opened before the fork: files, archives, data bases and connections that workers share."""

from __future__ import annotations

import os
import pickle
import socket
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from benchmarks.datasets.material import COUNT, RECORD, Samples, decoded, encoded, folder, packed, sample, table

_SERVER = """
import os, struct
while True:
    asked = os.read(0, 4)
    if len(asked) < 4:
        break
    index = struct.unpack("<i", asked)[0]
    os.write(1, struct.pack("<64f", *[index * 1000.0 + k for k in range(64)]))
"""


class SharedFileHandle(Samples):
    """One buffered file opened before the fork: its offset belongs to all workers."""

    def __init__(self) -> None:
        self.file = open(packed(), "rb")  # noqa: SIM115

    def __getitem__(self, index: int) -> Tensor:
        self.file.seek(index * RECORD)
        return decoded(self.file.read(RECORD))


class RawDescriptor(Samples):
    """`lseek` and `read` on one descriptor, in a dict beside a transform."""

    def __init__(self) -> None:
        self.source = {"train": os.open(packed(), os.O_RDONLY)}

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        os.lseek(self.source["train"], index * RECORD, os.SEEK_SET)
        return decoded(os.read(self.source["train"], RECORD)) / 255, index % 10


class _Reader:
    """A record reader of one's own, as many repositories have."""

    def __init__(self, path: Path) -> None:
        self._file = cast(BinaryIO, open(path, "rb", buffering=0))  # noqa: SIM115

    def record(self, number: int) -> bytes:
        self._file.seek(number * RECORD)
        return self._file.read(RECORD)


class NestedReader(Samples):
    """The shared offset two objects deep."""

    def __init__(self) -> None:
        self.splits = [_Reader(packed())]

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"image": decoded(self.splits[0].record(index)), "label": torch.tensor(index % 10)}


class ZipArchive(Samples):
    """A zip file opened before the fork: BadZipFile now and then."""

    def __init__(self) -> None:
        path = folder() / "images.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for index in range(COUNT):
                archive.writestr(f"{index}.bin", encoded(index))
        self.archive = zipfile.ZipFile(path)

    def __getitem__(self, index: int) -> Tensor:
        return decoded(self.archive.read(f"{index}.bin"))


class NpzArchive(Samples):
    """`np.load` of an npz keeps a zip file open, which all workers then share."""

    def __init__(self) -> None:
        import numpy as np  # noqa: PLC0415

        path = folder() / "images.npz"
        arrays: dict[str, Any] = {str(index): sample(index).numpy() for index in range(COUNT)}
        np.savez(path, **arrays)
        self.arrays = np.load(path)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.arrays[str(index)])


class TarArchive(Samples):
    """A tar shard read in place through one handle; a tar has no checksum of its data."""

    def __init__(self) -> None:
        path = folder() / "shard.tar"
        with tarfile.open(path, "w") as archive:
            for index in range(COUNT):
                member = tarfile.TarInfo(f"{index}.bin")
                member.size = RECORD
                archive.addfile(member, BytesIO(encoded(index)))
        self.archive = tarfile.open(path)  # noqa: SIM115
        self.members = {member.name: member for member in self.archive.getmembers()}

    def __getitem__(self, index: int) -> Tensor:
        file = self.archive.extractfile(self.members[f"{index}.bin"])
        assert file is not None
        return decoded(file.read())


class Hdf5Handle(Samples):
    """An HDF5 file opened before the fork: not supported, and it cannot be pickled."""

    def __init__(self) -> None:
        h5py = import_module("h5py")
        path = folder() / "images.h5"
        with h5py.File(path, "w") as file:
            file["x"] = table().numpy()
        self.file: Any = h5py.File(path, "r")

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.file["x"][index])


class LmdbEnvironment(Samples):
    """An LMDB environment and its transaction opened before the fork."""

    def __init__(self) -> None:
        lmdb = import_module("lmdb")
        path = str(folder() / "images.lmdb")
        with lmdb.open(path, map_size=1 << 24) as made, made.begin(write=True) as writing:
            for index in range(COUNT):
                writing.put(str(index).encode(), encoded(index))
        self.environment: Any = lmdb.open(path, readonly=True, lock=False)
        self.transaction = self.environment.begin()

    def __getitem__(self, index: int) -> Tensor:
        return decoded(self.transaction.get(str(index).encode()))


class SqliteConnection(Samples):
    """A SQLite connection carried over the fork, which SQLite's manual forbids."""

    def __init__(self) -> None:
        path = folder() / "images.db"
        with sqlite3.connect(path) as made:
            made.execute("create table images (id integer primary key, data blob)")
            made.executemany("insert into images values (?, ?)", [(i, encoded(i)) for i in range(COUNT)])
        made.close()
        self.connection = sqlite3.connect(path)

    def __getitem__(self, index: int) -> Tensor:
        row = self.connection.execute("select data from images where id = ?", (index,)).fetchone()
        return decoded(row[0])


class FeatureServer(Samples):
    """One connection for all workers: they take each other's answers."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        self.server = subprocess.Popen(
            [sys.executable, "-c", _SERVER], stdin=theirs.fileno(), stdout=theirs.fileno()
        )
        theirs.close()

    def __getitem__(self, index: int) -> Tensor:
        self.connection.sendall(index.to_bytes(4, "little"))
        return decoded(self.connection.recv(RECORD))


class DecoderPipe(Samples):
    """One decoder process behind two pipes, started before the fork, as people run ffmpeg."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _SERVER]
        self.decoder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def __getitem__(self, index: int) -> Tensor:
        assert self.decoder.stdin
        assert self.decoder.stdout
        self.decoder.stdin.write(index.to_bytes(4, "little"))
        return decoded(self.decoder.stdout.read(RECORD))


class PickleStream(Samples):
    """Pickled records behind each other in one shared file: a moved offset is an exception or another sample."""

    def __init__(self) -> None:
        path = folder() / "records.pkl"
        self.offsets = []
        with path.open("wb") as file:
            for index in range(COUNT):
                self.offsets.append(file.tell())
                pickle.dump((encoded(index), index % 10), file)
        self.file = path.open("rb")

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.file.seek(self.offsets[index])
        record, label = pickle.load(self.file)
        return decoded(record), label
