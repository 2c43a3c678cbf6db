"""The console in real Chromium: each page in both themes and at three widths, keys, dialogs, axe and hostile names.

Screenshots are kept in build/console. A missing browser is an error: without one the tests prove nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from foqs.testing import MemoryQueue
from tests.support.console_shop import HOSTILE, SHOP, add_hostile_topics, filled_shop
from tests.support.console_world import served

pytestmark = [pytest.mark.deep]
_ROOT = Path(__file__).parents[2]
_AXE = _ROOT / "tests/e2e/node/node_modules/axe-core/axe.min.js"
_SHOTS = _ROOT / "build/console"
_CHROMIUM = "/usr/bin/chromium"
_STEPS = 24
WIDTHS = (400, 1280, 1440)
_TOPIC = "payments.capture"


class Visit:
    """A signed-in browser window, with everything that its pages have complained about."""

    def __init__(self, browser: Browser, site: tuple[str, Any], *, width: int = 1440, theme: str = "light") -> None:
        self.base, console = site
        # Animations off: a screenshot in the midst of one differs each time.
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=theme,
            reduced_motion="reduce",  # type: ignore[arg-type]
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.problems: list[str] = []
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.problems.append(f"alert: {dialog.message}"), dialog.dismiss()))
        self.strangers: list[str] = []
        self.page.on("request", lambda r: None if r.url.startswith(self.base) else self.strangers.append(r.url))
        self.page.goto(f"{self.base}/enter?token={console.entrance.sessions.entry_token()}")

    def go(self, path: str) -> Page:
        answer = self.page.goto(self.base + path)
        assert answer is not None
        assert answer.status == 200, f"{path}: {answer.status} {self.page.inner_text('body')[:500]}"
        return self.page

    def check(self) -> None:
        assert self.problems == []
        assert self.strangers == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def queue() -> Iterator[MemoryQueue]:
    with filled_shop(steps=_STEPS) as queue:
        add_hostile_topics(queue)
        yield queue


@pytest.fixture(scope="module")
def site(queue: MemoryQueue) -> Iterator[tuple[str, Any]]:
    with served(queue, allows_actions=True) as site:
        yield site


@pytest.fixture(scope="module")
def paths(queue: MemoryQueue) -> dict[str, str]:
    """All pages, each with a name."""
    admin = queue.admin()
    dead = admin.list_dead_letters(SHOP, _TOPIC, 1).items[0]
    job = admin.create_job(SHOP, "nightly-load", detail="by the shop")
    found = {
        "overview": "/", "topics": f"/ns/{SHOP}/topics", "topics-filtered": f"/ns/{SHOP}/topics?filter=e*&show=stuck",
        "topic": f"/ns/{SHOP}/topic/{_TOPIC}", "item": f"/ns/{SHOP}/item/{dead.id}",
        "consumers": f"/ns/{SHOP}/consumers", "jobs": f"/ns/{SHOP}/jobs", "job": f"/ns/{SHOP}/jobs/{job.id}",
        "cluster": "/cluster", "audit": "/audit", "act": f"/ns/{SHOP}/act/limits?topic={_TOPIC}",
    }  # fmt: skip
    return found | {f"topic-{tab}": f"/ns/{SHOP}/topic/{_TOPIC}?tab={tab}" for tab in ("leased", "delayed", "dead")}


def _axe(page: Page) -> list[str]:
    """Return the violations that axe finds, in words."""
    page.evaluate(_AXE.read_text())
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [
        f"{one['id']}: {one['help']}: " + "; ".join(node["html"][:200] for node in one["nodes"][:3]) for one in found
    ]


_WIDE = """() => [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1
  && !e.closest('.scroll, .cli, .tabs, .side'))
  .map(e => e.tagName + '.' + e.className + ': ' + e.textContent.slice(0, 60)).slice(0, 5)"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_page_is_whole_in_both_themes_without_sideways_scroll(
    browser: Browser, site: tuple[str, Any], paths: dict[str, str], theme: str
) -> None:
    _SHOTS.mkdir(parents=True, exist_ok=True)
    found = []
    for width in WIDTHS:
        visit = Visit(browser, site, width=width, theme=theme)
        for name, path in paths.items():
            page = visit.go(path)
            assert page.evaluate("document.documentElement.dataset.theme") == theme
            page.screenshot(path=_SHOTS / f"{name}-{theme}-{width}.png", full_page=True)
            if page.evaluate("document.documentElement.scrollWidth") > width:
                found.append(f"{name} at {width}: {page.evaluate(_WIDE)}")
            if width == max(WIDTHS):
                found += [f"{name} at {width}: {one}" for one in _axe(page)]
        visit.check()
        visit.context.close()
    assert not found, "\n".join(found)


def test_keys_lead_through_the_pages(browser: Browser, site: tuple[str, Any]) -> None:
    visit = Visit(browser, site)
    page = visit.go(f"/ns/{SHOP}/topics")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    chosen = page.locator("tr[aria-selected=true]")
    expect(chosen).to_have_count(1)
    name = chosen.locator("td.name").inner_text()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(name)
    page.keyboard.press("g")
    page.keyboard.press("c")
    expect(page.locator("h1")).to_have_text("Cluster")
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page).to_have_url(re.compile(r"show=dead"))
    page.keyboard.press("f")
    page.keyboard.type("payments")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("/")
    page.keyboard.type(_TOPIC)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(_TOPIC)
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("?")
    expect(page.locator("#keys-help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys-help")).to_be_hidden()
    visit.check()


