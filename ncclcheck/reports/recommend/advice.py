"""What a rule of settings is: what calls for a setting here, and beside it who says so and what it may cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ncclcheck.reports.recommend.site import Site, When
from ncclcheck.reports.subjects.nccl.variables import Version

Action = Literal["set", "unset", "try", "keep"]
MANY_NODES = 16  # from there on a failure is a matter of days, not of chance (The Llama 3 Herd of Models)


@dataclass(frozen=True)
class Proposal:
    """A setting that the facts of this cluster call for. value: None takes the variable away.

    action: where it is another one than its rule's.
    """

    variable: str
    value: str | None
    why: str
    evidence: list[str]
    action: Action | None = None


Find = Callable[[Site], Iterator[Proposal]]


@dataclass(frozen=True, kw_only=True)
class SettingRule:
    """One rule. title: what it says, for the docs. since, until: the versions of NCCL that it holds for.

    anywhere: it speaks also where the job does not use NCCL on real machines, as what takes something away does.
    of_machine: what it takes away depends on the machine, and a login node is none of those that the job runs on.
    harmful: what it takes away is wrong, or without effect, even where a platform's own profile has it.
    """

    rule: str
    title: str
    action: Action
    find: Find
    source: str
    gain: str = ""
    risk: str = "none known"
    disagree: str = ""
    since: Version | None = None
    until: Version | None = None
    anywhere: bool = False
    of_machine: bool = False
    harmful: bool = False

    @property
    def valid_for(self) -> str:
        """The versions in words."""
        low, high = _dotted(self.since), _dotted(self.until)
        if low and high:
            return f"NCCL {low} to {high}"
        return f"NCCL {low} and later" if low else f"NCCL up to {high}" if high else "every NCCL"

    def applies(self, site: Site) -> bool:
        """Whether the job, and the versions on all nodes, are such that this rule can speak."""
        bounded = self.since is not None or self.until is not None
        if bounded and not site.runs_nccl(self.since or (0, 0, 0), self.until or (99, 0, 0)):
            return False
        return self.anywhere or (self.action == "unset" and not self.of_machine) or site.uses_nccl


def _dotted(version: Version | None) -> str:
    if version is None:
        return ""
    return ".".join(map(str, version)) if version[2] else f"{version[0]}.{version[1]}"


def without(*names: str, why: str, when: When | None = None, only: Callable[[Site], bool] | None = None) -> Find:
    """Take these variables away from the nodes to which `when` objects, where `only` holds for the site."""

    def find(site: Site) -> Iterator[Proposal]:
        for name in names if only is None or only(site) else ():
            if evidence := site.values_of(name, when):
                yield Proposal(name, None, why, evidence)

    return find


def on(*words: str) -> When:
    """The value is one of these, in any case."""
    return lambda setting: setting.text.strip().lower() in words


def number(value: int) -> When:
    """NCCL reads this number."""
    return lambda setting: setting.number == value
