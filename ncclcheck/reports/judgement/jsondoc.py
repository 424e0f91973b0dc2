"""The document: what `-o json`, `--json` and `--save` write, and what `--from` reads. Schema 1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from ncclcheck.probes.facts import Cluster, Job, Measurements, Node, Policy, Run, Word
from ncclcheck.probes.facts.guard.alike import Kinds
from ncclcheck.reports.judgement import compact
from ncclcheck.reports.judgement.decision import Outcome
from ncclcheck.reports.judgement.findings import Culprit, State, Verdict
from ncclcheck.reports.judgement.rule import OWN_FAMILIES, all_rules
from ncclcheck.reports.subjects.logs.answer.story import LogDiagnosis
from ncclcheck.reports.text.words.visible import in_json

SCHEMA = 1  # of the document; rises by one when an older ncclcheck would misread what is written


class DocumentError(Exception):
    """A saved file that cannot be read; the text names the field and what is allowed there."""


class Stage(Struct, frozen=True, kw_only=True):
    """One stage of the run."""

    name: str
    state: State
    seconds: float
    reason: str | None = None


class NodeEntry(Struct, frozen=True, kw_only=True):
    """One node's facts under its unique name."""

    name: str
    facts: Node


class Recommendation(Struct, frozen=True, kw_only=True):
    """One setting with its evidence.

    value: null takes the variable away. set_in: where it stands now: environment, or a file with its line.
    undo: the line of a shell script that brings back what was. disagree: who says otherwise.
    """

    variable: str
    action: Literal["set", "unset", "try", "keep"]
    value: str | None
    why: str
    evidence: list[str]
    source: str
    basis: Literal["rule", "measured"]
    gain: str
    risk: str
    valid_for: str
    set_in: list[str] = field(default_factory=list)
    undo: str = ""
    disagree: str = ""


class Document(Struct, frozen=True, kw_only=True):
    """A whole result. Unknown keys are ignored when reading. strict: warnings and unknowns count as failures."""

    schema: int = SCHEMA
    version: str
    command: str
    state: Outcome
    exit_code: int
    strict: bool = False
    started: str
    seconds: float
    counts: dict[str, int]
    job: Job
    stages: list[Stage]
    run: Run
    nodes: list[NodeEntry]
    verdicts: list[Verdict]
    culprits: list[Culprit] = field(default_factory=list)
    measurements: Measurements
    recommendations: list[Recommendation] = field(default_factory=list)
    diagnosis: LogDiagnosis | None = None


def encode(document: Document) -> bytes:
    """One line of JSON with its newline."""
    return b"".join(pieces(document))


def pieces(document: Document) -> Iterator[bytes]:
    """The same piece by piece: ten thousand nodes written whole are a gigabyte, one of them is not."""
    for place, name in enumerate(document.__struct_fields__):
        yield b'%s"%s":' % (b"," if place else b"{", name.encode())
        value = getattr(document, name)
        if name in ("nodes", "verdicts"):
            for number, entry in enumerate(value):
                yield (b"," if number else b"[") + printable(msgspec.json.encode(entry))
            yield b"]" if value else b"[]"
        else:
            yield printable(msgspec.json.encode(value))
    yield b"}\n"


def saved(document: Document) -> Iterator[bytes]:
    """What `--save` writes, piece by piece: large clusters in the compact form."""
    if len(document.nodes) < compact.FROM_NODES:
        yield from pieces(document)
        return
    fields = msgspec.structs.asdict(document)
    fields["nodes"] = compact.entries((entry.name, entry.facts) for entry in document.nodes)
    fields["verdicts"] = compact.verdicts(document.verdicts)
    yield printable(msgspec.json.encode(fields)) + b"\n"


def printable(data: bytes) -> bytes:
    """The same JSON, safe on a terminal."""
    return data if data.isascii() and b"\x7f" not in data else in_json(data.decode()).encode()


def schema() -> dict[str, Any]:
    """The JSON Schema of the document, as the types say it; a saved one may hold nodes in the compact form."""
    definition = msgspec.json.schema(Document)
    definition["$defs"] |= msgspec.json.schema_components([compact.LikeEntry], ref_template="#/$defs/{name}")[1]
    nodes = definition["$defs"]["Document"]["properties"]["nodes"]
    nodes["items"] = {"anyOf": [nodes["items"], {"$ref": "#/$defs/LikeEntry"}]}
    left_out = {"type": "integer", "minimum": 1, "description": "In a saved file: findings that it does not hold."}
    definition["$defs"]["Verdict"]["properties"]["findings_left_out"] = left_out
    return definition


class _DocumentHead(Struct):
    schema: int


class _SavedForm(Struct, kw_only=True):
    """What is taken from a saved file: never its verdicts."""

    command: Word
    started: str
    seconds: float
    job: Job
    run: Run
    nodes: list[msgspec.Raw]
    measurements: Measurements
    stages: list[Stage] = []


class Saved(Struct, frozen=True, kw_only=True):
    """A saved run, to be judged anew."""

    cluster: Cluster
    started: str
    seconds: float
    stages: list[Stage]


def decode(data: bytes, policy: Policy, kinds: Kinds | None = None) -> Saved:
    """Read a saved document. kinds: of nodes in other documents, to be shared with. Raises DocumentError."""
    head = _parsed(data, _DocumentHead)
    if head.schema > SCHEMA:
        raise DocumentError(
            f"schema {head.schema} is newer than this version reads (up to {SCHEMA}); update ncclcheck"
        )
    if head.schema < 1:
        raise DocumentError(f"schema {head.schema} does not exist (1 to {SCHEMA})")
    saved = _parsed(data, _SavedForm)
    if saved.command not in (known := _commands()):
        raise DocumentError(
            f"command: {saved.command!r} is none that saves results; allowed are {', '.join(known)}"
        )
    try:
        nodes = compact.nodes(saved.nodes, kinds or Kinds())
    except compact.UnreadableNodes as error:
        raise DocumentError(f"not a document of ncclcheck: {error}") from None
    names = [node.name for node in nodes]
    if not names and not saved.run.silent and saved.command not in OWN_FAMILIES:
        raise DocumentError("nodes: there must be at least one node, or one in run.silent")
    if len(names) != len(set(names)):
        raise DocumentError(f"nodes: names must be unique, these are {', '.join(names)}"[:500])
    cluster = Cluster(
        command=saved.command,
        nodes=nodes,
        job=saved.job,
        run=saved.run,
        measurements=saved.measurements,
        policy=policy,
    )
    return Saved(cluster=cluster, started=saved.started, seconds=saved.seconds, stages=saved.stages)


def _commands() -> list[str]:
    """env, preflight and logs, and every command that some rule is for."""
    return sorted({"env", "preflight", "logs", *(command for rule in all_rules() for command in rule.commands)})


def _parsed(data: bytes, shape: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DocumentError(f"not a document of ncclcheck: {error}") from None
