"""What every output says over models, over sizes, and of a contest under load."""

import csv
import io
import itertools
import re
from pathlib import Path

import pytest

from bakeoff.commands.run import ending_of
from bakeoff.judging.dynamic import DynamicRange
from bakeoff.judging.judgement import Judgement, judge
from bakeoff.judging.suites import Suite
from bakeoff.records.load_samples import ServingSettings as Settings
from bakeoff.records.load_samples import TriedSettings
from bakeoff.records.schema import Cell, Range, Record, Report, Status
from bakeoff.reports import csv_files, headline, load_report, over_sizes, suite_report
from bakeoff.reports.charts.palette import Palette
from bakeoff.reports.csv_files import to_csv
from bakeoff.reports.json_answer import answer_of
from bakeoff.reports.run_report import MOST_SECTIONS, to_markdown, to_page
from bakeoff.reports.writer import render
from tests.judging.test_costs import carrying, window
from tests.reports.samples import cell, failed, judged, lived, ok, once, report, steady, suite
from tests.support.golden import same_as_golden
from tests.support.printed import reported

RECORDS = suite(5)


@pytest.fixture(scope="module")
def five() -> Judgement:
    return judged(RECORDS)


@pytest.fixture(scope="module")
def found(five: Judgement) -> Suite:
    return five.suites[0]


@pytest.fixture(scope="module")
def page(five: Judgement) -> str:
    return to_page(five)


@pytest.fixture(scope="module")
def many() -> Judgement:
    """More contests than the terminal prints sections of."""
    return judged(suite(MOST_SECTIONS + 1))


def words(text: str) -> str:
    return " ".join(text.split())


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_one_model_is_no_average() -> None:
    kept = [
        record if record.cell.model.endswith("net0") or record.cell.backend == "eager" else left_out(record)
        for record in RECORDS
    ]
    (interrupted,) = judged(kept).suites
    assert suite_report.finding(interrupted) == "there is no average yet: net0 is all that every ranked backend passed"


def left_out(record: Record) -> Record:
    return failed(record.cell, Status.NOT_REACHED, "interrupted")


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (Status.OOM, "OOM"),
        (Status.TIMEOUT, "timeout"),
        (Status.INCORRECT, "fail_accuracy"),
        (Status.CRASH, "fail_to_run"),
    ],
)
def test_dynamos_words_for_endings(ending: Status, said: str) -> None:
    records = [failed(cell(model=f"net{n}"), ending, "so") for n in range(4)]
    (row, *_) = table(csv_files.suite_tables(judged(records))["dynamo.csv"])
    assert row["accuracy"] == said


def test_the_page_colours_speedups_and_names_failures_by_their_status(page: str) -> None:
    rows = re.findall(r'<tr class="cell " data-status="(all passed|some failed)">(.*?)</tr>', page, re.DOTALL)
    assert [outcome for outcome, _ in rows].count("some failed") == 3 and len(rows) == 5
    cells = re.findall(r'<td class="number( heat)?( status bad)?"[^>]*><span class="value">([^<]*)<', rows[1][1])
    assert cells == [("", " status bad", "error"), (" heat", "", "1.60"), ("", "", "1.00"), ("", "", "1.00")]


def test_a_suite_without_a_baseline_has_latencies_and_no_speedups() -> None:
    records: list[Record] = [
        each.but(cell=each.cell.but(model=f"net{n}"))
        for n in range(4)
        for each in (lived(1.0, "onnx"), lived(2.0, "openvino"))
    ]
    made = judged(records)
    (alone,) = made.suites
    assert (
        suite_report.finding(alone)
        == "onnx is the fastest on average over the 4 models that every ranked backend passed"
    )
    assert suite_report.tile(alone.contests[0], "onnx").text.endswith(" ms")
    assert "mean speed-up" not in reported(made) and "None" not in to_markdown(made)


SPAN = {"seq": Range(low=16, built_at=64, high=64)}
GUARD = "0/0: tensor 'x' size mismatch at index 1"


def of(label: str, seq: int, dynamic: bool = False) -> Cell:
    made = cell(label, model="transformer", dimensions={"batch": 2, "seq": seq})
    return made.but(dynamic=SPAN) if dynamic else made


def records() -> list[Record]:
    """Return two sizes: onnx is 10 % and 30 % slower, inductor was compiled again, openvino serves no range."""
    found = []
    for seq, slower in ((64, 1.3), (16, 1.1)):  # the larger size comes first
        again = [GUARD] if seq == 16 else []
        found += [
            ok(of("eager", seq), steady([2.0, 2.0, 2.0])),
            ok(of("onnx", seq), steady([1.0, 1.0, 1.0]), build_s=3.0),
            ok(of("onnx", seq, dynamic=True), steady([slower] * 3), build_s=4.0),
            ok(of("inductor", seq), steady([0.5, 0.5, 0.5]), build_s=20.0),
            ok(of("inductor", seq, dynamic=True), steady([0.5] * 3), build_s=30.0, recompiled=again),
            ok(of("openvino", seq), steady([0.8, 0.8, 0.8]), build_s=1.0),
            failed(of("openvino", seq, dynamic=True), Status.UNSUPPORTED, "specialised axis 1 to 64"),
        ]  # fmt: skip
    return found


