"""The `@rule` decorator: one function in one place is a rule, its docstring is its page."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from ncclcheck.probes.facts import Cluster
from ncclcheck.reports.judgement.findings import Finding, State

# No job is started where a rule fails: at all, or where a finding of it has `blocks_job`.
Gate = Literal["", "by any failure", "where a finding says so"]
Body = Callable[[Cluster], Iterator[Finding]]

FAMILIES = {
    "HST": "host",
    "NET": "network",
    "NCC": "nccl",
    "GPU": "gpu",
    "RDM": "rdma",
    "FAB": "fabric",
    "CON": "container",
    "STO": "storage",
    "VER": "versions",
    "INI": "init",
    "BEN": "bench",
    "MEM": "memory",
    "DAT": "data",
    "TRN": "training",
    "LOG": "logs",
    "HNG": "hang",
    "BOX": "box",
    "SCR": "script",
    "RUN": "run",
}
# Commands that judge no node, and the families that they judge.
OWN_FAMILIES = {
    "logs": ("LOG", "RUN"),
    "hang": ("HNG", "RUN"),
    "watch": ("BOX", "HNG", "LOG", "RUN"),
    "script": ("SCR", "RUN"),
}


class NothingToJudge(Exception):
    """Raised by a rule whose subject is not there; the verdict is `skipped` with this reason."""


@dataclass(frozen=True)
class Rule:
    """A rule and what the judge must know of it.

    over: where the subjects are: "nodes", a list below a node ("nodes.network.interfaces") or below the
    cluster ("run.ranks"). needs: facts that must be known, as paths below the node, or below the subject
    when they start with a dot. at_least: fewer subjects are `skipped`. ground: rules that must hold for a
    node first. between_machines: not judged for nodes simulated on one machine. last: judged after all
    others, with their crashes in the cluster. unfinished: where it is unknown, the examination did not come to
    its end. symptom: it tells what was seen, and counts as a cause only where nothing more exact is found.
    gates_job: whether its failure keeps a job from being started. of_one_setting: it says beforehand what a
    setting would do. of_most: its fix gives a node what most nodes have. costs_speed: its warning ends no job, and
    is no cause of one that failed of something else.
    """

    code: str
    title: str
    worst: State
    over: str
    needs: tuple[str, ...]
    at_least: int
    ground: tuple[str, ...]
    between_machines: bool
    commands: tuple[str, ...]
    last: bool
    body: Body
    unfinished: bool = False
    symptom: bool = False
    gates_job: Gate = ""
    of_one_setting: bool = False
    of_most: bool = False
    costs_speed: bool = False

    @property
    def page(self) -> str:
        """The rule's page: what, why, fix and source, as Markdown."""
        return inspect.cleandoc(self.body.__doc__ or "")

    @cached_property
    def below(self) -> str:
        """The path below a node where the subjects are; empty where the nodes are the subjects."""
        return self.over.removeprefix("nodes").removeprefix(".")

    @cached_property
    def node_needs(self) -> tuple[str, ...]:
        """Paths below a node that must be known, the list of subjects among them."""
        own = [need for need in self.needs if not need.startswith(".")]
        return (*own, self.below) if self.below else tuple(own)

    @cached_property
    def item_needs(self) -> tuple[str, ...]:
        """Paths below a subject that must be known."""
        return tuple(need[1:] for need in self.needs if need.startswith("."))

    @property
    def family(self) -> str:
        """The family's name, as the text report prints it."""
        return FAMILIES[self.code[:3]]


_rules: dict[str, Rule] = {}


def rule(
    code: str,
    title: str,
    *,
    worst: State,
    over: str = "nodes",
    needs: tuple[str, ...] = (),
    at_least: int = 1,
    ground: tuple[str, ...] = (),
    between_machines: bool = False,
    commands: tuple[str, ...] = (),
    last: bool = False,
    unfinished: bool = False,
    symptom: bool = False,
    gates_job: Gate = "",
    of_one_setting: bool = False,
    of_most: bool = False,
    costs_speed: bool = False,
) -> Callable[[Body], Body]:
    """Make a function a rule. The title is a sentence that is true when all is well."""

    def register(body: Body) -> Body:
        if code in _rules:
            raise ValueError(f"{code} is already {_rules[code].body.__name__}")
        _rules[code] = Rule(
            code=code,
            title=title,
            worst=worst,
            over=over,
            needs=needs,
            at_least=at_least,
            ground=ground,
            between_machines=between_machines,
            commands=commands,
            last=last,
            unfinished=unfinished,
            symptom=symptom,
            gates_job=gates_job,
            of_one_setting=of_one_setting,
            of_most=of_most,
            costs_speed=costs_speed,
            body=body,
        )
        return body

    return register


@cache
def flagged(
    flag: Literal["unfinished", "symptom", "gates_job", "of_one_setting", "of_most", "costs_speed"],
) -> frozenset[str]:
    """The codes of the rules that have this flag."""
    return frozenset(rule.code for rule in all_rules() if getattr(rule, flag))


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule below `reports/rules`, sorted by code."""
    package = importlib.import_module("ncclcheck.reports.rules")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return tuple(_rules[code] for code in sorted(_rules))
