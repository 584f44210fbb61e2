"""Whole generations, as columns and sentences. Every output prints them; none is escaped yet."""

from typing import Any

from bakeoff.judging.contest import GeneratingCell, Generation
from bakeoff.records.schema import Generated
from bakeoff.records.text import counted
from bakeoff.reports import answers, number_format
from bakeoff.reports.blocks import Surface
from bakeoff.reports.number_format import NONE
from bakeoff.reports.tables import Column, Table, csv_field, text_table


def columns_of(generation: Generation) -> list[Column[GeneratingCell]]:
    """Return every column of the table of generations. Intervals of its first two numbers stand in the contests."""

    def share(cell: GeneratingCell) -> float | None:
        return cell.decode.record.roofline.share if cell.decode.record.roofline else None

    first_precision = next(
        (cell.generated.first for cell in generation.cells if cell.generated and cell.generated.first), "eager"
    )
    return [
        csv_field("rank", lambda cell: cell.rank),
        Column("place", lambda cell: cell.place, spare=1, csv="place_in_precision"),
        Column("backend", lambda cell: cell.label, is_text=True, is_label=True, csv="backend"),
        Column("first token", lambda cell: cell.prefill.latency.median_ms if cell.prefill.latency else None, "ms",
               csv="first_token_ms"),
        Column("further token", lambda cell: cell.decode.latency.median_ms if cell.decode.latency else None, "ms",
               csv="further_token_ms"),
        Column("decoded", lambda cell: cell.value, "tokens/s", csv="tokens_per_s"),
        Column("of floor", share, "%", spare=3, csv="decode_floor_share"),
        Column("whole generation", lambda cell: cell.total_ms, "ms", csv="generation_ms"),
        Column("speed-up", answers.speedup, f"x {generation.answer.baseline}",
               interval=answers.speedup_ends, csv="speedup"),
        Column("pays after", lambda cell: cell.pays_after_tokens, "tokens", csv="pays_after_tokens"),
        Column("caches", lambda cell: str(cell.decode.record.settings.get("caches", "")) or None, is_text=True, spare=2,
               csv="caches"),
        Column("tokens as eager's", lambda cell: cell.generated.agreed if cell.generated else None,
               text=lambda cell: f"{cell.generated.agreed}/{cell.generated.tokens}" if cell.generated else NONE,
               is_text=True, csv="tokens_agreed"),
        Column(f"tokens as {first_precision}'s",
               lambda cell: cell.generated.agreed_with_first if cell.generated else None,
               csv="tokens_agreed_with_first"),
        Column("error", lambda cell: cell.relative_rmse, write=number_format.error,
               surfaces=Surface.ALL if any(cell.place for cell in generation.cells) else Surface.NONE,
               csv="relative_rmse"),
    ]  # fmt: skip


def tables(generation: Generation) -> list[Table[Any]]:
    table = Table(columns_of(generation), generation.cells, f"Whole generations: {_sizes(generation)}")
    return [table, *([_memory(generation)] if len(generation.peak_bytes) > 1 else [])]


def sentences(generation: Generation) -> list[str]:
    if generation.answer.best is None:
        return ["No backend is ranked in both prefill and decode, so no whole generation is judged."]
    answer, best = generation.answer, generation.cells[0]
    said = answers.line(answer, f"{number_format.milliseconds(best.total_ms)} ms")
    differing = [cell for cell in generation.cells if cell.generated and cell.generated.margin is not None]
    return [
        f"{_sizes(generation)}: {said}.",
        *(_difference(cell.label, generation.answer.baseline, cell.generated) for cell in differing if cell.generated),
    ]


def _difference(label: str, baseline: str | None, generated: Generated) -> str:
    if label == baseline:
        return (
            f"{label} does not repeat its own tokens: in another process one differs after {generated.agreed} of "
            f"{generated.tokens}. Its two best logits were {generated.margin:.2g} apart there, and "
            f"{generated.usual_margin:.2g} in the median. So no backend can be expected to repeat them."
        )
    return (
        f"{label} generates another token than eager after {generated.agreed} of {generated.tokens}: eager's two best "
        f"logits were {generated.margin:.2g} apart there, and {generated.usual_margin:.2g} in the median."
    )


def _sizes(generation: Generation) -> str:
    batch = f"{generation.sequences} sequences of " if generation.sequences > 1 else ""
    return f"{batch}{counted(generation.new_tokens, 'token')} after a prompt of {generation.prompt}"


def _memory(generation: Generation) -> Table[Any]:
    contexts = list(generation.peak_bytes)
    rows = [
        [cell.label, *(number_format.mebibytes(generation.peak_bytes[context].get(cell.label)) for context in contexts)]
        for cell in generation.cells
    ]
    headings = ["backend", *(f"{context} rows (MiB)" for context in contexts)]
    title = "Peak memory of decoding against the length of the context"
    return text_table(headings, rows, "l" + "r" * len(contexts), title)