@pytest.fixture(scope="module")
def judgement() -> Judgement:
    return judge(report(records()))


@pytest.fixture(scope="module")
def range_of(judgement: Judgement) -> DynamicRange:
    (only,) = judgement.dynamic_ranges
    return only


def test_two_environments_share_a_range() -> None:
    """In each contest another one is the faster, and so stands first."""
    made = []
    for seq, faster in ((16, "old"), (64, "new")):
        made.append(ok(of("eager", seq), steady([2.0] * 3)))
        for name in ("old", "new"):
            built = of("onnx", seq, dynamic=True).but(environment=name)
            made.append(ok(built, steady([0.5 if name == faster else 1.0] * 3)))
    (only,) = judge(report(made)).dynamic_ranges
    assert [build.configuration for build in only.builds if build.is_needed] == ["onnx@old", "onnx@new"]
    assert only.names == ["seq 16", "seq 64"]


def changed(label: str, seqs: tuple[int, ...] = (16, 64), **update: object) -> DynamicRange:
    """Return the same range, in which the cells of this label are others at these sizes."""
    made = [
        record.but(**update) if record.cell.label == label and record.cell.dimensions["seq"] in seqs else record
        for record in records()
    ]
    (only,) = judge(report(made)).dynamic_ranges
    return only


def test_ranges_are_reported_as_before(range_of: DynamicRange) -> None:
    """Only a cost that is established is named, and a build that is wrong at one size serves some."""
    wrong = changed("onnx[dynamic]", (16,), status=Status.INCORRECT, reason="rmse")
    cases = {
        "known": range_of,
        "noisy": changed("onnx[dynamic]", bursts=steady([0.7, 1.0, 1.7])),
        "wrong at one": wrong,
    }
    found = [f"{name}: {over_sizes.of_range(each).finding}" for name, each in cases.items()]
    same_as_golden("ranges.txt", "\n".join(found))
    onnx = next(build for build in wrong.builds if build.configuration == "onnx")
    assert over_sizes.serves(onnx) == "some sizes (incorrect)" and len(onnx.costs) == 1


def test_the_csv_has_the_sizes_of_dynamic_builds(judgement: Judgement) -> None:
    header, *rows = to_csv(judgement).splitlines()
    assert {"dynamic", "recompiled", "over_own_build"} <= set(header.split(","))
    assert sum('"seq=16:64"' in row or "seq=16:64" in row for row in rows) == 6


def test_a_dynamic_build_has_the_hue_of_its_backend() -> None:
    spans = {"seq": {"low": 16, "high": 64, "built_at": 32}}
    single, dynamic = failed(cell("onnx"), Status.OOM, ""), failed(cell("onnx", dynamic=spans), Status.OOM, "")
    looks = Palette([single, dynamic])
    assert looks("onnx").light == Palette([single])("onnx").light != looks("onnx[dynamic]").light
    assert looks("onnx").marker != looks("onnx[dynamic]").marker


def test_a_report_without_the_new_fields_still_reads() -> None:
    kept = report(records()[:2]).model_dump(mode="json")
    for record in kept["records"]:
        del record["recompiled"], record["cell"]["dynamic"]
    assert Report.model_validate(kept).records[0].cell.label == "eager"


BEST = Settings(instances=2, threads=1, batch=4, wait_ms=2.0, options={"hint": "THROUGHPUT"})
TRIED = [
    TriedSettings(settings=Settings(threads=2), value=380.0, windows=[window(380.0), window(420.0, p99_ms=90.0)]),
    TriedSettings(settings=BEST, value=410.0),
]


def loaded_records() -> list[Record]:
    soak = [window(420.0, p99_ms=19.0, resident_bytes=2**29, joules=36.0, energy_source="RAPL") for _ in range(6)]
    return [
        carrying("openvino", [410, 414, 409], 2.0, settings=BEST, tried=TRIED, soak=soak, left_out=["no batches"]),
        carrying("onnx", [350, 352, 349], 1.0),
    ]


@pytest.fixture(scope="module")
def loaded_judgement() -> Judgement:
    request = {"load": "server", "price": "3.6/h"}
    return judge(report(loaded_records()).but(request=request))


