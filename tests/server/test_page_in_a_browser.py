"""The page in headless Chromium: a chat and its blocks, for hands, eyes and screen readers."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.server.served import serve_process

from paged_plugins.notebook import watch

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed (extra `dev`)"
)
Page, Browser, expect = Any, Any, playwright.expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 60_000
"""Milliseconds for what takes far less, unless the machine is busy."""
KEY = "a key of this test"
PROMPT = "Once upon a time a block table told a scheduler about the cache of keys and values. " * 2

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.long,
    pytest.mark.skipif(
        CHROMIUM is None, reason="chromium is not installed (Debian's package `chromium`)"
    ),
]


SLOW_STEPS = """
import time
from typing import Literal

from paged_core.interfaces.observer import Observer
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.plugins.hooks import hookimpl


class SlowSettings(ComponentSettings):
    name: Literal["slow_steps"] = "slow_steps"


class SlowSteps(Observer):
    def __init__(self, options, context, /):
        pass

    def on_step(self, step, /):
        time.sleep(0.02)


@hookimpl
def paged_core_components():
    yield Component("observers", SlowSettings, "slow_steps:SlowSteps", summary="takes its time")
"""
"""A plugin with which the demo model takes so long that one can look on."""


def served_slowly(folder: Path) -> dict[str, str]:
    """Return the environment of a server that has the plugin."""
    (folder / "slow_steps.py").write_text(SLOW_STEPS)
    described = folder / "slow_steps-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: slow_steps\nVersion: 1\n")
    (described / "entry_points.txt").write_text("[paged_core]\nslow_steps = slow_steps\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture(scope="module")
def address(compiled_kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    observers = '["metrics", "live_view", "slow_steps"]'
    slowly = served_slowly(tmp_path_factory.mktemp("plugin"))
    with serve_process("--num-blocks", "256", "--observers", observers, **slowly) as served:
        yield f"http://127.0.0.1:{served.port()}"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Callable[..., Page]]:
    """Open the page in a context with these options; nothing may go wrong in its scripts."""
    contexts, wrong = [], []

    def open_page(url: str = address, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if "Security" in line.text else 0)
        page.goto(url)
        page.wait_for_selector("#state[data-state=ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def number(page: Page, kind: str) -> int:
    """Number of blocks of a kind, as the legend tells."""
    return int(page.inner_text(f"#legend [data-kind={kind}]").replace(",", ""))


def wait_for(page: Page, condition: str) -> None:
    """Wait until an expression is true; the page's policy forbids to evaluate one in it."""
    for _ in range(PATIENCE // 50):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{condition}: {page.inner_text('main')}")


def set_field(page: Page, name: str, value: str) -> None:
    page.eval_on_selector("#chat details", "details => { details.open = true; }")
    page.fill(f"[name={name}]", value)


KIND = "[...document.querySelectorAll('#legend [data-kind]')].find(b => b.dataset.kind === '%s')"


def wait_for_blocks(page: Page, kind: str, condition: str) -> None:
    wait_for(page, f"Number(({KIND % kind}).textContent.replaceAll(',', '')) {condition}")


class TestChat:
    def test_streams_while_its_blocks_come_are_shared_and_go(
        self, opened: Callable[..., Page]
    ) -> None:
        page = opened()
        set_field(page, "max_tokens", "900")
        page.check("[name=ignore_eos]")
        page.fill("#prompt", PROMPT)
        page.press("#prompt", "Enter")
        text = ".message.assistant .text"
        wait_for(page, f"document.querySelector('{text}')?.textContent.length > 0")
        before = len(page.inner_text(text))
        wait_for(page, f"document.querySelector('{text}').textContent.length > {before + 4}")
        assert page.get_attribute(".message.assistant", "aria-busy") == "true"
        wait_for_blocks(page, "held", "> 2")
        assert number(page, "shared") == 0

        page.evaluate(
            """(prompt) => {
                window.other = new AbortController();
                fetch("/v1/chat/completions", {
                    method: "POST", signal: window.other.signal,
                    headers: {"Content-Type": "application/json"},
                    body: JSON.stringify({
                        model: "demo", stream: true, max_tokens: 900, ignore_eos: true,
                        messages: [{role: "user", content: prompt}],
                    }),
                }).then((answer) => answer.text()).catch(() => {});
            }""",
            PROMPT,
        )
        wait_for_blocks(page, "shared", "> 1")
        wait_for(page, "document.querySelectorAll('#requests [role=progressbar]').length === 2")
        page.focus("#map")
        page.keyboard.press("Home")
        info = page.inner_text("#map-info")
        assert re.match(r"Block 0: request \S+, tokens \d+.\d+, shared by 2, cached, 1 hit", info)

        page.evaluate("window.other.abort()")
        page.click("#stop")
        page.wait_for_selector(".message.assistant .meta")
        assert "stopped" in page.inner_text(".message.assistant .meta")
        for kind in ("held", "shared"):
            wait_for_blocks(page, kind, "=== 0")
        assert number(page, "cached") > 2
        page.wait_for_selector("#requests .none")
        assert "Step" in page.inner_text("#steps-info")
        assert page.inner_text("#s-hits").endswith("%")

    def test_goes_on_to_its_end_and_says_what_it_took(self, opened: Callable[..., Page]) -> None:
        page = opened()
        set_field(page, "max_tokens", "5")
        page.fill("#prompt", "Hello")
        page.click("#send")
        page.wait_for_selector(".message.assistant .meta")
        meta = page.inner_text(".message.assistant .meta")
        assert re.search(r"\d tokens? ·", meta) and "cached" in meta
        assert page.is_hidden("#stop") and page.is_enabled("#send")
        assert page.inner_text("#chat-status").startswith("Answered: ")
        page.click("#again")
        wait_for(page, "document.querySelectorAll('.message').length === 2")
        page.wait_for_selector(".message.assistant .meta")
        page.click("#clear")
        assert page.locator(".message").count() == 0

    def test_shows_errors_as_the_server_says_them(self, opened: Callable[..., Page]) -> None:
        page = opened()
        set_field(page, "temperature", "-3")
        page.fill("#prompt", "Hello")
        page.click("#send")
        page.wait_for_selector(".error[role=alert]")
        assert "temperature" in page.inner_text(".error")
        assert page.is_enabled("#send")


def test_with_keys_the_browser_asks_for_one(opened: Callable[..., Page]) -> None:
    with serve_process("--num-blocks", "64", PAGED_CORE_API_KEY=KEY) as served:
        address = f"http://127.0.0.1:{served.port()}"
        page = opened(address, http_credentials={"username": "me", "password": KEY})
        page.wait_for_selector("#settings-rows tr")
        assert page.is_hidden("#key-form")


def test_asks_for_a_key_that_is_missing(opened: Callable[..., Page], browser: Browser) -> None:
    page = opened()
    keys: list[str | None] = []

    def answer(route: Any) -> None:
        keys.append(route.request.headers.get("authorization"))
        if keys[-1] is None:
            body = {"error": {"message": "a key is needed", "code": "invalid_api_key"}}
            route.fulfill(status=401, body=json.dumps(body), content_type="application/json")
        else:
            route.continue_()

    page.route("**/v1/models", answer)
    page.reload()
    page.wait_for_selector("#key-form:not([hidden])")
    page.fill("#key", KEY)
    page.press("#key", "Enter")
    wait_for(page, "document.querySelector('#p-model').value === 'demo'")
    assert keys == [None, f"Bearer {KEY}"]
    assert page.is_hidden("#key-form")


def test_leaves_while_it_is_hidden_and_goes_on_where_it_was(opened: Callable[..., Page]) -> None:
    page = opened()
    cursors: list[str | None] = []

    def answer(route: Any) -> None:
        cursors.append(route.request.headers.get("last-event-id"))
        if len(cursors) == 1:
            route.abort()
        else:
            route.continue_()

    def hide(hidden: bool) -> None:
        page.evaluate(
            """(hidden) => {
                Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
                document.dispatchEvent(new Event("visibilitychange"));
            }""",
            hidden,
        )

    page.route("**/live/events", answer)
    hide(True)
    page.wait_for_timeout(100)
    assert cursors == []
    hide(False)
    page.wait_for_selector("#state[data-state=unreachable]")
    page.wait_for_selector("#state[data-state=ready]")
    assert len(cursors) >= 2
    assert all(cursor and cursor.isdigit() for cursor in cursors)


class TestSettings:
    def test_say_where_each_is_from_and_can_be_found(self, opened: Callable[..., Page]) -> None:
        page = opened()
        first = page.inner_text("#settings-rows tr:first-child")
        assert "default" not in first
        row = page.locator("#settings-rows tr", has_text="num_blocks").first
        assert "256" in row.inner_text() and "--num-blocks" in row.inner_text()
        page.check("#changed-only")
        page.fill("#find-setting", "num_blocks")
        assert page.locator("#settings-rows tr:visible").count() == 1
        assert "policies" in page.inner_text("#plugin-rows")


CONTRASTS = """() => {
    const parse = (text) => {
        const canvas = document.createElement("canvas").getContext("2d");
        canvas.fillStyle = text;
        canvas.fillRect(0, 0, 1, 1);
        return canvas.getImageData(0, 0, 1, 1).data;
    };
    const light = ([r, g, b]) => {
        const parts = [r, g, b].map((part) => {
            const share = part / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const behind = (element) => {
        for (let each = element; each; each = each.parentElement) {
            const found = parse(getComputedStyle(each).backgroundColor);
            if (found[3] === 255) return found;
        }
        return parse("white");
    };
    const low = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue;
        if (element.closest("noscript, .skip, .unseen")) continue;
        const one = light(parse(getComputedStyle(element).color)), other = light(behind(element));
        const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (ratio < 4.5) low.push([texts.currentNode.data.trim(), Number(ratio.toFixed(2))]);
    }
    return low;
}"""
UNNAMED = """() => [
    ...document.querySelectorAll("input, select, textarea, button, a, canvas, section, [role]"),
].filter((each) => {
        const by = (each.getAttribute("aria-labelledby") ?? "").split(" ").filter(Boolean);
        const labels = [...(each.labels ?? [])].map((label) => label.textContent);
        const names = [...by.map((id) => document.getElementById(id)?.textContent ?? ""), ...labels,
            each.getAttribute("aria-label") ?? "", each.role === "status" ? "-" : "",
            each.matches("button, a") ? each.textContent : ""];
        return !names.join("").trim();
    }).map((each) => each.outerHTML.slice(0, 120))"""


class TestAccessibility:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_text_has_contrast(self, opened: Callable[..., Page], scheme: str) -> None:
        page = opened(color_scheme=scheme)
        page.wait_for_selector("#settings-rows tr")
        page.eval_on_selector("#chat details", "details => { details.open = true; }")
        assert page.evaluate(CONTRASTS) == []

    def test_has_landmarks_headings_and_names(self, opened: Callable[..., Page]) -> None:
        page = opened()
        for selector in ("main", "body > header", "nav[aria-label]", "h1", "html[lang]"):
            assert page.locator(selector).count() == 1, selector
        assert page.evaluate(UNNAMED) == []
        twice = """() => [...document.querySelectorAll("[id]")].map((each) => each.id)
            .filter((id, index, all) => all.indexOf(id) !== index)"""
        assert page.evaluate(twice) == []
        assert page.locator("[aria-live], [role=status], [role=log]").count() >= 4
        headings = page.evaluate(
            "[...document.querySelectorAll('h1, h2, h3')].map((each) => Number(each.tagName[1]))"
        )
        assert all(after - before <= 1 for before, after in pairwise(headings))

    def test_can_be_used_with_the_keyboard_alone(self, opened: Callable[..., Page]) -> None:
        page = opened()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate("document.activeElement.id || document.activeElement.tagName")
            )
        assert {"map", "steps", "find-setting", "changed-only", "theme", "prompt"} <= reached
        page.focus("#map")
        page.keyboard.press("End")
        assert page.inner_text("#map-info").startswith("Block 255 ")
        page.keyboard.press("ArrowLeft")
        assert page.inner_text("#map-info").startswith("Block 254 ")
        page.keyboard.press("Escape")
        assert page.inner_text("#map-info").startswith("Point at")


