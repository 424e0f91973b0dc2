"""What no fact may hold: secrets by the name of a variable, and by their shape wherever they stand.

The one place that knows them. Agents mask what they send, the result is masked before it is judged, and so is all
that goes to stderr: a secret that a probe, a rule or a library wrote into a sentence leaves in none of them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeVar

import msgspec
from msgspec import Struct

from ncclcheck.probes.facts.guard.walk import Place, changed

T = TypeVar("T")

HIDDEN = "***"
_NAMES = re.compile(r"JWT|TOKEN|KEY|SECRET|PASS|AUTH|CRED|PWD|COOKIE|SESSION|SPANK", re.IGNORECASE)
_HARMLESS = {
    *("NCCL_IB_PKEY", "UCX_IB_PKEY", "FI_OPX_PKEY"),  # the number of an InfiniBand partition
    *("PWD", "OLDPWD"),
}

_WORD = (
    r"passw(?:or)?d|passwd|passphrase|passcode|pwd|secret|token|api[_-]?key|access[_-]?key(?:[_-]?id)?|private[_-]?key"
    r"|secret[_-]?key|auth[_-]?key|account[_-]?key|wandb[_-]?key|credentials?|auth|cookie|jwt|session[_-]?id"
)
_VALUE = r"(?:\"[^\"\n]+\"|'[^'\n]+'|[^\s\"',;&|)\]}]+)"

_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    # scheme://user:password@host; a password may hold all but a space, a user's name alone no slash.
    (re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#@:\"'<>]*:(?!\d{1,5}[/?#])[^\s\"'<>]*@"), rf"\1{HIDDEN}@"),
    (re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#\"'<>]*@"), rf"\1{HIDDEN}@"),
    # ?token=, &X-Amz-Signature=, &sig=
    (
        re.compile(r"([?&][\w.-]*(?:token|secret|passw|pwd|signature|sig|auth|cred|key|jwt|session|cookie)[\w.-]*=)"
                   r"[^&\s\"'<>#]+", re.IGNORECASE),
        rf"\1{HIDDEN}",
    ),
    # Authorization: Bearer ..., Cookie: ..., X-Api-Key: ...
    (
        re.compile(r"(\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)(?:(?:bearer|basic|digest|token|negotiate)\s+)?"
                   r"[^\s\"',;]+", re.IGNORECASE),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(\b(?:set-)?cookie[\"']?:\s*[\"']?)[^\"'\n]+", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"(\bbearer\s+)(?!token\b|auth)[\w.~+/=-]{3,}", re.IGNORECASE), rf"\1{HIDDEN}"),
    # NAME_TOKEN=..., "password": "...", --api-key ..., NCCL_X_SECRET set by environment to ...
    (
        re.compile(rf"(?<![A-Za-z])((?!(?:OLD)?PWD=/)[\w-]*(?:{_WORD})[\"']?\s?=\s?){_VALUE}", re.IGNORECASE),
        rf"\1{HIDDEN}",
    ),
    (re.compile(rf"([\"'][\w-]*(?:{_WORD})[\"']\s*:\s*){_VALUE}", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(rf"(\b[\w-]*(?:{_WORD}):\s*)(?=\S*\d)[^\s\"',;]{{8,}}", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(rf"((?<!\S)--?[\w-]*(?:{_WORD})\s+)(?!-){_VALUE}", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"(\b\w*(?:JWT|TOKEN|KEY|SECRET|PASS|AUTH|CRED|COOKIE|SESSION)(?<!PKEY)\w* set "
                r"(?:by environment |in \S+ )?to )\S+"), rf"\1{HIDDEN}"),
    # What tells itself by its first letters: AWS, Hugging Face, GitHub, GitLab, Slack, OpenAI, Google, NVIDIA NGC,
    # Docker, npm, PyPI, JWT; a key of Weights & Biases is 40 digits like a commit, told by the word before it.
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), HIDDEN),
    (re.compile(r"\b(?:(?:hf|gh[opsur])_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,})"), HIDDEN),
    (re.compile(r"\b(?:xox[abeoprs]-[\w-]{10,}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|nvapi-[\w-]{20,})"), HIDDEN),
    (re.compile(r"\b(?:sk-[A-Za-z0-9_-]{20,}|dckr_pat_[\w-]{16,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,})"), HIDDEN),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), HIDDEN),
    (re.compile(r"(wandb\b[^\n]{0,80}?)\b[0-9a-f]{40}\b", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"\bwandb_v1_\w{16,}"), HIDDEN),
    (re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*", re.DOTALL), rf"\1{HIDDEN}"),
)  # fmt: skip

# What stands in every text that a shape above could change, in lower case. `in` over the bytes of a whole node
# takes a tenth of the time of looking at each of its strings, and nearly no node holds any of them.
_SIGNS = (
    *(b"://", b"authorization", b"bearer", b"cookie", b"jwt", b"credential", b"signature", b"sig="),
    *(b"auth=", b"auth\\\"", b"auth'", b"auth:", b"-auth", b"_auth"),
    *(b"passw", b"passphrase", b"passcode", b"pwd=", b"pwd\\\"", b"pwd'", b"pwd:", b"-pwd", b"_pwd", b"secret"),
    *(b"token", b"session", b"_key", b"-key", b"apikey", b"accesskey", b"privatekey", b"key=", b" set to "),
    *(b" set by ", b"akia", b"asia", b"hf_", b"gho_", b"ghp_", b"ghs_", b"ghu_", b"ghr_", b"github_pat_"),
    *(b"glpat-", b"xox", b"aiza", b"ya29.", b"nvapi-", b"sk-", b"dckr_pat_", b"npm_", b"pypi-", b"eyj", b"wandb"),
    b"private key",
)  # fmt: skip


@lru_cache(maxsize=10_000)
def is_secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret."""
    return name not in _HARMLESS and _NAMES.search(name) is not None