def soaked(*at_less: tuple[float, float]) -> list[Record]:
    """Return a cell that misses in its soak at 420 requests/s, with a p99 in ms for each lower rate, and a slow one."""
    lower = [window(rate, p99_ms=p99_ms) for rate, p99_ms in at_less for _ in range(2)]
    soak = [window(420.0, p99_ms=25.0)] * 6
    return [carrying("openvino", [410, 414, 409], 2.0, soak=soak, lower_soak=lower), SLOW]


def soaked_at_less(p99_ms: float) -> list[Record]:
    soaks = {"soak": [window(4560.9, p99_ms=p99_ms)] * 6, "lower_soak": [window(4104.8, p99_ms=14.0)] * 2}
    return [carrying("onnx", [5400, 5402, 5401], **soaks, ceiling=None)]


def near_the_ceiling(*rates: float) -> list[Record]:
    near = carrying("onnx", [12_000, 12_010, 11_990], ceiling=22_789.4)
    return [near, carrying("eager", rates, 2.0, ceiling=1e6)]


SLOW, QUICK = carrying("eager", [200, 201, 199]), carrying("onnx", [500, 501, 502])
NOT_HELD = soaked((378.0, 24.0), (294.0, 24.0), (210.0, 24.0), (147.0, 24.0))[0]
HELD_BY_TURNS = carrying("onnx", [500, 501, 502], soak=[window(500.0, p99_ms=25.0)] * 6)
CASES: dict[str, list[Record]] = {
    "decided": loaded_records(),
    "as fast at single calls": [QUICK, carrying("eager", [350, 352, 349], 2.0)],
    "one process": [carrying("onnx", [4000]), carrying("eager", [350])],
    "a wide interval": [carrying("onnx", [200, 500, 800])],
    "no soak": soaked(),
    "a lower soak held": soaked((378.0, 14.0)),
    "the second lower soak held": soaked((378.0, 24.0), (294.0, 14.0)),
    "no lower soak held": soaked((378.0, 24.0), (294.0, 23.0)),
    "no soak of the only one held": [NOT_HELD],
    "no soak held, and another is quicker": [NOT_HELD, QUICK],
    "interrupted before lower soaks": [HELD_BY_TURNS, SLOW],
    "a soak at less than the turns": soaked_at_less(18.0),
    "a soak at less than the turns was missed": soaked_at_less(25.0),
    "near the generator's ceiling": near_the_ceiling(8000, 8010, 7990),
    "a tie near the generator's ceiling": near_the_ceiling(12_000, 11_990, 12_030),
    "open near the generator's ceiling": near_the_ceiling(5500, 12_000, 25_000),
    "nothing holds": [carrying("onnx", [], settings=None, reason="p99 < 20 ms does not hold")],
    "a first look": [carrying("openvino", [], settings=BEST, tried=TRIED)],
    "a first look that goes on": [carrying("openvino", [], settings=None, tried=[*TRIED[::-1]])],
    "no load": [once(1.0, "eager")],
}


def test_contests_under_load_are_reported_as_before() -> None:
    lines = []
    for (name, made), complete in itertools.product(CASES.items(), (True, False)):
        (contest,) = judge(report(made, complete=complete)).contests
        said = [headline.line(contest), *(load_report.sentences(contest, contest.load) if contest.load else ())]
        lines += [f"{name}{'' if complete else ', so far'}: {one}" for one in said]
    same_as_golden("load.txt", "\n".join(lines))


def test_a_run_in_which_no_cell_holds_the_objective_fails() -> None:
    held, missed = carrying("onnx", [500, 501, 502]), carrying("eager", [])
    assert ending_of(judge(report([held, missed])))[0] == 0
    assert ending_of(judge(report([missed])))[0] == 1


def test_a_cell_that_holds_no_soak_carries_nothing() -> None:
    """No output has a rate for it, and the run fails if there is no other cell."""
    found = judge(report([NOT_HELD]))
    assert "413" not in to_markdown(found)
    (answer,) = answer_of(found, Path("run")).contests
    assert (answer.outcome, answer.winner, answer.value) == ("nothing ranked", None, None)
    assert answer.under_load is not None and not answer.under_load.values
    assert ending_of(found)[0] == 1 and ending_of(judge(report([NOT_HELD, SLOW])))[0] == 0


def test_the_csv_has_a_row_for_each_cell(loaded_judgement: Judgement, tmp_path: Path) -> None:
    render(loaded_judgement, tmp_path, figures=False)
    rows = list(csv.DictReader((tmp_path / "load.csv").read_text().splitlines()))
    assert [(row["backend"], row["rank"]) for row in rows] == [("openvino", "1"), ("onnx", "2")]
    assert float(rows[0]["requests_per_s"]) == pytest.approx(413, abs=1)
    assert float(rows[0]["price_per_million"]) == pytest.approx(1e-3 / 413 * 1e6, rel=0.01)