class TestLooks:
    def test_nothing_is_wider_than_a_phone(self, opened: Callable[..., Page]) -> None:
        page = opened(viewport={"width": 320, "height": 780}, has_touch=True, is_mobile=True)
        page.wait_for_selector("#plugin-rows tr")
        page.eval_on_selector("#chat details", "details => { details.open = true; }")
        assert page.evaluate("document.documentElement.scrollWidth") <= 320

    def test_follow_the_system_or_the_switch(self, opened: Callable[..., Page]) -> None:
        page = opened(color_scheme="dark")
        shade = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(shade)
        page.click("#theme")
        assert page.inner_text("#theme") == "Theme: light"
        light = page.evaluate(shade)
        assert light != dark
        page.reload()
        assert page.evaluate(shade) == light, "the choice is kept"
        page.click("#theme")
        assert (page.inner_text("#theme"), page.evaluate(shade)) == ("Theme: dark", dark)


MAP_OF = """async (num_blocks) => {
    const { BlockMap } = await import("/page/blocks.js");
    const map = new BlockMap((number) => `request ${number}`);
    map.reset({num_blocks, num_cells: num_blocks, num_host_cells: 0, block_size: 16});
    return map;
}"""


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_shows_4096_blocks_and_flashes_only_where_motion_is_wanted(
    opened: Callable[..., Page], motion: str
) -> None:
    page = opened(reduced_motion=motion)
    flashes, held, height = page.evaluate(
        f"""async () => {{
            const map = await ({MAP_OF})(4096);
            map.apply(Array.from({{length: 4096}}, (_, block) => [block, 1, block, 1, true, 0]));
            map.apply([[3, 1, 0, 2, true, 1]]);
            return [map.flashes.size, map.counts.held, map.canvas.clientHeight];
        }}"""
    )
    assert flashes == (0 if motion == "reduce" else 1)
    assert (held, number(page, "shared")) == (4095, 1)
    assert 0 < height <= 330