def masked(text: str) -> str:
    """The text with every secret in it replaced, and nothing else."""
    if not _may_hold_one(text.encode(errors="backslashreplace")):
        return text
    for shape, instead in _SHAPES:
        text = shape.sub(instead, text)
    return text


def without_secrets(value: T, clean: set[int] | None = None) -> T:
    """The same struct or list, every string in it masked; the same object where there is nothing to mask.

    clean: ids of parts that hold none, which outlive the call: nodes of one cluster share most of theirs.
    """
    if clean is not None:
        new: list[str] = []
        met: set[int] = set()
        _unseen(value, clean, new, met)
        if not _may_hold_one(msgspec.json.encode(new)):
            clean |= met
            return value
        return changed(value, _masked_at)
    parts = value if isinstance(value, list) else [getattr(value, name) for name in _fields(value)]
    if not any(_may_hold_one(msgspec.json.encode(part, enc_hook=str)) for part in parts):
        return value
    return changed(value, _masked_at)


def _unseen(value: object, clean: set[int], new: list[str], met: set[int]) -> None:
    """The strings below a value but for those of parts that are known to be clean; met: the other parts."""
    if isinstance(value, str):
        new.append(value)
    elif isinstance(value, dict):
        new += value
        for inner in value.values():
            _unseen(inner, clean, new, met)
    elif isinstance(value, (list, Struct)) and id(value) not in clean:
        met.add(id(value))
        for inner in value if isinstance(value, list) else [getattr(value, name) for name in _fields(value)]:
            if type(inner) is str:
                new.append(inner)
            elif type(inner) not in _PLAIN and id(inner) not in clean:
                _unseen(inner, clean, new, met)


_PLAIN = {int, float, bool, type(None)}


def _fields(value: object) -> tuple[str, ...]:
    return getattr(value, "__struct_fields__", ())


def _masked_at(_: Place, text: str) -> str:
    return masked(text)


@lru_cache(maxsize=256)  # of a thousand nodes most parts are the same
def _may_hold_one(data: bytes) -> bool:
    low = data.lower()
    return any(sign in low for sign in _SIGNS)
