"""What a profile suggests to try. Nothing is advised that was not measured: the suggestions become a contest."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from bakeoff import backends
from bakeoff.backends.base import Mode
from bakeoff.backends.inductor import EMULATED
from bakeoff.backends.model_changes import ALIGNMENT, FOLDED_NORMS, PADDED, SDPA
from bakeoff.backends.profiling import Kind, ProfiledKernel
from bakeoff.backends.torch_kernels import BENCHMARK
from bakeoff.commands import run as runs
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.decision import relation
from bakeoff.judging.judgement import contests_of
from bakeoff.judging.ranking import BASELINE
from bakeoff.judging.stored_report import builds_at
from bakeoff.planning.request import Request
from bakeoff.records.schema import Cell, Record, Status
from bakeoff.records.text import counted, percent
from bakeoff.reports.blocks import Block, Text
from bakeoff.reports.console import print_blocks, say, write_and_print, written_to_the_end
from bakeoff.reports.number_format import NONE, milliseconds, ratio
from bakeoff.reports.sentences import ratio as times
from bakeoff.reports.tables import Table, text_table
from bakeoff.why.controller import environment_of
from bakeoff.why.records import CellProfile

NOTEWORTHY_SHARE = 0.1
"""A share of the call that is worth a trial."""

EVEN_BALANCE = 0.8
"""Threads whose mean time on a core is this share of the busiest one's work evenly enough."""

PRODUCTS = ("addmm", "linear", "mm", "bmm", "conv")
"""Parts of the names of library calls whose weights can be packed beforehand."""

ATTENTION = ("softmax", "bmm", "matmul")
"""Parts of the names of operators that attention consists of where it is no operator of its own."""


def suggestions(profile: CellProfile, cell: Cell, is_wrong: bool = False) -> dict[str, str]:
    """Return the configurations to try, such as `inductor/freezing`, with what in the profile speaks for each."""
    backend = backends.create(cell.backend)
    suggested = {}
    emulated = cell.but(mode=EMULATED)
    if is_wrong and EMULATED in backend.mode_names() and cell.mode != EMULATED and backend.supports(emulated):
        suggested[emulated.configuration] = "outputs are wrong, and fused operators round less often"
    for mode in backend.modes:
        other = cell.but(mode=mode.name)
        if mode.name == cell.mode or mode.redundant or not backend.supports(other):
            continue
        if why := next(reasons_for(mode, profile, cell), ""):
            suggested[other.configuration] = why
    overhead = share_of(profile, lambda part: part.kind is Kind.FRAMEWORK)
    if cell.backend == BASELINE and overhead >= NOTEWORTHY_SHARE:
        suggested["inductor"] = f"{percent(overhead)} of the call is Python and dispatch"
    return suggested


def reasons_for(mode: Mode, profile: CellProfile, cell: Cell) -> Iterator[str]:
    waiting = share_of(profile, lambda part: part.kind in (Kind.FRAMEWORK, Kind.WAITING))
    convolves = any("Conv2d" in kind for kind in profile.classes.values())
    copies = share_of(profile, lambda part: part.kind is Kind.COPY)
    norms = share_of_names(profile, ("batch_norm",))
    products = share_of_names(profile, PRODUCTS)
    attention = share_of_names(profile, ATTENTION)
    unaligned = share_of(profile, lambda part: bool(part.modules) and set(part.modules) <= set(profile.unaligned))
    if mode.captures and mode.worth_trying and waiting >= NOTEWORTHY_SHARE:
        yield f"{percent(waiting)} of the call is no kernel, and a graph launches all of them at once"
    if mode.channels_last_of == cell.mode and convolves:
        yield f"there are convolutions, and {percent(copies)} of the call is copies"
    if mode.name == BENCHMARK.name and convolves:
        yield "there are convolutions, for which cuDNN can try out its algorithms"
    if mode.name == FOLDED_NORMS and convolves and norms >= NOTEWORTHY_SHARE / 2:
        yield f"{percent(norms)} of the call is batch norms, which a convolution before them can take in"
    if mode.name == PADDED and unaligned >= NOTEWORTHY_SHARE:
        yield f"{percent(unaligned)} of the call is linear layers whose outputs are no multiple of {ALIGNMENT}"
    if mode.name == SDPA and profile.attention == "eager" and attention >= NOTEWORTHY_SHARE / 2:
        yield f"{percent(attention)} of the call is steps of attention, which torch has as one operator"
    freezes = "freezing" in mode.name and mode.worth_trying and not mode.channels_last_of
    if freezes and products >= NOTEWORTHY_SHARE:
        yield f"{percent(products)} of the call is products and convolutions, whose weights can be packed"


