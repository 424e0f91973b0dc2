"""The page as a person meets it: in Debian's Chromium, on a screen, on a phone, on paper."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ncclcheck.fleet import page as fleet_page
from ncclcheck.fleet.answers import Fleet, SlowerNode
from ncclcheck.probes.facts import replace
from ncclcheck.reports.judgement.jsondoc import Recommendation
from ncclcheck.reports.output import html
from ncclcheck.reports.output.settings_forms import quoted
from tests.conftest import ROOT
from tests.helpers import stories
from tests.helpers.large_result import large

if TYPE_CHECKING:
    from playwright.sync_api import Browser

sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.timeout(300)
CHROMIUM = shutil.which("chromium")
SCREENS = {"screen": (1280, 800), "phone": (390, 844)}
VALUE = "=mlx5_0:1,mlx5_1:1"


class Opened:
    """A page, with what Chromium complained of and what it asked the network for."""

    def __init__(self, browser: Browser, file: Path, **how: Any) -> None:
        self.context = browser.new_context(**how)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda worker: self.complaints.append(worker.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Never skipped where the gate has installed it."""
    if CHROMIUM is None and not os.environ.get("LAB_REQUIRED"):
        pytest.skip("no chromium here")
    with sync_api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file() -> Path:
    """A result in which everything is there. It, its screenshots and its print stay in build/pages."""
    advised = Recommendation(
        variable="NCCL_IB_HCA", action="set", value=VALUE, why="two rails", evidence=["RDM004"], source="NCCL",
        basis="rule", gain="", risk="", valid_for="all versions", undo="unset NCCL_IB_HCA",
    )  # fmt: skip
    path = ROOT / "build/pages/report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html.text(replace(large(70), recommendations=[advised])))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_the_decision_is_seen_without_scrolling(browser: Browser, file: Path, screen: str, scheme: str) -> None:
    width, height = SCREENS[screen]
    opened = Opened(browser, file, viewport={"width": width, "height": height}, color_scheme=scheme)
    for place in ("#decision", "#first .remedy"):
        box = opened.page.locator(place).bounding_box()
        assert box is not None
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= height
        assert box["x"] + box["width"] <= width
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    for key in ("curve0", "pairs", "steps", "memory", "dataset"):
        assert opened.page.locator(f"#{key} svg").is_visible()
    shot = opened.page.screenshot(path=str(file.with_name(f"{screen}-{scheme}.png")))
    assert len(shot) > 10_000
    assert not opened.complaints
    assert opened.asked == [file.as_uri()]
    opened.context.close()


