import pytest

from reports.palette import BLACK, WHITE, Look, Looks, luminance, parse_hex, readable

LABELS = ["eager", "torchscript", "inductor", "inductor/a", "inductor/b", "onnx", "triton", "hotpath", "theirs"]


@pytest.mark.parametrize(("background", "contrast"), [(WHITE, 2.1), (parse_hex("#14181f"), 3.0)])
def test_every_colour_can_be_made_readable_on_light_and_on_dark(
    background: tuple[float, float, float], contrast: float
) -> None:
    looks = Looks(LABELS)
    for label in LABELS:
        found = readable(looks(label), background, contrast).colour
        darker, lighter = sorted((luminance(found), luminance(background)))
        assert (lighter + 0.05) / (darker + 0.05) >= contrast, label


def test_what_is_readable_stays_as_it_is() -> None:
    look = Looks(["onnx"])("onnx")
    assert look.hex == "#0072b2"
    assert readable(look, WHITE, 2.1) == look
    assert readable(Look(WHITE, "", "o"), WHITE, 22.0).colour == BLACK  # more than there is


def test_luminance_is_that_of_the_standard() -> None:
    assert (luminance(BLACK), luminance(WHITE)) == (0.0, pytest.approx(1.0))
    assert luminance(parse_hex("#ff0000")) == pytest.approx(0.2126)


def test_a_label_that_was_not_named_has_no_look() -> None:
    with pytest.raises((KeyError, ValueError)):
        Looks(["onnx"])("onnx/cuda-graph")
