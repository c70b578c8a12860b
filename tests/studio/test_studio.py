"""The studio in a real browser, driven as a person would."""

import io
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import registry
from mintnet.cli import main
from mintnet.models import Classifier, Flow
from mintnet.models.deep import DeepConfig

pytest.importorskip("gradio")
sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Small models with fresh weights; the first is the one that the page opens with."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    deep = DeepConfig((1, 8, 8), filters=(4,), blocks=(1,), components=(2,), layers=(2,), classes=3)
    found = {
        "tiny": registry.tiny_flow(side=8, seed=3),
        "conditional": Flow(deep, None, levels=17).eval(),
        "classifier": Classifier.preset("digits").eval(),
    }
    for name, model in found.items():
        model.save(folder / name, data={"name": "digits"})
    return {name: str(folder / name) for name in found}


@pytest.fixture(scope="module")
def address(models: dict[str, str]) -> Iterator[str]:
    from mintnet.studio.page import serve
    from mintnet.studio.parts import Catalogue

    page, url = serve(Catalogue(*models.values()))
    yield url
    page.close(verbose=False)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=options)


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page, at which nothing may be asked of another host."""
    context = browser.new_context(viewport={"width": 1200, "height": 1000})
    outside: list[str] = []
    context.on("request", lambda r: outside.append(r.url) if _is_outside(r.url, address) else None)
    found = context.new_page()
    found.set_default_timeout(30_000)
    found.goto(address)
    found.wait_for_selector("#draw")
    yield found
    context.close()
    assert not outside


def _is_outside(url: str, address: str) -> bool:
    return not url.startswith((address, "data:", "blob:"))


def _view(page: Any, name: str, button: str) -> None:
    page.get_by_role("tab", name=name).click()
    page.click(button)


def _says(page: Any, words: str) -> str:
    return str(page.wait_for_selector(f"text={words}").inner_text())


def _picture(page: Any, label: str) -> np.ndarray:
    """The pixels of a picture that the page shows; it must not be of one colour."""
    name = "-".join(re.findall("[a-z0-9]+", label.lower()))
    image = page.locator(f"#{name} img").first
    image.wait_for()
    data = page.request.get(image.get_attribute("src")).body()
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert pixels.std() > 0
    return pixels


def _download(page: Any, words: str) -> bytes:
    with page.expect_download() as found:
        page.get_by_role("button", name=words).click()
    return Path(found.value.path()).read_bytes()


def _draw(page: Any, count: int, seed: int) -> None:
    page.get_by_label("Seed").fill(str(seed))
    page.get_by_label("number input for Pictures").fill(str(count))
    page.click("#draw")


def test_sample(page: Any, models: dict[str, str]) -> None:
    _draw(page, 6, 5)
    _says(page, "6 of 6 pictures verified")
    assert page.locator(".thumbnail-item").count() == 6
    wanted = Flow.load(models["tiny"]).sample(6, seed=5)
    with zipfile.ZipFile(io.BytesIO(_download(page, "Download as ZIP"))) as archive:
        pictures = [Image.open(archive.open(name)) for name in sorted(archive.namelist())]
    levels = np.stack([np.asarray(picture)[..., 0] for picture in pictures]) * (16 / 255)
    assert np.array_equal(levels.round().astype(np.uint8), wanted[:, 0].numpy())
    assert _download(page, "Download as PNG").startswith(b"\x89PNG")


def test_code_does_the_same(page: Any, models: dict[str, str]) -> None:
    _draw(page, 2, 4)
    page.get_by_role("button", name="Show the code").first.click()
    editor = page.locator(".cm-content").first
    editor.locator(".cm-line", has_text=re.compile(r"sample\(2, .*seed=4")).wait_for()
    found: dict[str, Any] = {}
    exec("\n".join(line.inner_text() for line in editor.locator(".cm-line").all()), found)
    assert torch.equal(found["images"], Flow.load(models["tiny"]).sample(2, seed=4))


def test_class_of_a_conditional_model(page: Any, models: dict[str, str]) -> None:
    page.get_by_label("Density model").click()
    page.get_by_role("option", name="/conditional").click()
    page.get_by_label("Class", exact=True).click()
    page.get_by_role("option", name="2", exact=True).click()
    _draw(page, 1, 1)
    _says(page, "1 of 1 pictures verified")
    page.get_by_role("button", name="Show the code").first.click()
    assert "labels=2" in page.locator(".cm-line", has_text="labels=2").first.inner_text()


def test_inspect(page: Any) -> None:
    _view(page, "Inspect", "#inspect")
    _says(page, "bits per dimension")
    _says(page, "byte for byte, verified")
    strong = _picture(page, "The map")
    _picture(page, "The code z")
    page.get_by_label("number input for Opacity of the map").fill("0")
    page.wait_for_timeout(1500)
    plain = _picture(page, "The map")
    assert np.array_equal(plain, _picture(page, "The way back"))
    assert not np.array_equal(plain, strong)


def test_between(page: Any) -> None:
    _view(page, "Between", "#between")
    _says(page, "9 pictures, all verified")
    middle = _picture(page, "The picture at the slider")
    page.get_by_label("number input for From one to the other").fill("0")
    page.wait_for_timeout(1500)
    assert not np.array_equal(_picture(page, "The picture at the slider"), middle)
    page.get_by_role("button", name="Two more corners").click()
    page.click("#between-four")
    _picture(page, "The 8 × 8 pictures between four")


def test_restore(page: Any) -> None:
    _view(page, "Restore", "#complete")
    _says(page, "take a picture first")
    page.click("#take")
    page.wait_for_timeout(3000)
    page.click("#complete")
    _says(page, "hides nothing")
    box = page.locator("#brush canvas").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=8)
    page.mouse.up()
    page.wait_for_timeout(1000)
    page.click("#complete")
    assert 0 < int(_says(page, "pixels completed").split()[0]) < 64
    _picture(page, "Their mean")
    _picture(page, "Where they differ")


def test_layers(page: Any) -> None:
    _view(page, "Layers", "#solve-layer")
    _says(page, "all 4 samples verified")
    _picture(page, "Residual against steps")
    page.click("#all-layers")
    assert "1×8×8" in _says(page, "lower MintLayer")


def test_explain(page: Any) -> None:
    _view(page, "Explain", "#explain")
    assert _picture(page, "Mapped back to pictures").shape[0] > 200
    assert re.search(r"\d+%", page.get_by_test_id("label-output-value").locator("..").inner_text())
    page.get_by_label("The class to go to").fill("eleven")
    page.click("#explain")
    _says(page, "expected another class to go to")


def test_keyboard_alone(page: Any) -> None:
    """Tab reaches the tabs and the button, Enter presses it."""
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.innerText"))
        if "draw" in reached:
            break
    assert {"draw", "Sample"} <= {str(name).strip() for name in reached}
    page.keyboard.press("Enter")
    _says(page, "16 of 16 pictures verified")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_narrow_page_is_readable(page: Any, address: str, theme: str) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{address}?__theme={theme}")
    page.wait_for_selector("#draw")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    heading = page.locator("h1").first
    ink = _luminance(heading.evaluate("e => getComputedStyle(e).color"))
    paper = _luminance(heading.evaluate(BACKGROUND))
    assert (paper > ink) == (theme == "light")
    assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) > 4.5


BACKGROUND = """e => {
    while (getComputedStyle(e).backgroundColor == "rgba(0, 0, 0, 0)") e = e.parentElement;
    return getComputedStyle(e).backgroundColor;
}"""


def _luminance(colour: str) -> float:
    values = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def test_two_users_at_once(page: Any, browser: Any, address: str, models: dict[str, str]) -> None:
    other = browser.new_page()
    other.goto(address)
    other.wait_for_selector("#draw")
    _draw(page, 20, 1)
    _draw(other, 3, 2)
    _says(page, "20 of 20 pictures verified")
    _says(other, "3 of 3 pictures verified")
    assert page.locator(".thumbnail-item").count() == 20
    assert other.locator(".thumbnail-item").count() == 3
    other.close()


def _huge_png() -> bytes:
    """A picture of 30,000 × 30,000 pixels in a file of a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        packed = struct.pack(">I", len(data)) + kind + data
        return packed + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 30000, 30000, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(30000 * (1 + 30000 // 8)))
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _broken_png() -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()[:1500]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"only text", "picture"), (_broken_png(), "damaged"), (_huge_png(), "pixels")],
    ids=["text", "broken", "huge"],
)
def test_bad_uploads_get_a_message(page: Any, content: bytes, words: str) -> None:
    page.get_by_role("tab", name="Inspect").click()
    file = {"name": "digit.png", "mimeType": "image/png", "buffer": content}
    page.locator("input[type=file]").first.set_input_files(files=[file])
    page.wait_for_timeout(2000)
    page.click("#inspect")
    message = page.get_by_test_id("toast-body").first
    message.wait_for()
    assert words in message.inner_text()
    page.reload()
    page.wait_for_selector("#draw")
    _draw(page, 1, 0)
    _says(page, "1 of 1 pictures verified")


@pytest.mark.parametrize(
    ("arguments", "words"), [(["no-such-model"], "no-such-model"), (["--port", "70000"], "--port")]
)
def test_mistakes(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["studio", "--no-browser", *arguments])
    assert words in (message := capsys.readouterr().err) and message.count("\n") == 1
