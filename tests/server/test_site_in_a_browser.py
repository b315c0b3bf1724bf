"""The documentation in headless Chromium: its links, its search, its tables."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urldefrag, urljoin

import pytest
from tests.server.test_page_in_a_browser import PATIENCE, browser, pytestmark

pytest.importorskip("material", reason="mkdocs-material is not installed (extra `docs`)")
__all__ = ["browser", "pytestmark"]

ROOT = Path(__file__).resolve().parents[2]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the site, as it was just built."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page in whose scripts nothing may go wrong, and to which all is there."""
    context, wrong = browser.new_context(), list[str]()
    context.route("**/favicon.ico", lambda asked: asked.fulfill(status=204))  # no page names it
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
    page.on(
        "console",
        lambda said: (
            wrong.append(f"{said.location['url']}: {said.text}") if said.type == "error" else None
        ),
    )
    yield page
    context.close()
    assert wrong == []


def test_every_link_leads_to_what_is_there(site: str, page: Any) -> None:
    """All pages that can be reached from the first one, and the parts of pages that are named."""
    to_see, parts, links = [site], dict[str, set[str]](), set[tuple[str, str]]()
    outside = set[str]()
    while to_see:
        url = to_see.pop()
        if url in parts:
            continue
        page.goto(url)
        parts[url] = set(page.eval_on_selector_all("[id]", "all => all.map(each => each.id)"))
        for href in page.eval_on_selector_all("a[href]", "all => all.map(each => each.href)"):
            target, part = urldefrag(urljoin(url, href))
            if target.startswith(site):
                links.add((target, part))
                to_see.append(target)
            else:
                outside.add(target)
    assert len(parts) > 50
    assert not [(target, part) for target, part in links if part and part not in parts[target]]
    assert all(each.startswith("https://") for each in outside), outside


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("queue order", "interfaces/queue_order/"),
        ("length predictor", "interfaces/length_predictor/"),
    ],
)
def test_the_search_finds_the_page_of_a_slot(site: str, page: Any, asked: str, found: str) -> None:
    page.goto(site)
    page.fill("input[name=query]", asked)
    page.wait_for_selector(".md-search-result__item a")
    first = page.get_attribute(".md-search-result__item a", "href")
    assert urljoin(site, str(first)).startswith(site + found)


def shown(page: Any, table: str) -> list[list[str]]:
    """The cells of a table, as they are read."""
    script = "rows => rows.map(row => [...row.cells].map(each => each.innerText.trim()))"
    rows: list[list[str]] = page.eval_on_selector_all(f"{table} tr", script)
    return rows


def test_a_heading_of_the_league_sorts_its_table(site: str, page: Any) -> None:
    page.goto(site + "league.html")
    table = "#evictor ~ .scroll table.sort >> nth=0"
    head = page.locator(table).locator("th").nth(4)

    def changes() -> list[float]:
        cells = page.locator(table).locator("tbody tr td:nth-child(5)").all_inner_texts()
        return [float(found[0]) for each in cells if (found := re.match(r"[-+]?[\d.]+", each))]

    head.click()
    assert changes() == sorted(changes(), reverse=True)
    head.press("Enter")
    assert changes() == sorted(changes())
    assert head.get_attribute("aria-sort") == "ascending"


def test_the_page_of_a_slot_has_the_rows_of_the_league(site: str, page: Any) -> None:
    page.goto(site + "league.html")
    titles = "all => all.map(each => each.id)"
    divisions = page.eval_on_selector_all("h2[id]", titles)
    tables = {each: shown(page, f"h2#{each} + p + div table") for each in divisions}
    slots = [each for each in divisions if page.request.get(f"{site}interfaces/{each}/").ok]
    assert {"evictor", "queue_order", "victim"} <= {*slots}
    for slot in slots:
        page.goto(f"{site}interfaces/{slot}/")
        assert (
            shown(page, "h2#in-the-league ~ .md-typeset__scrollwrap table")[: len(tables[slot])]
            == tables[slot]
        )
