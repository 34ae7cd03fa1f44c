"""The page, in a browser: headless Chromium, where there is one."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from madao.report import read_run, write_report
from tests.helpers.browser import Browser, Page, chromium
from tests.helpers.run_directories import write_run

needs_browser = pytest.mark.skipif(chromium() is None, reason="needs Chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


Open = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Open pages, and check at the end that they had no errors and asked for nothing."""
    pages: list[Page] = []

    def open_page(path: Path, *arguments: Any, **settings: Any) -> Page:
        pages.append(browser.open(path, *arguments, **settings))
        return pages[-1]

    yield open_page
    for page in pages:
        assert page.console == page.requests == []
        page.close()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "a <i>strange</i> & name"
    return report(folder, write_run(folder, epochs=20))


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    errors = {"base": 0.06, "uniform": 0.05, "learned": 0.03}
    runs = [
        write_run(folder / f"{method}-{seed}", method, seed, 6, error=error * (1 + 0.1 * seed))
        for seed in (0, 1, 2)
        for method, error in errors.items()
    ]
    return report(folder, *runs)


def report(folder: Path, *runs: Path) -> Path:
    """Write the page of some runs, without its files of figures."""
    return write_report([read_run(run) for run in runs], folder / "report.html", figures=False)[0]


def figures(page: Page) -> dict[str, dict[str, Any]]:
    """What each figure shows, read off the page itself."""
    found = page.evaluate(
        """[...document.querySelectorAll("figure[data-chart]")].filter((f) => f.checkVisibility()).map((figure) => [
            figure.dataset.chart, {
              panels: figure.querySelectorAll(".panel svg").length,
              lines: [...figure.querySelectorAll(".series path")].map((line) => line.getTotalLength()),
              inside: [...figure.querySelectorAll(".series")].every((line) => {
                const [box, frame] = [line.getBBox(), line.ownerSVGElement.viewBox.baseVal];
                const [right, bottom] = [box.x + box.width, box.y + box.height];
                return box.x >= 0 && box.y >= 0 && right <= frame.width && bottom <= frame.height;
              }),
              names: [...new Set([...figure.querySelectorAll(".series")].map((line) => line.dataset.series))],
              ticks: figure.querySelectorAll(".tick").length,
              caption: figure.querySelector("figcaption").textContent,
            }])"""
    )
    return dict(found)


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 375])
def test_every_figure_is_drawn_and_nothing_leaves_the_file(opened: Open, one: Path, width: int, dark: bool) -> None:
    page = opened(one, width, 900, dark=dark, touch=width < 500)
    found = figures(page)
    assert [*found] == [
        *("selection", "application", "magnitude", "loss", "error", "norms", "signal", "residual", "time", "memory"),
    ]
    panels = {"selection": 2, "application": 2, "magnitude": 11}
    for name, figure in found.items():
        assert figure["panels"] == panels.get(name, 1), name
        assert figure["lines"], name
        assert min(figure["lines"]) > 5, name
        assert figure["inside"], name
        assert figure["ticks"] >= 4, name
        assert len(figure["caption"]) > 60, name
    assert len(found["selection"]["names"]) == 14
    assert found["error"]["names"] == ["training", "validation", "test"]
    images = page.evaluate("[...document.images].map((image) => image.complete && image.naturalWidth)")
    assert len(images) == 2 * 15 * 6 + 4 * 8
    assert set(images) == {12}
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page is wider than the window"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(22, 24, 27)" if dark else "rgb(255, 255, 255)")


@needs_browser
def test_text_can_be_read_in_both_schemes(opened: Open, one: Path) -> None:
    """WCAG contrast of text and lines against the ground: 4.5 and 3."""
    page = opened(one)
    for dark in (False, True):
        page.dark(dark)
        ratios = page.evaluate(
            """(() => {
              const styles = getComputedStyle(document.documentElement);
              const light = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
                .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
                .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
              const ground = light(styles.getPropertyValue("--ground").trim());
              const ratio = (name) => {
                const other = light(styles.getPropertyValue(name).trim());
                return (Math.max(ground, other) + 0.05) / (Math.min(ground, other) + 0.05);
              };
              return Object.fromEntries(["text", "quiet", "accent", ...Array.from({ length: 7 }, (_, i) => `c${i}`)]
                .map((name) => [name, ratio(`--${name}`)]));
            })()"""
        )
        assert min(ratios[name] for name in ("text", "quiet", "accent")) >= 4.5, (dark, ratios)
        assert min(ratios.values()) >= 3, (dark, ratios)