def test_a_notebook_shows_a_run_step_by_step(browser: Browser, tmp_path: Path) -> None:
    run = watch("chat", {"num_blocks": 128}, steps=range(100, 140))
    (tmp_path / "run.html").write_text(f"<!doctype html>{run._repr_html_()}")
    page, wrong = browser.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((tmp_path / "run.html").as_uri())
    shown, at = page.frame_locator("iframe"), page.frame_locator("iframe").locator("#at")
    for number, key in ((100, "Home"), (139, "End"), (138, "ArrowLeft")):
        at.press(key)
        expect(shown.locator("#steps-info")).to_contain_text(f"Step {number}:")
    totals = run.reports[38]["totals"]
    expect(shown.locator("#s-evicted")).to_have_text(f"{totals['evictions']} evictions")
    used = int(shown.locator("#s-used").inner_text())
    assert (used, wrong) == (128 - totals["free_blocks"], [])
    page.close()


MARKDOWN = """async (text) => {
    const { Rendered } = await import("/page/markdown.js");
    const rendered = new Rendered(document.createElement("div"), (change) => change());
    rendered.show(text);
    rendered.flush();
    return rendered.box.innerHTML;
}"""


def test_answers_are_read_as_markdown_and_never_as_html(opened: Callable[..., Page]) -> None:
    page = opened()
    link = '<a href="https://a.example/b_c_(d)" rel="noopener noreferrer" target="_blank">'
    for text, expected in {
        "a\nb  \n\nc": "<p>a\nb</p><p>c</p>",
        "# a #\n### b": "<h4>a</h4><h6>b</h6>",
        "**a *b*** and ~~c~~ __d__ _e_": "<p><strong>a <em>b</em></strong> and <del>c</del> "
        "<strong>d</strong> <em>e</em></p>",
        "a_b_c 2 * 3 * 4 ** 5 \\*d\\* ~e~ *f": "<p>a_b_c 2 * 3 * 4 ** 5 *d* ~e~ *f</p>",
        "`a*b*` `` ` `` `c": "<p><code>a*b*</code> <code>`</code> `c</p>",
        "```py\n<b>&\n\n  *a*": '<pre tabindex="0"><code>&lt;b&gt;&amp;\n\n  *a*</code></pre>',
        "- a\n  - b\n- c\n\n3. d": "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"
        '<ol start="3"><li>d</li></ol>',
        "> a\n> - b\n\n---": "<blockquote><p>a</p><ul><li>b</li></ul></blockquote><hr>",
        "[x](https://a.example/b_c_(d))": f"<p>{link}x</a></p>",
        "see https://a.example/b_c_(d).": f"<p>see {link.replace('(d)', '(d')}"
        "https://a.example/b_c_(d</a>).</p>",
        "![x](https://a.example/b_c_(d))": f"<p>{link}x</a></p>",
        "[x](javascript:a) [y](//b) [z](data:c)": "<p>[x](javascript:a) [y](//b) [z](data:c)</p>",
        "<img src=x onerror=a()> <script>b</script>": "<p>&lt;img src=x onerror=a()&gt; "
        "&lt;script&gt;b&lt;/script&gt;</p>",
        "|a|b|\n|-|-:|\n|1|*2*|": '<div class="scroll-x" tabindex="0"><table><thead><tr><th>a</th>'
        '<th class="num">b</th></tr></thead><tbody><tr><td>1</td><td class="num"><em>2</em></td>'
        "</tr></tbody></table></div>",
    }.items():
        assert page.evaluate(MARKDOWN, text) == expected, text
    for piece in ("*", "> ", "- ", "`", "[", "**a ", "_a", "\n- ", "[a](", "|", "![", "  - a\n"):
        assert page.evaluate(MARKDOWN, piece * 5000), piece


def test_everything_fits_into_small_windows(opened: Callable[..., Page]) -> None:
    page = opened(viewport={"width": 700, "height": 600})
    line = 'data: {"choices": [{"delta": {"content": "a\\n\\n"}}]}\n\n'
    end = 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body=line * 60 + end),
    )
    page.fill("#prompt", "x")
    page.click("#send")
    page.wait_for_selector(".message.assistant .meta")
    assert page.evaluate("document.getElementById('send').getBoundingClientRect().bottom") <= 600
    log = "document.getElementById('messages')"
    assert page.evaluate(f"{log}.scrollHeight - {log}.scrollTop - {log}.clientHeight") < 2
    assert not page.is_visible(".requests thead"), "there is none"