def test_ink_and_paper_follow_the_scheme(browser: Browser, file: Path) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        opened = Opened(browser, file, color_scheme=scheme)
        colour = "one => getComputedStyle(one).fill"
        colours[scheme] = [opened.page.locator("#pairs svg text").first.evaluate(colour)]
        colours[scheme].append(opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        opened.context.close()
    assert all(light != dark for light, dark in zip(colours["light"], colours["dark"], strict=True))


def test_copy_buttons_copy(browser: Browser, file: Path) -> None:
    opened = Opened(browser, file, permissions=["clipboard-read", "clipboard-write"])
    button = opened.page.locator("#settings .setting button.copy").first
    button.click()
    opened.page.wait_for_function("button => button.textContent === 'Copied'", arg=button.element_handle())
    assert opened.page.evaluate("navigator.clipboard.readText()") == f"export NCCL_IB_HCA={quoted(VALUE)}"
    assert not opened.complaints
    opened.context.close()


def test_it_reads_without_javascript(browser: Browser, file: Path) -> None:
    opened = Opened(browser, file, java_script_enabled=False)
    assert opened.page.locator("#decision").is_visible()
    assert not opened.page.locator("button.copy").first.is_visible()
    folded = opened.page.locator("#pairs details")
    assert not folded.locator("table").is_visible()
    folded.locator("summary").click()
    assert folded.locator("table").is_visible()
    opened.context.close()


def test_it_prints(browser: Browser, file: Path) -> None:
    opened = Opened(browser, file, color_scheme="dark")
    printed = opened.page.pdf(path=str(file.with_name("report.pdf")), format="A4")
    assert printed.startswith(b"%PDF-")
    opened.page.emulate_media(media="print")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not opened.page.locator("button.copy").first.is_visible()
    opened.context.close()


def test_a_thousand_nodes_open_at_once(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    path.write_text(html.text(large(1000)))
    opened = Opened(browser, path)
    timing = opened.page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    assert 0 < timing < 5000
    assert opened.page.locator("#decision").is_visible()
    assert not opened.complaints
    opened.context.close()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a-rank-that-became-slow", "h3: the job becomes slow"),
        ("a-rank-that-raised", "first: rank"),
        ("a-node-that-vanished", "its record breaks off"),
    ],
)
def test_the_time_line_of_a_watched_job(browser: Browser, tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / "box.html"
    path.write_text(html.text(stories.load(name).document))
    opened = Opened(browser, path, viewport={"width": 1280, "height": 800})
    drawn = opened.page.locator("#timeline svg")
    box = drawn.bounding_box()
    assert box is not None
    assert 200 < box["width"] <= 1280
    opened.page.locator("#timeline summary").click()
    assert opened.page.get_by_text(text).first.is_visible()
    assert not opened.complaints
    assert opened.asked == [path.as_uri()]
    opened.context.close()


def _slower(number: int) -> SlowerNode:
    """A node that loses a tenth over half a year, and has a long name."""
    weeks = [
        (f"2026-{1 + week // 4:02d}-{1 + 7 * (week % 4):02d}", 1.0 - 0.1 * max(0, week - 10) / 16)
        for week in range(26)
    ]
    return SlowerNode(
        serial="guid", node=f"{'rack-17-' * 12}{number}", metric="memory_gb_s", since=weeks[10][0], change=-0.1,
        slowly=True, recovered=False, before=2900.0, after=2610.0, trend=weeks,
    )  # fmt: skip


@pytest.fixture(scope="module")
def fleets(file: Path) -> Path:
    """A fleet's page with three trends."""
    fleet = Fleet(
        results=365, nodes=1000, first="2026-01-01", last="2026-07-01", repeats=[],
        slower=[_slower(number) for number in range(3)], together=[], upgrades=[],
    )  # fmt: skip
    path = file.with_name("fleet.html")
    path.write_text(fleet_page.page(fleet))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_trends_of_a_fleet_fit_the_screen_and_show_the_fall(
    browser: Browser, fleets: Path, screen: str, scheme: str
) -> None:
    width, height = SCREENS[screen]
    opened = Opened(browser, fleets, viewport={"width": width, "height": height}, color_scheme=scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    pictures = opened.page.locator("figure svg")
    assert pictures.count() == 3
    for picture in pictures.all():
        picture.scroll_into_view_if_needed()
        whole = picture.bounding_box()
        lines = [picture.locator(f".{name}").bounding_box() for name in ("line", "past", "since")]
        assert whole is not None
        for box in lines:
            assert box is not None
            assert whole["x"] <= box["x"] <= box["x"] + box["width"] <= whole["x"] + whole["width"]
        trend, past, since = lines
        assert trend is not None
        assert past is not None
        assert since is not None
        assert trend["y"] + trend["height"] > past["y"] + 20, "it ends well below its past"
        assert trend["x"] < since["x"] < trend["x"] + trend["width"], "the day of the change lies within"
    ink, ground = (
        opened.page.evaluate(f"getComputedStyle(document.querySelector('{which}')).{what}")
        for which, what in (("figure .line", "stroke"), ("body", "backgroundColor"))
    )
    assert ink != ground
    assert not opened.complaints
    assert opened.asked == [fleets.as_uri()]
    opened.page.screenshot(path=str(fleets.with_name(f"fleet-{screen}-{scheme}.png")))
    opened.context.close()