def test_a_redrive_shows_its_count_its_progress_and_its_undo(
    browser: Browser, site: tuple[str, Any], queue: MemoryQueue
) -> None:
    visit = Visit(browser, site)
    page = visit.go(f"/ns/{SHOP}/topic/{_TOPIC}?tab=dead")
    reason = page.locator(".reasonbar .t").first.inner_text()
    dead = [one for one in queue.admin().iterate_items(SHOP, topics=_TOPIC) if one.errors and one.died_at_ms]
    count = sum(one.errors[0].reason == reason for one in dead)
    page.locator(".reasonbar a").first.click()
    go = page.locator("#dialog #go")
    expect(go).to_have_text(f"Redrive {count} items")
    page.screenshot(path=_SHOTS / "dialog-redrive.png")
    assert _axe(page) == []
    expect(page.locator("#dialog .cli code")).to_contain_text("--error-contains")
    expect(page.locator("#dialog .cli code")).to_contain_text("--in 60s")
    page.locator("#dialog select[name=rate]").select_option("100")
    expect(page.locator("#dialog .cli code")).to_contain_text("--items-per-second-max 100")
    page.locator("#dialog input[name=reason]").fill("PSP incident 4711")
    go.click()
    expect(page.locator("#dialog")).to_contain_text(f"Redrive of {count} items has begun.")
    queue.clock.advance(4_000)
    expect(page.locator("#dialog .said")).to_contain_text(f"{count} of {count} redriven")
    page.screenshot(path=_SHOTS / "dialog-progress.png")
    page.locator("#dialog").get_by_text("Undo").click()
    expect(page.locator("#dialog #go")).to_have_text("Undo the job")
    page.locator("#dialog #go").click()
    expect(page.locator("#dialog")).to_contain_text("The undo has begun.")
    queue.clock.advance(4_000)
    expect(page.locator("#dialog .said")).to_contain_text("buried again")
    page.keyboard.press("Escape")
    expect(page.locator("#dialog")).to_be_hidden()
    still = [one for one in queue.admin().iterate_items(SHOP, topics=_TOPIC) if one.died_at_ms]
    assert len(still) == len(dead)
    visit.check()


def test_names_and_contents_of_attackers_are_text(browser: Browser, site: tuple[str, Any], queue: MemoryQueue) -> None:
    visit = Visit(browser, site, width=400)
    admin = queue.admin()
    for name in HOSTILE:
        page = visit.go(f"/ns/{SHOP}/topics?show=dead&sort=name")
        link = page.locator("td.name a").filter(has_text=_shown(name)).first
        link.click()
        expect(page.locator("h1")).to_have_text(_shown(name))
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, name
        visit.go(page.url.removeprefix(visit.base) + ("&" if "?" in page.url else "?") + "tab=dead")
        expect(page.locator(".reasonbar .t").first).to_have_text("<img src=x onerror=alert(2)>\ufffd")
        item = admin.list_dead_letters(SHOP, name, 1).items[0]
        visit.go(f"/ns/{SHOP}/item/{item.id}")
        expect(page.locator("pre").first).to_contain_text(r"<script>alert(1)</script>\x1b[31m \u202e")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, name
    visit.go(f"/ns/{SHOP}/consumers")
    expect(visit.page.locator("tbody")).to_contain_text("<svg onload=alert(1)>")
    visit.page.screenshot(path=_SHOTS / "hostile-400.png", full_page=True)
    visit.check()


def _shown(name: str) -> str:
    return name.replace("\u202e", "\ufffd")


def test_pages_stay_alive_and_rest_while_somebody_reads(
    browser: Browser, site: tuple[str, Any], queue: MemoryQueue
) -> None:
    visit = Visit(browser, site)
    page = visit.go(f"/ns/{SHOP}/topic/thumbnails")
    ready = page.locator(".tile b").first
    before = ready.inner_text()
    page.keyboard.press("j")
    queue.client().enqueue(SHOP, "thumbnails", b"one more")
    with page.expect_response(lambda answer: answer.request.headers.get("hx-request") == "true"):
        pass
    expect(ready).not_to_have_text(before)
    expect(page.locator("tr[aria-selected=true]")).to_have_count(1)
    expect(page.locator(".chart canvas").first).to_be_visible()
    page.locator("h1").dblclick()  # It selects a word.
    expect(page.locator("#live")).to_contain_text("Paused")
    page.evaluate("getSelection().removeAllRanges()")
    expect(page.locator("#live")).to_contain_text("Live")
    visit.check()


def test_a_link_on_another_site_leads_to_its_page(browser: Browser, site: tuple[str, Any]) -> None:
    visit = Visit(browser, site)
    link = f'<a href="{visit.base}/ns/{SHOP}/topic/{_TOPIC}?tab=dead">look</a>'
    visit.page.route("http://chat.example/", lambda route: route.fulfill(content_type="text/html", body=link))
    visit.page.goto("http://chat.example/")
    visit.page.locator("a").click()
    expect(visit.page.locator("h1")).to_have_text(_TOPIC)
    assert visit.page.url.endswith("?tab=dead")
    assert visit.problems == []
    stranger = browser.new_context().new_page()
    stranger.goto(f"{visit.base}/ns/{SHOP}/topics")
    expect(stranger.locator("input[name=token]")).to_be_visible()
    stranger.wait_for_load_state("networkidle")
    expect(stranger.locator("input[name=token]")).to_be_visible()