@needs_browser
def test_hover_tells_the_values_and_a_click_hides_a_series(opened: Open, one: Path) -> None:
    page = opened(one)
    page.hover('figure[data-chart="selection"] .panel svg', 0.99, 0.3)
    note = page.evaluate('document.querySelector(".note.open").innerText').split("\n")
    assert note[0] == "epoch 20"
    assert note[1:3] == ["Rotate", "80.8 %"]
    assert len(note) == 1 + 2 * 14
    key = 'figure[data-chart="selection"] .key:nth-child(5)'
    assert page.evaluate(f"document.querySelector('{key}').innerText") == "Rotate"
    page.click(key)
    assert page.evaluate(f"document.querySelector('{key}').ariaPressed") == "false"
    found = figures(page)
    assert "Rotate" not in found["selection"]["names"]
    assert "Rotate" in found["application"]["names"]
    page.click(key)
    assert "Rotate" in figures(page)["selection"]["names"]
    page.evaluate(f"document.querySelector('{key}').dispatchEvent(new MouseEvent('dblclick'))")
    assert figures(page)["selection"]["names"] == ["Rotate"]
    page.evaluate(f"document.querySelector('{key}').dispatchEvent(new MouseEvent('dblclick'))")
    assert len(figures(page)["selection"]["names"]) == 14


@needs_browser
def test_a_page_that_grows_narrow_is_drawn_anew(opened: Open, one: Path) -> None:
    page = opened(one, 1280)
    widths = []
    for width in (1280, 360):
        page.resize(width, 800)
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        widths.append(page.evaluate("document.querySelector('figure[data-chart=\"loss\"] .panel svg').clientWidth"))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert widths[0] > 900 > 360 > widths[1] > 250


@needs_browser
def test_several_runs_are_compared_and_each_unfolds(opened: Open, several: Path) -> None:
    page = opened(several)
    found = figures(page)
    assert [*found] == ["validation-1", "paired-1"]
    assert found["validation-1"]["names"] == ["base", "uniform", "learned"]
    assert found["paired-1"]["names"] == ["seed 0", "seed 1", "seed 2"]
    table = page.evaluate("document.querySelector('#comparison-1 table').innerText")
    assert re.search(r"learned\t3\.30 ± 0\.75\t−3\.30 ± 0\.75 \(3 seeds\)\t0\.003\t0, 1, 2", table), table
    assert page.evaluate("document.querySelectorAll('#comparison-1 .band').length") == 3
    lead = page.evaluate("document.querySelector('#comparison-1 .lead').innerText")
    assert lead.startswith("learned, seed 0: the policy prefers Rotate by "), lead
    page.click("body > details:nth-of-type(3) > summary")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert {"3-selection", "3-loss"} <= set(figures(page))


@needs_browser
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_killed_after_two_epochs_shows_what_is_there(opened: Open, tmp_path: Path, epochs: int) -> None:
    run = write_run(tmp_path / "run", epochs=epochs, ended=False)
    for name in ("outer.csv", "samples.npz", "timing.csv"):
        (run / name).unlink(missing_ok=True)
    page = opened(report(tmp_path, run))
    assert [*figures(page)] == ["selection", "application", "magnitude", "loss", "error"]
    warnings = page.evaluate("[...document.querySelectorAll('.warning')].map((each) => each.innerText)")
    assert "has not ended" in warnings[0]
    assert "--resume" in warnings[0]
    assert "samples.npz" in warnings[1]


PLACES = """(key) => {
  const figure = document.querySelector(`figure[data-chart="${key}"]`);
  const ticks = [...figure.querySelectorAll('text.tick')].filter((tick) => tick.getAttribute("text-anchor") === "end");
  return {
    ticks: ticks.map((tick) => [parseFloat(tick.textContent), tick.getAttribute("y") - 4]),
    below: [...figure.querySelectorAll('text.tick[text-anchor="middle"]')].slice(0, -1)
      .map((tick) => [parseFloat(tick.textContent), Number(tick.getAttribute("x"))]),
    ends: [...figure.querySelectorAll(".series")].map((line) => {
      const path = line.querySelector("path").getAttribute("d").split(/[ML]/).slice(-1)[0].split(",").map(Number);
      return [line.dataset.series, path];
    }),
  };
}"""


