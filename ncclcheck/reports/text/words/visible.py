"""What others wrote, as it may be shown: nothing in it moves a cursor, hides, or turns the writing around."""

from __future__ import annotations

import re
import unicodedata

# Control characters, directions of writing and zero widths, halves of pairs, private and unassigned ones; and the
# separators of lines and paragraphs, which are line breaks to some readers.
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_BEYOND_ASCII = re.compile(r"[\x7f-\U0010ffff]")


def visible(text: str, keep: str = "\n\t") -> str:
    """The text with what cannot be seen as escapes. keep: control characters that stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or not _is_unseen(c) else _escaped(c) for c in text)


def in_line(text: str) -> str:
    """The same in one line: a line break in a name begins none."""
    return visible(text, keep="")


def in_json(text: str) -> str:
    """JSON that says the same, and that may be printed: what cannot be seen is written as JSON writes it."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _BEYOND_ASCII.sub(lambda match: _json_escaped(match[0]) if _is_unseen(match[0]) else match[0], text)


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _json_escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