def fewer_threads(profile: CellProfile) -> int | None:
    """Return with how many threads to try a call, or None where its threads work evenly on what there is."""
    threads = profile.threads
    if threads is None or threads.allowed == 1 or not threads.busy or threads.balance >= EVEN_BALANCE:
        return None
    return threads.allowed // 2


def share_of(profile: CellProfile, is_meant: Callable[[ProfiledKernel], bool]) -> float:
    return sum(part.ms for part in profile.parts if is_meant(part)) / profile.profiled_ms


def share_of_names(profile: CellProfile, texts: tuple[str, ...]) -> float:
    return share_of(profile, lambda part: any(text in part.name.lower() for text in texts))


def request_to_try(request: Request, cell: Cell, suggested: Iterable[str], processes: int | None) -> Request:
    return request.but(
        models=(cell.model,),
        set={name: (str(value),) for name, value in cell.dimensions.items()},
        devices=(cell.device,),
        precision=(cell.precision,),
        task=cell.task,
        backends=tuple(dict.fromkeys((cell.configuration, *suggested))),
        processes=processes,
        dynamic={},
        load=None,
    )


def try_suggestions(run: Path, profile: CellProfile, record: Record, processes: int | None, console: Console) -> None:
    """Measure what a profile suggests in one contest, and say what each suggestion brought."""
    suggested = suggestions(profile, record.cell, record.status is Status.INCORRECT)
    threads = fewer_threads(profile)
    if not suggested and not threads:
        say(f"The profile of {profile.label} suggests nothing to try.", console)
        return
    report = builds_at(run)
    in_run = Request(**report.request)
    asked = request_to_try(in_run, record.cell, suggested, processes or in_run.processes)
    command = shlex.join(["bakeoff", "explain", str(run), record.cell.id, "--try"])

    def contest(threads: int | None = None) -> ContestJudgement:
        with environment_of(report, threads), runs.progress_of(asked, quiet=True, as_json=True) as progress:
            tried, store = runs.run(asked, None, command, progress)
        with written_to_the_end():
            write_and_print(tried, store.root, quiet=True, console=console)
        return contests_of(tried)[0]

    usual = contest()
    print_blocks([brought(usual, record.cell.label, suggested)], console)
    # All cells of a contest have the same threads, so that fewer threads are a contest of their own.
    if threads:
        print_blocks(with_fewer_threads(usual, contest(threads), threads), console)


def brought(contest: ContestJudgement, label: str, reasons: Mapping[str, str]) -> Table[Any]:
    """Return a row for each configuration that was tried: why, its latency, and what it brought over the cell."""
    rows = []
    is_measured = any(cell.latency and cell.label == label for cell in contest.cells)
    for cell in contest.cells:
        if cell.label not in reasons:
            continue
        if cell.latency is None or not is_measured:
            texts = [cell.label, reasons[cell.label], NONE, NONE, cell.record.reason or cell.record.status]
        else:
            over = contest.fit.ratio(cell.label, label)
            called = relation(over) if cell.record.status is Status.OK else cell.record.status
            texts = [cell.label, reasons[cell.label], milliseconds(cell.latency.median_ms), times(over), str(called)]
        rows.append(texts)
    return text_table(["tried", "because", "median (ms)", f"times as fast as {label}", ""], rows, "llrrl")


def with_fewer_threads(usual: ContestJudgement, fewer: ContestJudgement, threads: int) -> list[Block]:
    """Say what each cell takes with fewer threads, in a contest after the one with the run's threads."""
    before = {cell.label: cell.latency for cell in usual.cells}
    rows = [
        [cell.label, milliseconds(then.median_ms), milliseconds(now.median_ms), ratio(then.median_ms / now.median_ms)]
        for cell in fewer.cells
        if (now := cell.latency) and (then := before.get(cell.label))
    ]
    headings = ["backend", "median (ms)", f"with {counted(threads, 'thread')}", "times as fast"]
    tried = (
        f"Threads worked unevenly, so that the cells were tried with {counted(threads, 'thread')}. It is a contest of "
        "its own, after the other one: a ratio holds what has changed on the machine meanwhile."
    )
    return [Text(tried), text_table(headings, rows, "lrrr")]
