"""Changes that a fix makes to lines of a script: put before or after a statement, moved, spelled otherwise."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Remedy
from ncclcheck.reports.subjects.script.processes import INIT
from ncclcheck.reports.subjects.script.scripts import edited, indent, line_of, spawns

Change = Mapping[int, str | None]
_BRANCHES = re.compile(r"(?:elif|else|except|finally|case)\b|@")
_HEADS = re.compile(r"(?:if|for|while|with|try|async|def|class|elif|else|except|finally)\b.*:\s*(?:#.*)?$")
_ALIAS = re.compile(r"import torch\.distributed as (\w+)|from torch import distributed(?: as (\w+))?\s*$")
_LEAVES = re.compile(r"(?:return|raise|yield|break|continue)\b")
_OPENS = ("(", "[", "{", ",", "\\")


def before(script: Script, call: Call, *lines: str) -> Change | None:
    """These lines before the statement that it stands in; None where that does not begin on a line of its own."""
    return at_line(script, call.file, call.first or call.line, *lines)


def at_line(script: Script, file: str, at: int, *lines: str) -> Change | None:
    """These lines before that one, which begins a statement."""
    line = line_of(script, file, at)
    if not line.strip() or _BRANCHES.match(line.strip()) or not _begins(line, line_of(script, file, at - 1)):
        return None
    return {at: "\n".join([*(indent(line) + new for new in lines), line])}


def after(script: Script, call: Call, *lines: str) -> Change | None:
    """These lines after the statement that it stands in; None where that is the head of a block."""
    first, last = call.first or call.line, call.last or call.line
    head, end = line_of(script, call.file, first), line_of(script, call.file, last)
    if not end or _HEADS.match(head.strip()) or not _begins(head, line_of(script, call.file, first - 1)):
        return None
    if _LEAVES.match(head.strip()) or end.rstrip().endswith(_OPENS) or (first == last and not _is_whole(end)):
        return None
    return {last: "\n".join([end, *(indent(head) + new for new in lines)])}


def spelled(script: Script, file: str, at: int, old: str, new: str) -> Change | None:
    """One expression of a line in the place of another, which stands there once."""
    line = line_of(script, file, at)
    return {at: line.replace(old, new)} if line.count(old) == 1 else None


def replaced(script: Script, call: Call, pattern: str, new: str) -> Change | None:
    """The same by a pattern, in one of the lines of the statement."""
    for at in range(call.first or call.line, (call.last or call.line) + 1):
        line = line_of(script, call.file, at)
        if len(re.findall(pattern, line)) == 1:
            return {at: re.sub(pattern, new, line)}
    return None


def single(script: Script, call: Call) -> str:
    """The statement, if it is one line of its own; empty otherwise."""
    line = line_of(script, call.file, call.line)
    first, last = call.first or call.line, call.last or call.line
    whole = first == last == call.line and _is_whole(line) and not _HEADS.match(line.strip())
    return line.strip() if whole and _begins(line, line_of(script, call.file, call.line - 1)) else ""


def moved(script: Script, call: Call, to: Call, *, text: str = "", behind: bool = False) -> Change | None:
    """A statement of one line that goes before, or behind, another one of the same block.

    text: what it then says. What stands between them must be known, and speak of nothing that it makes.
    """
    line = single(script, call)
    low, high = sorted((call.line, to.line))
    between = [line_of(script, call.file, at) for at in range(low + 1, high)]
    if not line or call.file != to.file or call.function != to.function or not _same_block(script, call, to):
        return None
    if call.target and any(re.search(rf"\b{re.escape(call.target)}\b", other) for other in between):
        return None
    put = (after if behind else before)(script, to, text or line)
    return None if put is None or call.line in put else {**put, call.line: None}


def _same_block(script: Script, call: Call, to: Call) -> bool:
    """Whether nothing between them is less indented than both, and both are alike."""
    low, high = sorted((call.line, to.line))
    lines = [line_of(script, call.file, at) for at in range(low, high + 1)]
    known = {int(at) for source in script.files if source.name == call.file for at in source.lines}
    if not {*range(low, high + 1)} <= known or indent(lines[0]) != indent(lines[-1]):
        return False
    return all(not line.strip() or line.startswith(indent(lines[0])) for line in lines)


def dist(script: Script, file: str) -> str:
    """What the file calls torch.distributed; empty where no line that is kept imports it, or torch."""
    lines = [line for source in script.files if source.name == file for line in source.lines.values()]
    for line in lines:
        if name := _ALIAS.match(line):
            return name.group(1) or name.group(2) or "distributed"
    whole = any(re.match(r"import torch(?:\.distributed)?\b(?! as)", line) for line in lines)
    return "torch.distributed" if whole else ""


def is_started(script: Script, call: Call) -> bool:
    """Whether every way to this call has a group: one is made before it, under no condition."""
    started = near = False
    for way in script.trace:
        started |= way.name == INIT and all(guard.kind == "main" for guard in way.guards)
        if way.place == call.place and way.name == call.name:
            return started
        if way.function == call.function and way.line <= call.line:
            near = started  # it is not followed itself
    return near


def rank_is_0(script: Script, call: Call) -> str:
    """A condition that holds on rank 0 alone, as it can be written there; empty where there is none such."""
    if is_started(script, call) and (name := dist(script, call.file)):
        return f"{name}.get_rank() == 0"
    return "" if spawns(script) else 'os.environ.get("RANK", "0") == "0"'


def changed(script: Script, text: str, file: str, *changes: Change | None, needs: str = "") -> Remedy:
    """The fix with all of these changes, or its words alone where one of them can't be made, or two meet."""
    known = [change for change in changes if change]
    lines = [at for change in known for at in change]
    whole = len(known) == len(changes) and len({*lines}) == len(lines)
    merged = {at: line for change in known for at, line in change.items()}
    return edited(script, text, file, merged if whole else None, needs=needs if whole else "")


def _is_whole(line: str) -> bool:
    """Whether the line is a statement by itself."""
    text = line.strip()
    try:
        ast.parse(f"{text} pass" if _HEADS.match(text) and "#" not in text else text)
    except (SyntaxError, ValueError):
        return False
    return ";" not in text


def _begins(line: str, above: str) -> bool:
    """Whether a statement begins there, as far as the line and the one above it tell."""
    code, ahead = (text.split("#", maxsplit=1)[0].strip() for text in (line, above))
    inside = re.match(r"(?:if|for|while|with|try|else|elif)\b.*:\s*[^\s#\])}\"']", code) and not _HEADS.match(code)
    return not ahead.endswith(_OPENS) and not inside and ";" not in code
