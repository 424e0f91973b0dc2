"""What is fed with changed input, and what may come of it: an exit code or the error that is promised."""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import json
import os
import pickle
import random
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from ncclcheck import cli
from ncclcheck.base import wire
from ncclcheck.base.errors import UsageError
from ncclcheck.base.exits import NOT_FOUND, NOT_STARTED, Exit
from ncclcheck.commands.steps import gate
from ncclcheck.launch.joining import join_protocol
from ncclcheck.probes import facts
from ncclcheck.reports.judgement.jsondoc import Document, encode
from ncclcheck.run import conduct
from ncclcheck.run.plan import config
from tests.fuzz import mutate
from tests.helpers import flights, stories

Chance = random.Random
_LOGS = Path(__file__).resolve().parent.parent / "data/logs"
_CODES = {*Exit, NOT_FOUND, NOT_STARTED}
_DEFECT = ("Traceback", "internal error:", "a defect of ncclcheck")


class Broken(Exception):
    """What was promised of any input does not hold."""


class Target:
    """make: an input; take: hand it over. Raises Broken, or whatever a defect raises."""

    def make(self, chance: Chance) -> Any:
        """One input."""
        raise NotImplementedError

    def take(self, sample: Any) -> None:
        """Feed it."""
        raise NotImplementedError


class Lines(Target):
    """Lines of agents, ranks and launchers, and the records of a join."""

    def __init__(self) -> None:
        node = stories.load("healthy").nodes[0]
        records: list[wire.FromAgent] = [
            wire.Hello(protocol=1, version="0", node=1, hostname="a", pid=7, python="p", path="p"),
            wire.Facts(node=node), wire.StepNotice(text="a", rank=3), wire.Listening(door=None),
            wire.AgentBeat(), wire.RankReport(state=facts.RankState(rank=0, node="a", local_rank=0)),
            wire.Bye(reason="r"),
            wire.JobEnded(end=facts.JobEnd(node="a", exit=1, detail="d")),
        ]  # fmt: skip
        orders: list[wire.FromLauncher] = [
            wire.Listen(address="10.0.0.1"), wire.ReachPeers(doors=[], names={"a": "10.0.0.1"}, seconds=3.0),
            wire.Alive(), wire.Examine(plan=msgspec.Raw(b"{}"), seconds=1.0), wire.Stop(reason="r"), wire.Halt(),
        ]  # fmt: skip
        self.lines = [line for at, record in enumerate(records) for line in wire.lines(record, 1, at)]
        self.lines += [wire.order(node, order) for order in orders for node in (1, None)]
        self.lines += [wire.encode_from_rank(record) for record in records]
        self.lines += [
            b'{"type":"join","protocol":1,"version":"0","command":"env","nodes":2,"node_rank":1,"name":"a","address":'
            b'"10.0.0.1","nonce":"00","proof":"00"}\n',
            b'{"type":"ncclcheck","protocol":1,"version":"0","nonce":"00"}\n', b'{"type":"beat"}\n',
            b'{"type":"refused","kind":"other run","reason":"r"}\n', b'{"type":"ended","detail":"d"}\n',
            b'{"type":"done","exit_code":0,"decision":"d","document":"e30="}\n',
        ]  # fmt: skip

    def make(self, chance: Chance) -> list[bytes]:
        """Some lines as they come on one channel."""
        begin = chance.randrange(len(self.lines))
        lines = self.lines[begin : begin + chance.choice((1, 3, 12))]
        return [mutate.changed(line, chance, self.lines) if chance.random() < 0.5 else line for line in lines]

    def take(self, sample: list[bytes]) -> None:
        """To each of the readers."""
        assembler = wire.Assembler()
        for line in sample:
            assembler.feed(line)
            wire.node_of(line)
            for read, refused in (
                (lambda line: wire.read_order(line, 1), wire.NoRecord),
                (wire.read_from_rank, wire.NoRecord),
                (join_protocol.from_node, ValueError),
                (join_protocol.from_meeting, ValueError),
            ):
                with contextlib.suppress(refused):
                    read(line)


