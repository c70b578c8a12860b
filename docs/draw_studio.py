"""Draw the picture of the page "The studio": python docs/draw_studio.py (needs Chromium)."""

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from mintnet.studio.page import serve
from mintnet.studio.parts import Catalogue

PLACE = Path(__file__).parent / "figures" / "studio.png"


def main() -> None:
    served, address = serve(Catalogue("mnist"))
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = chromium.new_page(viewport={"width": 1000, "height": 1020})
        page.goto(address)
        page.get_by_role("tab", name="Inspect").click()
        page.click("#inspect")
        page.wait_for_selector("text=byte for byte", timeout=120_000)
        page.wait_for_timeout(1500)
        page.screenshot(path=PLACE)
    served.close(verbose=False)


if __name__ == "__main__":
    main()
