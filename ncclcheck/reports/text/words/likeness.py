"""What findings of several nodes have in common: their words without each node's own names and addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from ncclcheck.probes.facts import Node, Resolution, at, value_or
from ncclcheck.reports.judgement.findings import Finding
from ncclcheck.reports.output.anonymise.addresses import PATTERN

_TOKEN = re.compile(r"([A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?)", re.ASCII)  # a group: splitting keeps it
_PCI = re.compile(r"\b(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)
# A number that only measures or counts, with its unit. One that names what happened (Xid 79, exit code 137, error
# 110), and one within a word (2.27.3, NET003, fp16), is another cause and stays.
_NUMBER = re.compile(
    r"(?P<named>(?:\b|_)(?:Xids?|signal|code|status|errno|error|event|version|release|kernel|driver|firmware|revision"
    r"|NCCL|CUDA|PyTorch|torch|Python|gen)[ =:#]+[\w.-]+)"
    r"|(?<![\w.:-])\d+(?:\.\d+)?(?=(?: ?(?:%|[KMGTP]i?B|[KMG]b|[um]?s|W|C|MHz)(?:/s)?)?(?![\w-]|[.:]\w))",
    re.IGNORECASE,
)
_LISTS = ("network.interfaces", "rdma.devices", "gpus.cards")
_OWN = "<own>"


class Likeness:
    """Two findings are alike where this gives the same words of them."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._known: dict[str, frozenset[str]] = {}

    def of(self, finding: Finding, words: str, *, numbers: bool = False) -> str:
        """These words of a finding with nothing in them that is its place's own. numbers: nor what was counted."""
        where = finding.where
        words = words.replace("[.]", ".")  # an address in a pattern of sed
        for name in (where.device, where.peer):
            words = words.replace(name, _OWN) if name else words
        return self.of_node(where.node, words, numbers=numbers)

    def of_node(self, name: str | None, words: str, *, numbers: bool = False) -> str:
        """The same of words about a node."""
        own = self._own(name) if name is not None else frozenset()
        words = "".join([_OWN if part in own else part for part in _TOKEN.split(words)])
        words = " ".join(map(_without_addresses, words.split(" ")))
        return _NUMBER.sub(lambda match: match["named"] or "<n>", words) if numbers else words

    def _own(self, name: str) -> frozenset[str]:
        if name not in self._known:
            node = self._nodes.get(name)
            self._known[name] = frozenset([name, *(_names(node) if node is not None else ())])
        return self._known[name]


@lru_cache(maxsize=4096)  # no address has a blank, and most words stand in the findings of all nodes
def _without_addresses(word: str) -> str:
    return _PCI.sub(_OWN, PATTERN.sub(_OWN, word))


def _names(node: Node) -> list[str]:
    """The host's name, and those of its cards."""
    named = value_or(at(node, "host.own_name"), Resolution(name="", addresses=[])).name
    hostname = value_or(at(node, "host.hostname"), "")
    cards = [card.name for place in _LISTS for card in value_or(at(node, place), [])]
    return [*(name for name in (hostname, named) if name), *cards]
