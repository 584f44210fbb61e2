import pytest
from pydantic import ValidationError

from bakeoff.records.schema import Status
from bakeoff.reports.charts.palette import (
    BLACK,
    DARK_GROUND,
    WHITE,
    Look,
    Palette,
    luminance,
    parse_hex,
    ramp,
    readable,
)
from tests.reports.samples import cell, failed


def drawn(*labels: str, **colours: str) -> Palette:
    """Return the palette of records of these labels. Backends have their own colours, or the given ones."""
    cells = [cell(backend, mode or "default") for backend, _, mode in (label.partition("/") for label in labels)]
    records = [failed(one, Status.OOM, "") for one in cells]
    return Palette(
        record.model_copy(update={"colour": colours.get(record.cell.backend, record.colour)}) for record in records
    )


LABELS = ["eager", "torchscript", "inductor", "inductor/a", "inductor/b", "onnx", "triton", "hotpath", "theirs"]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(luminance(parse_hex(text)) for text in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("look", [*drawn(*LABELS).looks, *ramp("abcdef").values()])
def test_every_colour_is_readable_on_light_and_on_dark(look: Look) -> None:
    assert contrast(look.light, "#ffffff") >= 2.08 and contrast(look.dark, DARK_GROUND) >= 2.97  # rounded to 8 bits


def test_a_backend_has_one_hue_and_a_mode_another_lightness_and_shape() -> None:
    palette = drawn(*LABELS)
    plain, tuned = palette("inductor"), palette("inductor/a")
    assert plain.light == "#e69f00"
    assert luminance(parse_hex(tuned.dark)) > luminance(parse_hex(plain.dark)) and tuned.marker != plain.marker
    assert len({look.dark for look in palette.looks}) == len(LABELS)
    assert [look.number for look in palette.looks] == list(range(len(LABELS)))


def test_unknown_backends_get_colours_by_name_whatever_their_order() -> None:
    forth, back = drawn("zeta", "alpha", "eager"), drawn("eager", "alpha", "zeta")
    assert all(forth(label).light == back(label).light for label in ("zeta", "alpha", "eager"))
    assert forth("zeta").light != forth("alpha").light
    assert drawn("zeta")("zeta").light == drawn("zeta", "onnx", "theirs")("zeta").light, "one report as another"


def test_a_backend_of_somebody_else_has_the_colour_that_its_records_carry() -> None:
    assert drawn("theirs", "eager", theirs="#0000ff")("theirs").light == "#0000ff"


@pytest.mark.parametrize("colour", ["red", "#00f", "#0000ff;}", "url(x)"])
def test_a_record_carries_nothing_but_a_colour(colour: str) -> None:
    with pytest.raises(ValidationError):
        failed(cell("onnx"), Status.OOM, "", colour=colour)


def test_a_readable_colour_stays_as_it_is() -> None:
    assert readable(parse_hex("#0072b2"), WHITE, 2.1) == parse_hex("#0072b2")
    assert readable(WHITE, WHITE, 22.0) == BLACK  # more than there is


def test_luminance_is_that_of_the_standard() -> None:
    assert (luminance(BLACK), luminance(WHITE)) == (0.0, pytest.approx(1.0))
    assert luminance(parse_hex("#ff0000")) == pytest.approx(0.2126)


def test_a_label_that_was_not_named_has_no_look() -> None:
    with pytest.raises(KeyError):
        drawn("onnx")("onnx/cuda-graph")