@needs_browser
def test_lines_lie_where_the_axes_say(opened: Open, one: Path) -> None:
    page = opened(one)
    places = page.evaluate(f"({PLACES})('error')")
    (low, y_low), *_, (high, y_high) = places["ticks"]
    (first, x_first), *_, (last, x_last) = places["below"]
    x, y = dict(places["ends"])["training"]
    assert low < high
    assert y_low > y_high, "the axis is upside down"
    assert low + (y - y_low) * (high - low) / (y_high - y_low) == pytest.approx(10.0, abs=0.1)  # percent
    assert first + (x - x_first) * (last - first) / (x_last - x_first) == pytest.approx(20, abs=0.1)
    norms = page.evaluate(f"({PLACES})('norms')")
    ticks = dict(norms["ticks"])
    assert ticks[0.1] - ticks[1] == pytest.approx(ticks[1] - ticks[10]), "decades are not equally long"
    assert ticks[0.1] > ticks[1]
    for (name, (_, y)), value in zip(norms["ends"], (1, 10, 0.1), strict=True):
        assert ticks[value] == pytest.approx(y, abs=0.5), name
    selection = 'figure[data-chart="selection"]'
    assert page.evaluate(f"document.querySelectorAll('{selection} .shade').length") == 2
    ends = page.evaluate(f"[...document.querySelectorAll('{selection} .end')].map((each) => each.textContent)")
    assert ends.count("Rotate") == 2


@needs_browser
def test_the_text_has_the_numbers_of_the_run(opened: Open, one: Path) -> None:
    page = opened(one)

    def text(selector: str) -> str:
        found: str = page.evaluate(f"document.querySelector('{selector}').innerText")
        return found.replace("\xa0", " ")

    assert {"5.00 %", "20 of 20", "learned", "digits"} <= set(text(".facts").split("\n"))
    assert "prefers Rotate by ±25° (81 % of draws)" in text(".lead")
    row = text("#policy tbody tr").split("\t")
    assert row == ["Rotate", "80.8 %", "62 %", "±25°", "80.8 %", "62 %", "±25°"]
    assert "90 outer steps, 0 skipped" in text("#health p")
    assert "90 truncated" in text("#health p")
    assert "60 s of training, 20 s of it for the policy: 1.50 ×" in text("#cost p")
    numbers = page.evaluate("document.querySelector('figure[data-chart=time] .numbers').textContent")
    assert "training22" in numbers
    assert "learning the policy11" in numbers


@needs_browser
def test_odd_data_is_drawn_or_left_out(opened: Open, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", epochs=3)
    lines = (run / "trajectory.jsonl").read_text().splitlines()
    lines[3] = lines[3].replace("0.0", "NaN", 1)
    (run / "trajectory.jsonl").write_text("\n".join(lines) + "\n")
    rows = (run / "outer.csv").read_text().replace(",0.9,", ",0.0,").replace(",10.0,", ",inf,")
    (run / "outer.csv").write_text(rows)
    page = opened(report(tmp_path, run))
    assert {"selection", "norms", "residual"} <= set(figures(page))


@needs_browser
def test_many_points_do_not_overflow_the_stack(opened: Open, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", epochs=4)
    lines = (run / "trajectory.jsonl").read_text().splitlines()
    entry = json.loads(lines[-1])
    more = [json.dumps({**entry, "epoch": epoch}) for epoch in range(5, 9000)]
    (run / "trajectory.jsonl").write_text("\n".join([*lines, *more]) + "\n")
    path = report(tmp_path, run)
    assert path.stat().st_size < 3e6
    page = opened(path)
    assert len(figures(page)) == 10


def test_names_cannot_break_out_of_the_page_or_its_script(one: Path, tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        runs.append(write_run(tmp_path / name, "base", epochs=1))
        config = runs[-1] / "config.yaml"
        config.write_text(config.read_text().replace("method: base", f"method: '</script><b>\"{name}'"))
    text = report(tmp_path, *runs).read_text()
    assert "script><b>" not in text.replace("\\u003c/script>\\u003cb>", "")
    assert text.count("</script>") == 2
    text = one.read_text()
    assert "<i>strange</i>" not in text
    assert "a &lt;i&gt;strange&lt;/i&gt; &amp; name" in text
    assert text.count("</script>") == 2


def test_a_policy_that_took_no_outer_step_is_not_praised(tmp_path: Path) -> None:
    learned, unmoved = (write_run(tmp_path / str(moved), error=0.03, learned=moved) for moved in (True, False))
    control = write_run(tmp_path / "control", "uniform")
    alone, beside = "The policy did not change: no outer step", "of these runs did not change"
    for runs, is_told in (([control, unmoved], True), ([control, learned], False), ([unmoved], True)):
        text = report(tmp_path, *runs).read_text()
        assert (alone in text) == is_told
        assert "raise <code>epochs</code>" in text or not is_told
        assert (beside in text) == (is_told and len(runs) > 1)
        assert ("learned: the policy prefers" in text) == (not is_told)  # beside others


def test_the_page_asks_for_nothing_from_outside(one: Path) -> None:
    text = one.read_text()
    assert "default-src 'none'" in text
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+", re.sub(r"data:[^\"]+", "", text)))
    assert addresses == {"http://www.w3.org"}  # the name of SVG's namespace, which is never fetched