class Command(Target):
    """The command line in this process, in a folder of its own; what would start or wait for others is not."""

    def run(self, arguments: Sequence[str]) -> str:
        """Run it; stdout."""
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        healthy = stories.document("healthy")
        with (
            mock.patch.object(sys, "argv", ["ncclcheck", *arguments]),
            mock.patch.object(conduct, "_lead", return_value=(0, healthy)),
            mock.patch.object(conduct, "_follow", return_value=0),
            mock.patch.object(gate, "_become", return_value=0),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = cli._run()
        out.flush()
        assert isinstance(out.buffer, io.BytesIO)
        printed = out.buffer.getvalue().decode()
        if code not in _CODES or any(word in err.getvalue() for word in _DEFECT):
            raise Broken(f"{shlex.join(arguments)[:300]}: exit code {code}; {err.getvalue()[-1500:]}")
        return printed

    def judged(self, arguments: Sequence[str]) -> None:
        """Run it with `-o json`: no rule may have broken either."""
        printed = self.run([*arguments, "-o", "json"])
        if not printed:
            return
        for verdict in msgspec.json.decode(printed, type=Document).verdicts:
            for finding in verdict.findings:
                if verdict.code == "RUN004" and finding.why.startswith("A defect of ncclcheck"):
                    raise Broken(f"{finding.where}: {finding.what}")


class Results(Command):
    """Saved results."""

    def __init__(self) -> None:
        self.held = [json.loads(encode(stories.document(name))) for name in stories.NAMES[::6]]

    def make(self, chance: Chance) -> bytes:
        """Mostly one that the reader takes."""
        if chance.random() < 0.2:
            return mutate.changed(json.dumps(chance.choice(self.held)).encode(), chance)
        record = mutate.value(copy.deepcopy(chance.choice(self.held)), chance, chance.choice((1, 5, 30)))
        return json.dumps(record).encode(errors="surrogatepass")

    def take(self, sample: bytes) -> None:
        """To `report` in every form."""
        Path("r.json").write_bytes(sample)
        self.judged(["report", "r.json"])
        forms = [f"--{form}=out.{form}" for form in ("markdown", "junit", "prometheus", "env-file", "nccl-conf")]
        self.run(["report", "r.json", "-v", *forms])
        self.run(["report", "r.json", "--anonymise", "-o", "short"])
        self.run(["report", "--compare", "r.json", "r.json"])


class Logs(Command):
    """Logs of NCCL and torch."""

    def __init__(self) -> None:
        self.texts = [path.read_bytes() for path in sorted([*_LOGS.glob("*.log"), *_LOGS.glob("cases/*.case")])]

    def make(self, chance: Chance) -> bytes:
        """One log, sometimes packed."""
        data = mutate.changed(chance.choice(self.texts), chance, self.texts)
        return mutate.changed(gzip.compress(data), chance) if chance.random() < 0.1 else data

    def take(self, sample: bytes) -> None:
        """To `logs`."""
        Path("train.log").write_bytes(sample)
        self.judged(["logs", "train.log"])


class Dumps(Command):
    """Flight Recorder dumps, as pickle and as JSON."""

    def __init__(self) -> None:
        job = flights.Job({"0": ("default_pg", [0, 1])})
        for _ in range(4):
            job.call("0")
        self.held = [job.dump(rank) for rank in (0, 1)]
        self.raw = [pickle.dumps(dump, protocol) for dump in self.held for protocol in range(6)]
        self.raw += [flights.as_json(dump) for dump in self.held]

    def make(self, chance: Chance) -> list[bytes]:
        """Of two ranks."""
        return [self._one(chance), self._one(chance)]

    def _one(self, chance: Chance) -> bytes:
        if chance.random() < 0.5:
            return mutate.changed(chance.choice(self.raw), chance, self.raw)
        dump = mutate.value(copy.deepcopy(chance.choice(self.held)), chance, chance.choice((1, 5, 30)))
        return pickle.dumps(dump, 2) if chance.random() < 0.7 else json.dumps(dump).encode()

    def take(self, sample: list[bytes]) -> None:
        """To `logs`."""
        names = [f"nccl_trace_rank_{rank}" for rank in range(len(sample))]
        for name, data in zip(names, sample, strict=True):
            Path(name).write_bytes(data)
        self.judged(["logs", *names])


class SiteFiles(Target):
    """ncclcheck.toml."""

    def __init__(self) -> None:
        self.texts = [
            b'contact = "ops"\nhosts = "a,b:8"\n[require]\ngpu = 8\nNET003 = true\n[bench]\nsizes = "1M"',
            b'only = ["NET"]\ndeadline = 30.0\n[thresholds]\n"NET009.drops" = 1e-3\n[env]\nlaunch = "local"',
            b'a = """x\n"""\n[[b]]\nc = {d = 1979-05-27T07:32:00Z, e = 0x1f, f = [1, [2]]}\n',
        ]

    def make(self, chance: Chance) -> bytes:
        """One file."""
        return mutate.changed(chance.choice(self.texts), chance, self.texts)

    def take(self, sample: bytes) -> None:
        """To its reader."""
        Path("ncclcheck.toml").write_bytes(sample)
        with contextlib.suppress(UsageError):
            config.read({})
        os.unlink("ncclcheck.toml")


class Words(Command):
    """Options and their values."""

    def __init__(self) -> None:
        self.options = {name: sorted(_options(name)) for name in cli.COMMANDS}
        Path("r.json").write_bytes(encode(stories.document("healthy")))
        Path("hosts").write_text("a slots=8\nb\n")
        self.values = [
            "1", "0", "-1", "1e999", "nan", "8", "600", "json", "r.json", "hosts", "a,b:8", "a@b", "out",
            "NET,NCC003", "gpu=8", "{}", '{"a": [1]}', "1M:8M", "all_reduce", "local", "join", "h:29500",
            "[::1]:80", ".", "", "\0", "m:f", "f.py:g", "slow=1", "nccl", "fp32", "NCCL_IB_HCA=", "%n", "..", "--",
            "-", "=", "\udcff", "x" * 3000,
        ]  # fmt: skip

    def make(self, chance: Chance) -> list[str]:
        """One command line."""
        name = chance.choice(cli.COMMANDS)
        words = [name]
        for _ in range(chance.randrange(6)):
            words.append(chance.choice(self.options[name] or ["NET001"]))
            if chance.random() < 0.8:
                words.append(self._value(chance))
        return words + [self._value(chance) for _ in range(chance.randrange(3))]

    def _value(self, chance: Chance) -> str:
        given = chance.choice(self.values)
        if chance.random() < 0.3:
            new = mutate.changed(given.encode(errors="surrogateescape"), chance).decode(errors="surrogateescape")
            given = given if "/" in new else new  # nothing is written outside of the folder
        return given

    def take(self, sample: list[str]) -> None:
        """To the program."""
        self.run(sample)


def _options(name: str) -> set[str]:
    command = cli.cli.get_command(mock.Mock(), name)
    assert command is not None
    return {option for param in command.params for option in param.opts if option.startswith("-")}


TARGETS: dict[str, Callable[[], Target]] = {
    "lines": Lines, "results": Results, "logs": Logs, "dumps": Dumps, "site-files": SiteFiles, "words": Words,
}  # fmt: skip
