"""The page in a real browser: Debian's Chromium, if it is installed (apt-get install chromium chromium-driver)."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bakeoff.judging.compare import compare
from bakeoff.judging.judgement import judge
from bakeoff.records.metrics import Metric, Metrics
from bakeoff.records.schema import Status
from bakeoff.reports.comparison import to_page as comparison_to_page
from bakeoff.reports.run_report import to_page
from bakeoff.reports.site import PublishedRun, to_index
from bakeoff.why.explanation import explain
from bakeoff.why.explanation_text import explanation_to_page
from tests.judging.test_precisions import records as precision_records
from tests.reports.samples import cell, conv_on_cpu, failed, judged, ok, over_processes, report, roofline, suite
from tests.reports.test_page import hostile
from tests.reports.test_suite_report import loaded_records as load_records
from tests.why.test_explanation import EAGER, FUSED, beside

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (it comes with the test extra)")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs a browser: apt-get install chromium chromium-driver"
)

PHONE, DESK = (375, 800), (1280, 900)


class Reader:
    """Opens a page, points, types, and looks at what there is to see."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver = driver
        self.folder = folder

    def opens(self, html: str, size: tuple[int, int] = DESK, dark: bool = False) -> None:
        file = self.folder / "page.html"
        file.write_text(html, encoding="utf-8")
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        self.driver.get(file.as_uri())

    def asks(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(f"return {script}", *arguments)

    def finds(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def clicks(self, selector: str, place: int = 0) -> None:
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", self.finds(selector)[place])
        self.finds(selector)[place].click()

    def reads(self, selector: str) -> list[str]:
        return [element.text for element in self.finds(selector) if element.is_displayed()]

    @property
    def names(self) -> list[str]:
        """Return the names of the rows that can be seen."""
        return self.reads("tr.cell .unfold")

    @property
    def console(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    browser = webdriver.Chrome(options=options, service=service)
    yield browser
    browser.quit()


@pytest.fixture
def reader(driver: Any, tmp_path: Path) -> Iterator[Reader]:
    """Yield a reader, and fail if the page wrote anything to the console."""
    found = Reader(driver, tmp_path)
    yield found
    assert found.console == []


@pytest.fixture(scope="module")
def html() -> str:
    records = [
        ok(cell(), over_processes(2.0), roofline=roofline(2.0)),
        ok(cell("onnx"), over_processes(1.0, seed=1), build_s=2.0, roofline=roofline(1.0)),
        ok(cell("inductor"), over_processes(1.5, seed=2), build_s=20.0, roofline=roofline(1.5)),
        failed(cell("openvino"), "crash", "died in load, signal 11", log_tail="Segmentation fault"),  # type: ignore[arg-type]
    ]
    return to_page(judged(records))


def test_a_header_sorts_up_and_down_and_keeps_what_has_no_value_last(reader: Reader, html: str) -> None:
    reader.opens(html)
    assert reader.names == ["onnx", "inductor", "eager", "openvino"]
    header = "//th[.//span[text()='build']]"
    button = reader.driver.find_element("xpath", f"{header}//button")
    button.click()
    assert reader.names == ["eager", "onnx", "inductor", "openvino"]
    assert reader.driver.find_element("xpath", header).get_attribute("aria-sort") == "ascending"
    button.click()
    assert reader.names == ["inductor", "onnx", "eager", "openvino"]
    assert [each.get_attribute("aria-sort") for each in reader.finds("th[aria-sort]")] == ["descending"]


def test_the_filter_hides_rows_and_counts_them(reader: Reader, html: str) -> None:
    reader.opens(html)
    (box,) = reader.finds(".filter")
    box.send_keys("in")
    assert reader.names == ["inductor", "openvino"] and reader.reads(".count") == ["2 of 4"]
    box.clear()
    reader.finds(".status-filter option")[2].click()
    assert reader.names == ["openvino"] and reader.reads(".count") == ["1 of 4"]


def test_a_site_of_runs_is_searched_without_a_network_and_fits_a_phone(reader: Reader) -> None:
    runs = [PublishedRun(judged(), "runs/first.html"), PublishedRun(judge(report(suite(2))), "runs/second.html")]
    endings = zip(("eager", "onnx", "openvino"), (Status.INCORRECT, Status.UNSUPPORTED, Status.ERROR), strict=True)
    nothing = judged([failed(cell(backend), status, "no") for backend, status in endings])
    reader.opens(to_index([*runs, PublishedRun(nothing, "runs/third.html")]), PHONE)
    assert reader.asks("document.documentElement.scrollWidth") <= PHONE[0]
    every = len(reader.names)
    reader.finds(".filter")[0].send_keys("conv")
    assert 0 < len(reader.names) < every and all("conv" in name for name in reader.names)
    reader.finds(".unfold")[0].send_keys("\ue007")  # Enter
    assert reader.finds(".unfolded a")[0].get_attribute("href").endswith("runs/first.html")
    assert reader.console == []


def test_a_row_unfolds_by_keyboard_and_moves_with_its_row(reader: Reader, html: str) -> None:
    reader.opens(html)
    assert reader.reads(".unfolded") == []
    button = reader.finds(".unfold")[3]
    button.send_keys("\ue007")  # Enter
    (unfolded,) = reader.reads(".unfolded")
    assert "Segmentation fault" in unfolded and button.get_attribute("aria-expanded") == "true"
    reader.clicks(".sort", 1)
    shown = "[...document.querySelectorAll('.cells tbody tr')].filter(row => !row.hidden)"
    assert reader.asks(f"{shown}.findIndex(row => row.matches('.unfolded'))") == 4  # the last of them, after its row
    reader.clicks(".unfold-all")
    assert len(reader.reads(".unfolded")) == 4
    reader.finds(".filter")[0].send_keys("onnx")
    assert len(reader.reads(".unfolded")) == 1


def test_the_first_key_leads_past_the_head(reader: Reader, html: str) -> None:
    reader.opens(html)
    reader.finds("body")[0].send_keys("\ue004")  # Tab
    link = reader.driver.switch_to.active_element
    assert link.text == "Skip to the answer"
    link.send_keys("\ue007")
    assert reader.asks("document.activeElement.id") == "main"


def test_the_slider_names_the_cheapest(reader: Reader, html: str) -> None:
    reader.opens(html)
    slider = reader.finds("input[type=range]")[0]
    said = [reader.reads("output")[0]]
    place = [reader.finds(".cursor")[0].get_attribute("transform")]
    for key in ("\ue010", "\ue011"):  # End, Home
        slider.send_keys(key)
        said.append(reader.reads("output")[0])
        place.append(reader.finds(".cursor")[0].get_attribute("transform"))
    assert [text.split(":")[0] for text in said] == [f"{calls} from a cold start" for calls in
                                                    ("1,000 calls", "10,000,000 calls", "1 call")]  # fmt: skip
    assert "onnx costs least" in said[1] and "eager costs least" in said[2]
    assert len(set(place)) == 3
    assert slider.get_attribute("aria-valuetext") == said[2]
    assert reader.reads(".totals li")[0].split()[0] == "eager"


def test_light_and_dark_follow_the_system_and_the_button(reader: Reader, html: str) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    reader.opens(html)
    light = reader.asks(background)
    reader.opens(html, dark=True)
    dark = reader.asks(background)
    assert light == "rgb(255, 255, 255)" and dark != light
    assert reader.reads("#theme") == ["Light theme"]
    reader.clicks("#theme")
    assert reader.asks(background) == light and reader.reads("#theme") == ["Dark theme"]
    reader.opens(html, dark=True)
    assert reader.asks(background) == light  # it is remembered
    reader.driver.execute_script("localStorage.clear()")


def test_on_a_phone_no_page_is_wider_than_the_screen(reader: Reader, html: str) -> None:
    pages = [html, to_page(judged()), to_page(judge(hostile())), compared()]
    for page in pages:
        reader.opens(page, PHONE)
        reader.clicks(".unfold-all")
        assert reader.asks("document.documentElement.scrollWidth") == PHONE[0]


def test_on_a_small_laptop_every_column_of_the_table_is_seen(reader: Reader) -> None:
    records = [
        ok(cell(), over_processes(2.0), roofline=roofline(2.0)),
        ok(cell("inductor", "reduce-overhead"), over_processes(1.99, seed=1), build_s=20.0, roofline=roofline(1.99)),
        ok(cell("onnx"), over_processes(1.9999, seed=2), build_s=200.0, roofline=roofline(1.0)),
    ]
    reader.opens(to_page(judged(records)), (1180, 900))
    (overflow,) = reader.asks(
        "[...document.querySelectorAll('.contest > .scroll')].map(each => each.scrollWidth - each.clientWidth)"
    )
    assert overflow == 0


def test_what_a_mark_says_is_shown_by_pointer_and_by_keyboard(reader: Reader, html: str) -> None:
    reader.opens(html)
    assert reader.reads("#tip") == []
    mark = reader.finds("figure[data-chart=latency] .mark")[0]
    reader.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    webdriver.ActionChains(reader.driver).move_to_element(mark).perform()
    (tip,) = reader.reads("#tip")
    assert tip.startswith("onnx: 1.0") and tip.endswith("2,880 calls in 3 processes")
    picture = reader.finds("figure[data-chart=roofline] svg")[0]
    picture.send_keys("\ue015")  # arrow down
    assert "of a large product" in reader.reads("#tip")[0]
    picture.send_keys("\ue015")
    assert reader.reads("#tip")[0].startswith("onnx: ")
    picture.send_keys("\ue00c")  # Escape
    assert reader.reads("#tip") == []


def test_the_legend_picks_one_configuration_out_of_all_charts(reader: Reader, html: str) -> None:
    reader.opens(html)
    (button,) = (each for each in reader.finds(".legend button") if each.text == "inductor")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    key = button.get_attribute("data-k")
    lit = reader.asks("[...document.querySelectorAll('.lit .mark.on[data-k]')].map(mark => mark.dataset.k)")
    assert set(lit) == {key} and len(lit) > 8
    button.click()
    assert reader.finds(".lit") == []


def test_no_label_of_a_chart_is_written_over_another(reader: Reader, html: str) -> None:
    overlaps = """(() => {
        const beside = (a, b) => a.right < b.left + 1 || b.right < a.left + 1;
        const below = (a, b) => a.bottom < b.top + 4 || b.bottom < a.top + 4;
        const cross = (a, b) => !beside(a, b) && !below(a, b);
        const found = [];
        for (const svg of document.querySelectorAll('.chart svg')) {
            const texts = [...svg.querySelectorAll('text')];
            const boxes = texts.map(text => text.getBoundingClientRect());
            for (let one = 0; one < texts.length; one++)
                for (let other = one + 1; other < texts.length; other++)
                    if (cross(boxes[one], boxes[other]))
                        found.push(`${texts[one].textContent} / ${texts[other].textContent}`);
        }
        return found;
    })()"""
    for page in (html, to_page(judged()), compared()):
        reader.opens(page)
        assert reader.asks(overlaps) == []


def test_markup_from_outside_runs_nothing(reader: Reader) -> None:
    made = hostile()
    for page in (to_page(judge(made)), compared()):
        reader.opens(page)
        assert reader.asks("window.pwned") is None
        assert reader.finds("img") == []
    assert reader.names


def test_without_scripts_everything_is_there_and_printed(reader: Reader, html: str) -> None:
    reader.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        reader.opens(html)
        assert len(reader.finds(".unfolded")) == 4
        pdf = reader.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    finally:
        reader.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert len(pdf) > 50_000


def compared() -> str:
    """Return a page that compares two runs; the name of the new one is markup."""
    base = report([ok(cell(), over_processes(1.7)), ok(cell("onnx"), over_processes(0.9, seed=1))], run_id="base")
    new = report([ok(cell(), over_processes(1.7)), ok(cell("onnx"), over_processes(1.1, seed=1))], run_id="<img src=x>")
    return comparison_to_page(compare(base, new))


def test_the_map_of_models_sorts_filters_and_leads_to_the_model(reader: Reader) -> None:
    reader.opens(to_page(judge(report(suite(4)))))
    shown = "[...document.querySelectorAll('.map tr.cell')].filter(row => !row.hidden)"
    names = f"{shown}.map(row => row.cells[0].innerText.trim())"
    assert reader.asks(names) == ["net0", "net1", "net2", "net3"]
    reader.driver.find_element(
        "xpath", "//table[contains(@class, 'map')]//th[.//span[text()='openvino']]//button"
    ).click()
    assert sorted(reader.asks(names)[:2]) == ["net0", "net1"]  # what failed stands last
    reader.finds(".filter")[0].send_keys("crash")
    assert sorted(reader.asks(names)) == ["net2", "net3"]
    reader.finds(".filter")[0].clear()
    option = next(each for each in reader.finds(".status-filter option") if each.text == "all passed")
    option.click()
    assert reader.asks(names) == ["net0"]
    next(each for each in reader.finds(".map .unfold") if each.is_displayed()).click()
    next(each for each in reader.finds(".map .unfolded a") if each.is_displayed()).click()
    assert reader.asks("location.hash") == "#contest-1"
    colour = "getComputedStyle(document.querySelector('.map td.heat')).backgroundColor"
    assert reader.asks(colour) != "rgba(0, 0, 0, 0)"
    reader.opens(to_page(judge(report(suite(4)))), size=PHONE)
    assert reader.asks("document.documentElement.scrollWidth") <= PHONE[0]


AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"


def one_contest() -> str:
    return to_page(judged(conv_on_cpu()))


def models() -> str:
    return to_page(judge(report(suite(4))))


def under_load() -> str:
    return to_page(judge(report(load_records()).but(request={"load": "server", "price": "3.6/h"})))


def across_precisions() -> str:
    records = [
        each.but(
            metrics=Metrics(values={"top1": Metric.of_scores([1.0] * 60 + [0.0] * wrong)}),
            reference_metrics=Metrics(values={"top1": Metric.of_scores([1.0] * 60 + [1.0] * wrong)}),
        )
        for wrong, each in enumerate(precision_records())
    ]
    return to_page(judged(records))


def explained() -> str:
    cells = beside(FUSED, EAGER)
    return explanation_to_page(explain(cells), cells)


def site() -> str:
    return to_index([PublishedRun(judged(), "runs/first.html"), PublishedRun(judge(report(suite(2))), "runs/b.html")])


WIDE, NARROW = (1300, 900), (390, 844)


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm install --no-save axe-core")
@pytest.mark.parametrize(
    ("size", "dark"),
    [
        (WIDE, False),
        (NARROW, True),
        pytest.param(WIDE, True, marks=pytest.mark.slow),
        pytest.param(NARROW, False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("make", [one_contest, models, under_load, across_precisions, compared, explained, site])
def test_axe_finds_no_violation(reader: Reader, make: Callable[[], str], size: tuple[int, int], dark: bool) -> None:
    reader.opens(make(), size, dark)
    for button in reader.finds(".unfold-all"):
        button.click()
    reader.driver.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    reader.driver.execute_script(AXE.read_text())
    found = reader.driver.execute_async_script("axe.run().then(arguments[0])")
    told = [(each["id"], each["nodes"][0]["target"], len(each["nodes"])) for each in found["violations"]]
    assert told == [] and found["passes"]


@pytest.mark.parametrize("size", [PHONE, DESK])
def test_nested_modules_zoom_together_by_keys(reader: Reader, size: tuple[int, int]) -> None:
    cells = beside(FUSED, EAGER)
    reader.opens(explanation_to_page(explain(cells), cells), size)
    widths = """[...document.querySelectorAll('.boxes')].map((at) => {
        const widest = Math.max(...[...at.querySelectorAll('.box')].map((box) => box.offsetWidth));
        return Math.round(100 * widest / at.offsetWidth);
    })"""
    assert reader.asks(widths) == [33, 100]  # 1 ms beside 3 ms
    reader.finds(".box")[0].send_keys(*"\ue015")  # down: into the layers
    assert reader.reads("#pointed")[0].startswith("layers: 0.8000 ms in onnx, 80 % of its call")
    reader.driver.switch_to.active_element.send_keys("\ue007")  # Enter
    assert reader.asks(widths) == [33, 100]  # 0.8 ms beside 2.4 ms
    assert reader.asks("document.querySelectorAll('.boxes')[1].style.getPropertyValue('--scale')") == "0.8"
    reader.driver.switch_to.active_element.send_keys("\ue00c")  # Escape
    assert reader.asks("document.querySelectorAll('.boxes')[1].style.getPropertyValue('--scale')") == "1"
    assert reader.asks("document.documentElement.scrollWidth <= innerWidth")
