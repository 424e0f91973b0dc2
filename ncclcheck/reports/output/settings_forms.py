"""The recommended settings as text for the place they go to: each escaped for that place, and a way back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from ncclcheck.reports.judgement.jsondoc import Recommendation

Recommendations = Sequence[Recommendation]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LONGEST_VALUE = 1023  # bytes: NCCL reads a value of nccl.conf into 1024 bytes with its end, and cuts the rest
_HEAD = "# Settings that ncclcheck recommends"


def env_file(recs: Recommendations) -> str:
    """A POSIX script to be sourced: `unset`, then `export`; what is only to be tried stands in comments."""
    return _lines(f"{_HEAD}: . ./nccl.env", *_shell(recs), *_tries(recs))


def nccl_conf(recs: Recommendations) -> str:
    """nccl.conf in NCCL's own grammar: NAME=value, nothing quoted. It can set NCCL's variables, and unset none."""
    lines = [f"{_HEAD}, for ~/.nccl.conf, NCCL_CONF_FILE or /etc/nccl.conf"]
    for recommendation in _of(recs, "unset"):
        lines.append(
            _comment(
                f"{recommendation.variable} cannot be taken away here: remove it from {_places(recommendation)}"
            )
        )
    for recommendation in _of(recs, "set"):
        lines.append(_comment(recommendation.why))
        lines.append(_conf_line(recommendation))
    return _lines(*lines)


def _conf_line(recommendation: Recommendation) -> str:
    value = recommendation.value or ""
    fits = (
        "\n" not in value and "\0" not in value and len(value.encode(errors="backslashreplace")) <= _LONGEST_VALUE
    )
    if not recommendation.variable.startswith("NCCL_") or not _NAME.fullmatch(recommendation.variable):
        return _comment(f"{recommendation.variable} is not read from this file: export it in the job script")
    return (
        f"{recommendation.variable}={value}"
        if fits
        else _comment(f"the value of {recommendation.variable} fits in no line of this file")
    )


def sbatch(recs: Recommendations) -> str:
    """Lines after the #SBATCH ones; srun hands them to all nodes."""
    return _lines(*_shell(recs), "srun --export=ALL torchrun ...")


def docker(recs: Recommendations) -> str:
    """One command of docker; an image's own ENV goes with `env -u` in front of the program."""
    flags = [
        f"-e {shlex.quote(f'{recommendation.variable}={recommendation.value}')}"
        for recommendation in _of(recs, "set")
    ]
    words = ["docker run --gpus all --network=host --ipc=host", *flags, "IMAGE", *_env_u(recs), "torchrun ..."]
    return _lines(" \\\n  ".join(words))


def kubernetes(recs: Recommendations) -> str:
    """The `env:` of a container; every value a quoted string, as YAML wants numbers too."""
    rows = [
        row
        for recommendation in _of(recs, "set")
        for row in (f"- name: {recommendation.variable}", f"  value: {_yaml(recommendation.value or '')}")
    ]
    gone = [
        _comment(f"remove {recommendation.variable} from {_places(recommendation)}")
        for recommendation in _of(recs, "unset")
    ]
    return _lines("env:" if rows else "env: []", *rows, *gone)


def torchrun(recs: Recommendations) -> str:
    """The variables in front of torchrun, to be typed on every node."""
    values = [
        f"{recommendation.variable}={quoted(recommendation.value or '')}" for recommendation in _of(recs, "set")
    ]
    gone = _env_u(recs)
    return _lines(" ".join([*(gone or (["env"] if values else [])), *values, "torchrun ..."]))


def revert(recs: Recommendations) -> str:
    """A POSIX script that brings back what was before."""
    done = [*_of(recs, "unset"), *_of(recs, "set")]
    return _lines("# What was before", *(recommendation.undo for recommendation in done if recommendation.undo))


def quoted(value: str) -> str:
    """One word for every shell: zsh would take =eth0 for the path of a program."""
    word = shlex.quote(value)
    return f"'{value}'" if word == value and value.startswith(("=", "^")) else word


def measure(recommendation: Recommendation) -> str:
    """The command that measures one setting against none; what torch reads shows in a training only."""
    if recommendation.variable.startswith("NCCL_"):
        return (
            f"ncclcheck bench --with {recommendation.variable}={quoted(recommendation.value or '')}".removesuffix(
                "''"
            )
        )
    change = (
        f"env -u {recommendation.variable}"
        if recommendation.value is None
        else f"{recommendation.variable}={quoted(recommendation.value)}"
    )
    return f"{change} ncclcheck smoke --baseline before.json"


def _shell(recs: Recommendations) -> Iterator[str]:
    for recommendation in _of(recs, "unset"):
        yield _comment(recommendation.why)
        files = [place for place in recommendation.set_in if place != "environment"]
        if files:
            yield _comment(f"{recommendation.variable} stands in {', '.join(files)}: take that line out")
        if not files or "environment" in recommendation.set_in:
            yield f"unset {recommendation.variable}"
    for recommendation in _of(recs, "set"):
        yield _comment(recommendation.why)
        yield f"export {recommendation.variable}={quoted(recommendation.value or '')}"


def _tries(recs: Recommendations) -> Iterator[str]:
    for recommendation in _of(recs, "try"):
        yield _comment(f"to be tried, not proved: {measure(recommendation)}")


def _of(recs: Recommendations, action: str) -> list[Recommendation]:
    """Those of one list whose name can be one of a variable."""
    return [rec for rec in recs if rec.action == action and _NAME.fullmatch(rec.variable)]


def _env_u(recs: Recommendations) -> list[str]:
    gone = [recommendation.variable for recommendation in _of(recs, "unset")]
    return ["env " + " ".join(f"-u {name}" for name in gone)] if gone else []


def _places(recommendation: Recommendation) -> str:
    return " and ".join(
        "the job's environment" if place == "environment" else place for place in recommendation.set_in
    ) or ("wherever it is set")


def _yaml(value: str) -> str:
    """A double-quoted scalar of YAML; Kubernetes would expand `$(`."""
    escaped = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value.replace("$(", "$$("))
    return f'"{"".join(escaped)}"'


def _comment(words: str) -> str:
    """One line, whatever is in the words."""
    return "# " + "".join(c if c.isprintable() else " " for c in words)


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in _flat(lines))


def _flat(lines: Iterable[str]) -> Iterator[str]:
    """Without a comment that says the same as the one before."""
    before = ""
    for line in lines:
        if line != before:
            yield line
        before = line
