"""matplotlib -> inline SVG whose colours are the page's own, so that one picture fits dark and light."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

# Colours that stand for variables of the page's style sheet.
INK, GRID, BLANK = "#010203", "#010204", "#010205"
MARKERS = "osD^vPX*"
SERIES = tuple(f"#01021{digit}" for digit in range(8))
_VARIABLES = {INK: "--ink", GRID: "--line", BLANK: "--blank"} | {c: f"--s{n}" for n, c in enumerate(SERIES)}
_STYLE = re.compile(r'style="[^"<>]*"')
_FILL = re.compile(r'fill="(#[0-9a-f]{6})"')  # of the ground of a hatch
_GROUP_ID = re.compile(r'<g id="[^"<>]*">')
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names come from outside: "$" is a dollar
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "hatch.linewidth": 0.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
_NAME = 28  # characters of a label: chosen, longer ones push the picture aside


@dataclass(frozen=True)
class Table:
    """The numbers of a picture, for those who do not see it."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """One picture. description: what it shows in words, read aloud in its place and printed below it."""

    key: str
    title: str
    description: str
    svg: Markup
    table: Table


def draw(key: str, size: tuple[float, float], paint: Callable[[Canvas], None]) -> Markup:
    """The picture as an <svg> that has no address, no identity and no fixed size. size: inches."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that our font lacks is drawn by the browser's
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        mpl.rcParams["svg.hashsalt"] = key
        canvas = Canvas(figsize=size, layout="constrained")
        paint(canvas)
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        canvas.savefig(file, format="svg", transparent=True, metadata=nothing)
    return _inlined(file.getvalue())


def _inlined(file: str) -> Markup:
    """Without the head of a file of its own; the page names the picture."""
    body = file[file.index(">", file.index("<svg")) + 1 :]
    box = re.search(r'viewBox="([0-9. -]+)"', file)
    inner = _GROUP_ID.sub("<g>", _STYLE.sub(_coloured, _FILL.sub(r'style="fill: \1"', body))).replace(
        "xlink:href", "href"
    )
    seen = box[1] if box else "0 0 100 100"
    width = float(seen.split()[2])
    return Markup(f'<svg viewBox="{seen}" style="width:{width * 4 / 3:.0f}px" aria-hidden="true">{inner}')


def _coloured(style: re.Match[str]) -> str:
    return re.sub("#01021[0-7]|#01020[345]", lambda colour: f"var({_VARIABLES[colour[0]]})", style[0])


def named(name: str) -> str:
    """A name as short as a picture has room for."""
    clean = "".join(c if c.isprintable() else "?" for c in name)
    return clean if len(clean) <= _NAME else clean[: _NAME - 3] + "..."


def axis(axes: Axes, x: str, y: str) -> None:
    """Its labels, and a grid behind what is drawn."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_axisbelow(True)
    axes.grid(visible=True, linewidth=0.5)
