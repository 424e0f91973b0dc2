"""Names of hosts and people, and paths: learned from the facts, then replaced wherever they stand."""

from __future__ import annotations

import ipaddress
import re
from functools import cache
from itertools import islice

from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.text.words.fold import fold_names

_TOKEN = re.compile(r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?", re.ASCII)
_FOLDED = re.compile(r"([\w.-]*)\[(\d[\d,-]*)\]([\w.-]*)", re.ASCII)
_PATH = re.compile(
    r"(?<![\w./])~?(?:/[^\s/:;,'\"()<>=|&$`*?\[\]{}\\]+)+|(?<![\w./])[\w.-]+(?:/[\w.%-]+)+", re.ASCII
)
_OURS = re.compile(r"(?:sim\d+|node rank \d+|localhost|root|nobody|)")
_MOST_NAMES = 100_000  # of one range: more nodes than any cluster has; a range from outside may say [0-999999999]

# Parts of paths that are the same on every machine; what is none of these is somebody's own.
_PARTS = """
~ . .. home Users root tmp usr local lib lib32 lib64 libexec bin sbin opt etc var run mnt media data dataset
datasets scratch srv boot dev proc sys share work workspace shared infiniband shm net kernel mm class fs cgroup
self module devices bus security profile site-packages dist-packages venv .venv env envs conda miniconda3
anaconda3 src log logs torch distributed nn parallel autograd accelerate commands deepspeed launcher nccl cudnn
stubs compat ucx efa amazon mellanox sharp plugin plugins aws-ofi-nccl
nccl.conf .nccl.conf .bashrc environment .cache cache hub huggingface torch_extensions .nv ComputeCache .triton
checkpoint checkpoints train.py main.py __init__.py rdma_cm memory_peers nv_mem
"""
_COMMON = frozenset(_PARTS.split())
_SHAPES = re.compile(
    r"\d+|python[\d.]*|[\w.+-]*-linux-gnu|nvidia\w*|cuda[\w.-]*|hpcx[\w.-]*|lib[\w.+-]*\.so[\d.]*|ld\.so\.\w+"
    r"|uverbs\d+|nccl-\w{6}|nvme\w+|sd[a-z]\d*|md\d+|vmlinuz[\w.-]*"
)


class InventedNames:
    """What each name has become, the first one as number 1; numbers that are in use already are left out."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._wanted: list[tuple[str, str]] = []
        self._counts: dict[str, int] = {}
        self._parts: dict[str, str] = {}
        self._whole: list[str] = []
        self._texts: dict[str, str] = {}

    def learn(self, name: str, kind: str) -> None:
        """One name of this kind: node, host, user, name. An address is none: it is replaced as one."""
        base, _, domain = name.partition("#")[0].rstrip(".").partition(".")
        if _OURS.fullmatch(base) or _is_address(name):
            return
        if domain and re.search(r"[A-Za-z]", domain):
            self._wanted += [(base, kind), (domain, "domain")]
        else:
            self._wanted.append((name.partition("#")[0], kind))

    def learn_folded(self, names: str, kind: str) -> None:
        """A list of hosts as Slurm writes it."""
        for part in re.split(r",(?![^\[]*\])", names):
            match = _FOLDED.fullmatch(part)
            for name in _expanded(match) if match else [part]:
                self.learn(name, kind)

    def learn_text(self, text: str) -> None:
        """Somebody's own words, which leave as a whole."""
        if _TOKEN.fullmatch(text):
            self.learn(text, "text")
        elif text:
            self._texts.setdefault(text, "")

    def learn_path(self, path: str) -> None:
        """The parts of a path that are somebody's own."""
        parts = [part for part in path.split("/") if part]
        for above, part in zip(["", *parts], parts, strict=False):
            if above in ("home", "Users"):
                self.learn(part, "user")
            elif not (part in _COMMON or _SHAPES.fullmatch(part)):
                self._parts.setdefault(part, "")
        if not _PATH.fullmatch(path) and path not in self._whole and "/" in path and len(path) > 1:
            self._whole.append(path)

    def learn_paths_in(self, text: str) -> None:
        """The paths that stand in a text."""
        for match in _PATH.finditer(text):
            if match[0].startswith(("/", "~")):
                self.learn_path(match[0].rstrip("."))

    def settle(self) -> None:
        """Give the names, now that all of them are known."""
        originals = {name for name, _ in self._wanted} | self._parts.keys()
        for name, kind in self._wanted:
            if name not in self._given:
                self._given[name] = self._new(kind, originals)
        for part in self._parts:
            self._parts[part] = self._given.get(part) or self._part(part, originals)
        self._whole.sort(key=len, reverse=True)
        self._texts = {
            text: self._new("text", originals) for text in sorted(self._texts, key=lambda text: (-len(text), text))
        }

    def _new(self, kind: str, originals: set[str], end: str = "") -> str:
        while True:
            self._counts[kind] = number = self._counts.get(kind, 0) + 1
            new = f"{kind}{number}.example" if kind == "domain" else f"{kind}{number}{end}"
            if new not in originals:
                return new

    def _part(self, part: str, originals: set[str]) -> str:
        """A directory's or a file's name; its ending and NCCL's %h and %p stay."""
        marks = "".join(f".{mark}" for mark in re.findall("%[a-zA-Z]", part))
        ending = re.search(r"\.(?:py|so[\d.]*|out|err|gz|xml|conf|json|log|txt|toml|sh|pt|pth|ya?ml|ipynb)$", part)
        end = marks + (ending[0] if ending else "")
        return self._new("file" if end else "dir", originals, end)

    def exact(self, name: str) -> str:
        """A field that holds a name and nothing else."""
        base, mark, rest = name.partition("#")
        return self._full(base) + mark + rest

    def without_own_words(self, text: str) -> str:
        """Somebody's own words replaced as a whole; before all else, for addresses may stand in them."""
        for words, new in self._texts.items():
            text = text.replace(words, new)
        return text

    def text(self, text: str) -> str:
        """A text with every name and path in it replaced."""
        for path in self._whole:
            text = text.replace(path, self._path(path))
        text = _FOLDED.sub(self._refolded, _PATH.sub(lambda match: self._path(match[0]), text))
        return _TOKEN.sub(lambda match: self._token(match[0]), text)

    def _path(self, path: str) -> str:
        return "/".join(self._in_path(part) for part in path.split("/"))

    def _in_path(self, part: str) -> str:
        bare = part.rstrip(".") or part  # `..` is a part of its own
        end = part[len(bare) :]
        return self._parts.get(bare) or self._given.get(bare) or part if not end else self._in_path(bare) + end

    def _refolded(self, match: re.Match[str]) -> str:
        names = _expanded(match)
        images = [self._full(name) for name in names]
        return match[0] if images == names else fold_names(images)

    def _token(self, token: str) -> str:
        if token in self._given:
            return token if _is_word(token) else self._given[token]
        if token in self._parts and "." in token:
            return self._parts[token]
        return self._full(token) if not token.isalnum() else token

    def _full(self, name: str) -> str:
        """A name, or what holds one between dots and dashes: a host with its domain, or with its card's name."""
        if name in self._given:
            return self._given[name]
        parts, done, at = re.split(r"([.\-_])", name), "", 0
        while at < len(parts):
            length = next(
                (n for n in range(len(parts) - at, 0, -1) if self._is_name("".join(parts[at : at + n]))), 0
            )
            part = "".join(parts[at : at + max(1, length)])
            done += self._given[part] if length else part
            at += max(1, length)
        return done

    def _is_name(self, words: str) -> bool:
        return words in self._given and not _is_word(words)


def _expanded(match: re.Match[str]) -> list[str]:
    """`gpu-a[07-09]` -> the names."""
    numbers: list[str] = []
    for part in match[2].split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            return [match[0]]
        span = range(int(first), int(last or first) + 1)
        numbers += [str(number).zfill(len(first)) for number in islice(span, _MOST_NAMES)]
    return [f"{match[1]}{number}{match[3]}" for number in numbers[:_MOST_NAMES]]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_word(name: str) -> bool:
    """A word of the language of our reports, such as `worker`: it tells nobody anything, and reports need it."""
    return name.isdecimal() or (name.islower() and name in _words())


@cache
def _words() -> frozenset[str]:
    pages = " ".join(f"{rule.title} {rule.page}" for rule in all_rules())
    return frozenset(re.findall(r"[a-z]+", pages.lower())) | {"master", "worker", "head", "login"}
