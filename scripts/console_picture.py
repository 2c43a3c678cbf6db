"""Makes docs/images/console.png: the page of a topic, of a queue in memory after a quarter of an hour of traffic.

python -m scripts.console_picture
"""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.support.console_shop import SHOP, filled_shop
from tests.support.console_world import served

FILE = Path(__file__).parents[1] / "docs/images/console.png"
_CHROMIUM = "/usr/bin/chromium"
_STEPS = 88
_SIZE = {"width": 1280, "height": 900}


def main() -> None:
    """Write the picture."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    with (
        filled_shop(steps=_STEPS) as queue,
        served(queue, allows_actions=True) as (base, console),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=_SIZE, color_scheme="light")  # type: ignore[arg-type]
        page.goto(f"{base}/enter?token={console.entrance.sessions.entry_token()}")
        page.goto(f"{base}/ns/{SHOP}/topic/payments.capture?tab=dead")
        page.locator(".chart canvas").first.wait_for()
        page.screenshot(path=FILE)
        browser.close()


if __name__ == "__main__":
    main()
