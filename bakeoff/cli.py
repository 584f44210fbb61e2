#!/usr/bin/env python3
"""Bakeoff's command line: which inference compiler should I ship this model with, on this machine?"""

from __future__ import annotations

import errno
import io
import logging
import os
import shlex
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

try:
    import pydantic  # noqa: F401
    import typer
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is not installed: run `make bench`, or `pip install -c constraints.txt '.[cpu]'`")
from rich.console import Console
from typer import Argument, Option
from typer.core import TyperGroup

from bakeoff import __version__, models
from bakeoff.commands import env_and_cache
from bakeoff.judging.constraints import STARTED_QUANTITIES, Requirements
from bakeoff.measuring.controller.server_start import signals_ignored
from bakeoff.measuring.variables import with_variables
from bakeoff.planning import config
from bakeoff.records.errors import INTERRUPTED, BakeoffError, UsageError, in_plain_words, os_reason, unknown
from bakeoff.records.report_file import folder_of
from bakeoff.records.text import with_option
from bakeoff.reports.console import (
    AsJson,
    answered,
    console_for,
    measured_to_the_end,
    print_blocks,
    print_json,
    say,
    search_progress,
    stderr,
    steps,
    write,
    write_and_print,
    write_for_ci,
    written_to_the_end,
)

if TYPE_CHECKING:
    from bakeoff.api.pipelines import PipelineResult
    from bakeoff.planning.request import Request

USAGE_ERROR = 2
REGRESSION = 4
BEGUN_S = "begun_s"


class RunByDefault(TyperGroup):
    """`bakeoff --model conv` means `bakeoff run --model conv`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[BEGUN_S] = ctx.obj
        ctx.obj = with_variables(shlex.join(["bakeoff", *args]), os.environ)  # as it was typed, for the record
        is_run = args[:1] == ["run"]
        first = next(iter(args[is_run:]), "--")
        if not first.startswith("-") and (is_run or first not in self.commands):
            if option := models.option_for(first):
                raise UsageError(f"'{first}' is a model{'' if is_run else ', not a command'}: write bakeoff {option}")
            if not is_run:
                raise unknown("command", first, self.commands, "bakeoff --help")
        if not args or args[0] not in (*self.commands, "--help", "-h", "--version"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:  # typer itself would say nothing about it
            raise typer.Abort(*interruption.args) from None


HELP = f"""{__doc__}

Without a command it measures: `bakeoff --model mlp` means `bakeoff run --model mlp`.

\b
bakeoff --model mlp                        a template model, every backend
bakeoff --model FILE.py:FACTORY            FACTORY() returns (model, inputs)
bakeoff --model PACKAGE.MODULE:FACTORY     the same, for what Python can import
bakeoff --model 'FOLDER/*.py'              each file with a factory, or a class Model of KernelBench's form
bakeoff --model mlp --backends eager,onnx  two backends
bakeoff run --help                         every option of a run
bakeoff list                               the backends and the models
bakeoff doctor                             what works on this machine
"""

app = typer.Typer(
    cls=RunByDefault,
    help=HELP,
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from bakeoff.commands import listing

        say(listing.version(__version__))
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, Option("--version", is_eager=True, callback=_print_version, help="Print the version, and exit")
    ] = False,
) -> None:
    pass


Quiet = Annotated[bool, Option("--quiet", help="Print only the verdict and where the report is")]
RunAsJson = Annotated[bool, Option("--json", help="Print the verdict as JSON, and all else to standard error")]
JUnit = Annotated[Path | None, Option("--junit", help="File for JUnit's XML, with a test case for each cell")]
Summary = Annotated[
    Path | None, Option("--summary", help="File for a summary in Markdown, for a CI job's page or a comment")
]
Run = Annotated[Path, Argument(help="Folder of a run")]
Reports = Annotated[list[Path], Argument(help="report.json files, or folders that hold one")]


@app.command()
@config.takes_request
def run(
    typed: dict[str, Any],
    context: typer.Context,
    out: Annotated[Path | None, Option(help="Folder of this run [results/<time>-<models>-<devices>]")] = None,
    config_file: Annotated[Path | None, Option("--config", help="TOML file with these options as keys")] = None,
    preset: Annotated[
        str | None, Option(help="Name of a preset (docs/presets.md); options that are typed beside it win")
    ] = None,
    quiet: Quiet = False,
    as_json: RunAsJson = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what would be measured, and about how long it takes")
    ] = False,
    check_only: Annotated[
        bool, Option("--check-only", help="Build and compare with the reference, and time nothing")
    ] = False,
    parts: Annotated[
        str, Option(help="Compare these modules of the pipeline that the factory returns: unet,vae.decoder")
    ] = "",
    junit: JUnit = None,
    summary: Summary = None,
) -> int:
    """Compare backends on models, and write the report (the default command).

    Exit status 1 if a cell failed, a backend that was named is missing, or nothing meets --require or --slo; 3 if
    nothing was measured.
    """
    if parts and (dry_run or check_only):
        raise UsageError(
            f"{'--dry-run' if dry_run else '--check-only'} knows no --parts: their calls are recorded first, and with "
            "`bakeoff inspect` listed"
        )
    if parts:
        from bakeoff.commands import run as runs
        from bakeoff.judging.judgement import judge

        result = _run_parts(typed, parts, out, config_file, preset, quiet, console_for(as_json))
        write_for_ci(judge(result.report), junit, summary)
        judged = [judge(of_part.report) for of_part in (*result.parts.values(), result)]
        endings = [(INTERRUPTED, "")] if not result.complete else list(map(runs.ending_of, judged))
        status = max(status for status, _ in endings)
        reason = "; ".join(dict.fromkeys(reason for _, reason in endings if reason))
        if as_json:
            print_json(result.answer.but(exit_reason=reason), status)
        runs.say_exit_reason(status, reason)
        return status
    options = config.gather(typed, out, quiet, config_file, preset)
    request = options.to_request()
    config.require_names(request)
    if dry_run:
        from bakeoff.commands.preview import preview

        planned = preview(request)
        return answered(planned, 0, as_json, lambda: say("\n".join(planned.lines())))
    if check_only:
        if junit or summary:
            raise UsageError("--check-only has no numbers for --junit and --summary: use --json")
        return _check_builds(request, options, as_json)
    from bakeoff.commands import run as runs

    begun_s = context.meta[BEGUN_S]
    # a folder that only a file names is recorded, too: a command that measures again must name another one
    command = with_option(context.obj, "--out", str(options.out)) if options.out and not out else context.obj
    with measured_to_the_end():
        with runs.progress_of(request, options.quiet, as_json, begun_s) as progress:
            report, store = runs.run(request, options.out, command, progress, begun_s)
        return runs.conclude(report, store, options.quiet, as_json, junit, summary)


def _check_builds(request: Request, options: config.Options, as_json: bool) -> int:
    from bakeoff.commands import checks
    from bakeoff.commands.run import say_exit_reason

    console = console_for(as_json)

    def say_check(check: checks.Check) -> None:
        if not options.quiet:
            say(checks.line_of(check), console)

    answer, status = checks.check(request, say_check)
    if options.out:
        checks.write(answer, options.out)
    for reason in answer.left_out:
        say(reason, console)
    answered(answer, status, as_json, lambda: print_blocks(checks.blocks_of(answer)))
    say_exit_reason(status, answer.exit_reason)
    return status


def _run_parts(
    typed: dict[str, Any],
    parts: str,
    out: Path | None,
    config_file: Path | None,
    preset: str | None,
    quiet: bool,
    console: Console,
) -> PipelineResult:
    """Compare the parts of a pipeline, and then the pipeline with the winners in place, and say what came out."""
    from bakeoff.api.compare import FIELDS
    from bakeoff.api.compare import compare as compare_models
    from bakeoff.api.pipelines import PipelineResult
    from bakeoff.commands.inspection import pipeline_of

    named = typed.pop("models", ())
    if len(named) != 1:
        raise UsageError("--parts are of one pipeline: name one --model FILE.py:FACTORY")
    if "inputs" in typed:
        raise UsageError("--parts records the calls of each part: leave --inputs out")
    sizes = config.single_sizes(typed.pop("set", {}))
    pipeline, example, evaluate = pipeline_of(named[0], sizes, typed.get("seed", 0))
    given = {keyword: typed[name] for keyword, name in FIELDS.items() if name in typed}
    if evaluate:
        given.setdefault("evaluate", evaluate)
    result = compare_models(
        pipeline, example, parts=parts, out=out, config=config_file, preset=preset, progress=not quiet, **given
    )
    assert isinstance(result, PipelineResult)
    for note in result.report.notes:
        say(note, console)
    with written_to_the_end():
        write_and_print(result.report, result.folder, quiet, console)
    return result


@app.command()
def resume(
    context: typer.Context,
    folder: Annotated[Path, Argument(help="Folder of an interrupted run or bisection")],
    quiet: Quiet = False,
    as_json: RunAsJson = False,
    junit: JUnit = None,
    summary: Summary = None,
) -> int:
    """Measure what is left of a run that was interrupted or whose time budget was over, and write its report."""
    from bakeoff.commands import bisection
    from bakeoff.commands import run as runs
    from bakeoff.records.store import Store

    if bisection.is_in(folder):
        return bisection.take_steps(folder, quiet, as_json)
    with measured_to_the_end():
        request = runs.request_of(Store.open(folder))
        with runs.progress_of(request, quiet, as_json, context.meta[BEGUN_S]) as progress:
            report, store = runs.resume(folder, progress)
        return runs.conclude(report, store, quiet, as_json, junit, summary)


@app.command()
def report(
    paths: Reports,
    calls: Annotated[int | None, Option(min=0, help="Compare the cost of N calls instead; 0: single calls")] = None,
    require: Annotated[
        str | None, Option(help="Judge again by what may win; '' requires nothing; status 1 if none may")
    ] = None,
    accept: Annotated[
        str | None, Option(help="Judge again by errors that are accepted: 'rmse<1e-3'; '' accepts none")
    ] = None,
    keep: Annotated[
        bool, Option("--keep", help="Keep the answer to --calls, --require and --accept as the report's own")
    ] = False,
    figures: Annotated[bool, Option("--figures", help="Write only the figures, of all these reports together")] = False,
    out: Annotated[
        Path | None, Option(help="Join these runs, such as shards, in one report here; with --figures, only those")
    ] = None,
    junit: JUnit = None,
    summary: Summary = None,
    as_json: AsJson = False,
) -> int:
    """Write reports again from their JSON, or the report of a run that was killed."""
    from bakeoff.commands.run import NOTHING_MEETS_REQUIREMENTS, say_exit_reason
    from bakeoff.judging.judgement import judged_anew
    from bakeoff.judging.stored_report import report_at
    from bakeoff.reports import writer
    from bakeoff.reports.json_answer import answer_of

    if as_json and (figures or out or len(paths) > 1):
        raise UsageError("--json is of one report: give one path, without --figures and --out")
    if figures:
        reports = [judged_anew(report_at(path), calls, require, accept) for path in paths]
        say(f"Figures: {writer.draw_together(reports, paths, out)}")
        return 0
    if out:
        with written_to_the_end():
            whole = writer.join([judged_anew(report_at(path), calls, require, accept) for path in paths], out)
            write_and_print(whole, out, junit=junit, summary=summary)
        return 0
    if (junit or summary) and len(paths) > 1:
        raise UsageError("--junit and --summary are of one report: give one path")
    is_kept = keep or (calls is None and require is None and accept is None)
    with written_to_the_end():
        for path in paths:
            folder = folder_of(path)
            asked = judged_anew(report_at(path), calls, require, accept)
            judgement = write_and_print(asked, folder, False, console_for(as_json), junit, summary, is_kept)
            status = 1 if require and not judgement.meets_requirements else 0
            reason = NOTHING_MEETS_REQUIREMENTS if status else ""
            if as_json:
                print_json(answer_of(judgement, folder).but(exit_reason=reason), status)
            if status:
                say_exit_reason(status, reason)
                return status
    return 0


@app.command()
def compare(
    base: Annotated[Path, Argument(help="report.json of the run before, or its folder")],
    new: Annotated[Path, Argument(help="report.json of the run after, or its folder")],
    fail_above: Annotated[str, Option(help="A cell slower by more than this is a regression")] = "5%",
    out: Annotated[Path | None, Option(help="File for the comparison as Markdown")] = None,
    html: Annotated[Path | None, Option(help="File for the comparison as a page")] = None,
    fail_on: Annotated[
        str, Option(help="What ends in exit status 4: slower, broken, worse, cannot-tell, a status")
    ] = "slower,broken,worse",
    junit: JUnit = None,
    summary: Summary = None,
    as_json: AsJson = False,
) -> int:
    """What became faster, slower, worse or broken between two runs; exit status 4 on a regression (docs/gate.md)."""
    from bakeoff.judging import compare as comparing
    from bakeoff.judging.stored_report import report_at
    from bakeoff.reports import command_answers
    from bakeoff.reports import junit as junits
    from bakeoff.reports import summary as summaries
    from bakeoff.reports.comparison import blocks_of, to_markdown, to_page

    kinds = comparing.parse_fail_on(fail_on)
    share = comparing.parse_share(fail_above)
    comparison = comparing.compare(report_at(base), report_at(new), share)
    write(out, lambda: to_markdown(comparison))
    write(html, lambda: to_page(comparison))
    write(junit, lambda: junits.of_comparison(comparison, kinds))
    write(summary, lambda: summaries.of_comparison(comparison))
    status = REGRESSION if comparison.failing(kinds) else 0
    answer = command_answers.of_comparison(comparison, kinds)
    return answered(answer, status, as_json, lambda: print_blocks(blocks_of(comparison)))


@app.command()
def history(
    folder: Annotated[Path, Argument(help="Folder below which the reports lie")],
    out: Annotated[Path, Option(help="Folder for history.md and its figure [the current one]")] = Path(),
    as_json: AsJson = False,
) -> int:
    """The medians of many reports, from run to run."""
    from bakeoff.reports import command_answers
    from bakeoff.reports import history as histories

    is_replaced = (out / histories.HISTORY_MD).exists()
    history_of_runs, page = histories.write(folder, out)
    for reason in history_of_runs.skipped:
        say(f"left out: {reason}", stderr)
    answer = command_answers.of_history(history_of_runs, page)
    said = f"History: {page}{', in place of an earlier one' if is_replaced else ''}"
    return answered(answer, 0, as_json, lambda: say(said))


@app.command()
def publish(
    paths: Reports,
    out: Annotated[Path, Option(help="Folder of the site")] = Path("site"),
    card: Annotated[bool, Option("--card", help="Write the answers as Markdown for a model card, too")] = False,
    as_json: AsJson = False,
) -> int:
    """Write a static site of many runs: an index to search, each report, and latencies from run to run."""
    from bakeoff.judging.judgement import judge
    from bakeoff.judging.stored_report import report_at
    from bakeoff.reports import command_answers, site

    written = site.write([judge(report_at(path)) for path in paths], out, card)
    index, files, removed = out / site.INDEX, list(map(str, written.files)), list(map(str, written.removed))
    answer = command_answers.PublishAnswer(index=str(index), files=files, removed=removed)
    said = [f"Site: {index}", *([f"Model card: {out / site.CARD}"] if card else [])]
    said += [f"Removed {page}: its run is not published any more" for page in removed]
    return answered(answer, 0, as_json, lambda: say("\n".join(said)))


@app.command("machines")
def compare_machines(
    paths: Annotated[list[Path], Argument(help="A report of each machine, in a folder named after it")],
    price: Annotated[
        list[str] | None, Option(help="What an hour of a machine costs: NAME=2.5/h, once for each")
    ] = None,
    out: Annotated[Path | None, Option(help="File for the tables as Markdown")] = None,
    as_json: AsJson = False,
) -> int:
    """Which machine to rent: the best build on each, with its rate, its energy and what a million calls cost."""
    from bakeoff.judging import machines
    from bakeoff.judging.stored_report import report_at
    from bakeoff.reports import command_answers, markdown
    from bakeoff.reports.machines import blocks_of

    names = machines.names_of(paths)
    reports = {name: report_at(path) for name, path in zip(names, paths, strict=True)}
    compared = machines.machines_of(reports, machines.parse_prices(price or []))
    write(out, lambda: markdown.render(blocks_of(compared)))
    answer = command_answers.of_machines(compared)
    return answered(answer, 0, as_json, lambda: print_blocks(blocks_of(compared)))


@app.command("bisect")
@config.takes_request
def find_slow_version(
    typed: dict[str, Any],
    context: typer.Context,
    backend: Annotated[str, Option(help="NAME[/MODE] that became slower")],
    package: Annotated[str, Option(help="Package whose versions are tried")],
    good: Annotated[str, Option(help="Version that is fast")],
    bad: Annotated[str, Option(help="Later version that is slow")],
    versions: Annotated[list[str] | None, Option(help="Versions to try between them [all that were released]")] = None,
    out: Annotated[Path | None, Option(help="Folder of the steps [results/<time>-bisect-<package>]")] = None,
    quiet: Annotated[bool, Option("--quiet", help="Print only the result")] = False,
    as_json: AsJson = False,
) -> int:
    """Find the version of a package that made one cell slower: each step measures good, bad and candidate together.

    Exit status 1 if no version is named.
    """
    from bakeoff.commands import bisection

    if "backends" in typed:
        raise UsageError("a bisection follows one backend: write --backend")
    request = config.Options(typed | {"backends": (backend,)}).to_request()
    folder = bisection.begin(request, package, good, bad, config.split(versions or ()), out, context.obj)
    return bisection.take_steps(folder, quiet, as_json)


@app.command("max-batch")
@config.takes_request
def find_largest_batch(
    typed: dict[str, Any],
    context: typer.Context,
    most: Annotated[int, Option("--most", min=1, help="The largest batch to try")] = 65536,
    out: Annotated[Path | None, Option(help="Folder of the steps [results/<time>-max-batch]")] = None,
    quiet: Annotated[bool, Option("--quiet", help="Print only the result")] = False,
    as_json: AsJson = False,
) -> int:
    """Find the largest batch of each backend that fits into memory and meets --require (or --slo), with its rate.

    Batches are doubled until one is too large, and then the gap is halved. Each is measured alone, by default in one
    process. Exit status 1 if a backend has no batch.
    """
    from bakeoff.commands import max_batch

    required = ", ".join(filter(None, [typed.get("require"), typed.pop("slo", None)]))
    request = config.Options({"processes": 1} | typed | {"require": required}).to_request()
    return max_batch.find(request, most, out, context.obj, quiet, as_json)


@app.command("run-script", context_settings={"ignore_unknown_options": True})
def run_users_script(
    script: Annotated[Path, Argument(help="A Python script, which runs unchanged")],
    arguments: Annotated[
        list[str] | None, Argument(help="Its arguments; after -- also those that have the name of an option here")
    ] = None,
    find: Annotated[bool, Option("--find", help="Only list the modules that it calls, and record none")] = False,
    module: Annotated[
        str, Option(help="The one to record, by its name in that table [what takes most of the time]")
    ] = "",
    out: Annotated[Path | None, Option(help="Folder for the recording [recorded-MODULE]")] = None,
    as_json: AsJson = False,
) -> int:
    """Run your own script, list the modules that it calls with their share of the time, and record one to compare.

    The recording holds the module with its weights, and calls with their inputs. Exit status 1 if the script failed.
    """
    from bakeoff.commands import run_script

    return run_script.run_script(script, arguments or (), find, module, out, as_json)


app.add_typer(env_and_cache.env, name="env")
app.add_typer(env_and_cache.cache_commands, name="cache")


@app.command("selfcheck")
def check_itself(
    models: Annotated[list[str] | None, Option("--model", "--models", help="[mlp,transformer]")] = None,
    device: Annotated[str, Option(help="cpu, cuda or cuda:N")] = "cpu",
    mode: Annotated[str, Option(help="Mode of eager: default or cuda-graph")] = "default",
    trials: Annotated[int, Option(help="Trials of each model", min=1)] = 10,
    as_json: AsJson = False,
) -> int:
    """Measure eager against itself: how often is a winner called on this machine, and are artificial slowdowns found?

    Exit status 1 if a winner was called between equals.
    """
    from bakeoff.commands import selfcheck

    named = config.split(models or ["mlp,transformer"])
    rows = selfcheck.run_and_say(named, device, mode, trials, console_for(as_json))
    equal = [row for row in rows if row.planted == 1.0]
    is_complete = sum(row.trials for row in equal) == trials * len(named)
    status = int(any(row.winners for row in equal)) if is_complete else INTERRUPTED
    return print_json(selfcheck.SelfcheckAnswer(rows=rows), status) if as_json else status


@app.command("list")
def list_known(
    devices: Annotated[
        list[str] | None, Option("--devices", help="cpu,cuda[:N]: ask each backend whether it can run there")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Backends with their modes and what they lack, and models with their dimensions."""
    from bakeoff.commands import listing
    from bakeoff.commands import run as runs

    available = runs.availability(config.split(devices)) if devices else {}
    listed = listing.answer(available)
    return answered(listed, 0, as_json, lambda: print_blocks(listing.blocks_of(listed)))


@app.command("doctor")
def examine_machine(
    backends: Annotated[list[str] | None, Option("--backends", help="NAME[/MODE][,...], NAME/all, all [all]")] = None,
    devices: Annotated[
        list[str] | None, Option("--devices", help="cpu,cuda[:N] [cpu, and cuda if there is one]")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Say what is wrong with this machine: every backend runs a tiny model; known problems are looked for.

    Exit status 1 if a backend or a device that was named does not work (docs/troubleshooting.md).
    """
    from bakeoff.doctor import examine
    from bakeoff.doctor.diagnosis import blocks_of

    with steps() as say_step:
        diagnosis = examine.examine(config.split(backends or ()), config.split(devices or ()), say_step)
    return answered(diagnosis, diagnosis.exit_status, as_json, lambda: print_blocks(blocks_of(diagnosis)))


@app.command("reproduce")
def reproduce_cell(
    path: Annotated[Path, Argument(metavar="REPORT.json", help="A report.json, or a folder that holds one")],
    cell: Annotated[str, Argument(help="Id or label of a cell, or the beginning of one")],
    out: Annotated[Path, Option(help="Folder to write")] = Path("reproduced"),
    as_json: AsJson = False,
) -> int:
    """Write a folder that measures one cell again, eager's too, and needs nothing but the cell's libraries."""
    from bakeoff.reports import command_answers
    from bakeoff.shipping import export

    record, start = export.export(path, cell, out, with_models=True)
    script = start.read_text(encoding="utf-8")
    answer = command_answers.ScriptAnswer(
        cell_id=record.cell.id, label=record.cell.label, script=script, path=str(start)
    )
    return answered(answer, 0, as_json, lambda: say(export.Format.FOLDER.next_step(start)))


@app.command("export")
def export_artifact(
    run: Run,
    label: Annotated[
        str | None, Argument(help="Id or label of a cell, or a model or the beginning of a contest's id for its winner")
    ] = None,
    out: Annotated[Path, Option(help="Folder to write")] = Path("export"),
    format: Annotated[
        str,
        Option(
            help="folder: load.py and what bakeoff.load reads; triton: a model repository; cpp: a program for CMake"
        ),
    ] = "folder",
    as_json: AsJson = False,
) -> int:
    """Write what the winner, or another cell, has built into a folder that runs without Bakeoff."""
    from bakeoff.reports import command_answers
    from bakeoff.shipping import export

    if format not in list(export.Format):
        raise unknown("format", format, export.Format)
    kind = export.Format(format)
    with steps() as say_step:
        record, start = export.export(run, label, out, kind, say_step=say_step)
    answer = command_answers.ExportAnswer(
        cell_id=record.cell.id, label=record.cell.label, format=kind, folder=str(out), start_with=str(start)
    )
    said = [f"Exported {record.cell.label}. {kind.next_step(start)}", *export.cautions(record)]
    return answered(answer, 0, as_json, lambda: say("\n".join(said)))


@app.command("start")
def measure_starts(
    run: Run,
    labels: Annotated[
        list[str] | None, Argument(help="Ids or labels of the cells to start [the best two, and eager]")
    ] = None,
    starts: Annotated[int, Option(help="Fresh processes of each cell")] = 7,
    require: Annotated[
        str, Option(help=f"What a start must meet, such as 'start_s<1': {', '.join(STARTED_QUANTITIES)}")
    ] = "",
    cold: Annotated[
        bool, Option("--cold", help="Drop the machine's page cache before each start (root on Linux)")
    ] = False,
    out: Annotated[Path | None, Option(help="Folder for starts.md, starts.json and the figure [RUN/starts]")] = None,
    as_json: AsJson = False,
) -> int:
    """Measure from the start of a process to its first and tenth answer, its memory, and what must be installed.

    Exit status 1 if nothing was started that meets the requirements.
    """
    from bakeoff.reports import start_report as shown
    from bakeoff.reports import writer
    from bakeoff.shipping.start_runs import measure_run

    Requirements.parse(require, STARTED_QUANTITIES)  # what cannot be read is refused before minutes of starts
    with steps() as say_step:
        measured = measure_run(run, labels or (), starts, cold, say_step)
    cut_off = [cell for cell in measured.cells if cell.is_cut_off]
    name = "starts-interrupted" if cut_off else "starts"  # whole ones stay
    judged, files = writer.write_starts(measured, require, out or folder_of(run) / name)
    status = INTERRUPTED if cut_off else shown.exit_status(judged)
    if cut_off:
        say(f"{cut_off[0].reason.capitalize()}: what was measured until then follows.", stderr)
    if as_json:
        return print_json(shown.answer_of(judged, measured, files), status)
    print_blocks(writer.starts_blocks(judged, measured))
    say(f"Starts: {files[0]}")
    return status


@app.command()
def inspect(
    model: Annotated[str, Argument(help="FILE.py:FACTORY, which returns a pipeline and an example call of it")],
    parts: Annotated[str, Option(help="Modules by their paths, such as unet,vae.decoder [all that are called]")] = "",
    sizes: Annotated[list[str] | None, Option("--set", help="Sizes of the factory: KEY=VALUE")] = None,
    as_json: AsJson = False,
) -> int:
    """List the parts of a pipeline of several models: their calls, sizes, shares of the time, and parameters."""
    from bakeoff.commands.inspection import inspect_model

    given = config.single_sizes(config.parse_dimensions(sizes or []))
    inspected = inspect_model(model, given, config.split([parts]) if parts else ())
    return answered(inspected, 0, as_json, lambda: say(str(inspected)))


@app.command("explain")
def explain_run(
    run: Run,
    label: Annotated[str | None, Argument(help="Id or label of a cell [the winner]")] = None,
    against: Annotated[str | None, Option(help="Id or label of the cell to compare with [eager]")] = None,
    depth: Annotated[
        int | None, Option(min=1, help="Levels of modules that have rows of their own [20 rows of what takes most]")
    ] = None,
    as_json: AsJson = False,
    trace: Annotated[Path | None, Option(help="File for one call of each cell, for Chrome or Perfetto")] = None,
    out: Annotated[Path | None, Option(help="File for the table as Markdown")] = None,
    html: Annotated[Path | None, Option(help="File for a page with both cells as nested boxes")] = None,
    tries: Annotated[
        bool, Option("--try", help="Measure what the profile suggests beside the cell, and say what it gains")
    ] = False,
    processes: Annotated[int | None, Option(min=1, help="With --try: processes of each cell [as in the run]")] = None,
) -> int:
    """Say where the time of a call goes, by the modules of your model: profiles a cell of a run, and eager beside it.

    Exit status 1 if the rows do not sum to the call within 5 %.
    """
    from bakeoff.commands.run import say_exit_reason
    from bakeoff.reports import markdown
    from bakeoff.why import explanation_text as shown
    from bakeoff.why.controller import profile_run
    from bakeoff.why.explanation import ExplanationAnswer, explain
    from bakeoff.why.explanation_text import explanation_to_page
    from bakeoff.why.suggestions import try_suggestions

    with steps() as say_step:
        cells = profile_run(run, label, against, say_step)
    profiles = [cell.profile for cell in cells]
    explanation = explain(cells, depth)
    blocks = shown.blocks_of(explanation, cells)
    write(out, lambda: markdown.render(blocks))
    write(trace, lambda: shown.to_chrome_trace(profiles))
    write(html, lambda: explanation_to_page(explanation, cells))
    answer = ExplanationAnswer.of_profiles(explanation, profiles)
    status = answered(answer, 0 if explanation.is_whole else 1, as_json, lambda: print_blocks(blocks))
    if tries:
        try_suggestions(run, profiles[0], cells[0].record, processes, console_for(as_json))
    say_exit_reason(status, "" if explanation.is_whole else "the rows do not sum to the call within 5 %")
    return status


@app.command("blame")
def blame_cell(
    run: Run,
    label: Annotated[str, Argument(help="Id or label of a cell")],
    as_json: AsJson = False,
    script: Annotated[
        Path | None, Option(help="File for a script with the part that fails alone, for its library's makers")
    ] = None,
    keep_fp32: Annotated[
        bool, Option("--keep-fp32", help="Which modules must stay in fp32, of a cell in fp16, bf16 or int8")
    ] = False,
    tolerance: Annotated[
        float | None, Option(min=0.0, help="With --keep-fp32: the largest relative error [what the run requires]")
    ] = None,
    out: Annotated[Path | None, Option(help="File for the result as Markdown")] = None,
) -> int:
    """Say where a cell loses precision, or what of the model fails: the smallest part that does so alone.

    Exit status 1 if a part is named or the model itself fails; with --keep-fp32, if no set meets the tolerance.
    """
    from bakeoff.reports import markdown
    from bakeoff.why import blame_text as shown
    from bakeoff.why import controller, failing_script
    from bakeoff.why.records import Found

    if keep_fp32:
        if script:
            raise UsageError("--script is of a part that fails, and --keep-fp32 of a cell that runs")
        with search_progress() as say_progress:
            kept = controller.kept_modules(run, label, tolerance, say_progress)
        write(out, lambda: markdown.render(shown.blocks_of_kept(kept)))
        return answered(kept, 0 if kept.holds else 1, as_json, lambda: print_blocks(shown.blocks_of_kept(kept)))
    if tolerance is not None:
        raise UsageError("--tolerance is of --keep-fp32")
    with search_progress() as say_progress:
        blame, record = controller.blame_cell(run, label, say_progress)
    if script and blame.script:
        failing_script.write_script(blame.script.text, script)
    if drawn := shown.figure(blame):
        path = folder_of(run) / "figures" / f"blame-{record.cell.id}.svg"
        write(path, lambda: drawn)
        blame = blame.but(figure=str(path))
    blocks = shown.blocks_of(blame, out.parent if out else run, script)
    write(out, lambda: markdown.render(blocks))
    exit_status = 0 if blame.found is Found.NOTHING and not blame.model_fails else 1
    if as_json and script and not blame.script:
        say(shown.script_sentence(blame, script), stderr)
    return answered(blame, exit_status, as_json, lambda: print_blocks(blocks))


def main(arguments: list[str] | None = None, begun_s: float | None = None) -> int:
    """Parse the arguments, carry out, and turn errors into one line. Returns the exit status.

    By default the arguments are those of the process. A time budget counts from `begun_s`, of the monotonic clock.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `docker stop` ends a run as cleanly as Ctrl-C
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns, after the answer, that its folder is read-only
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that is not in UTF-8 shows `?`, and loses no answer
    as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    try:
        return int(app(arguments, prog_name="bakeoff", standalone_mode=False, obj=begun_s) or 0)
    except BakeoffError as error:
        return _complain(str(error), USAGE_ERROR if isinstance(error, UsageError) else 1, as_json)
    except (KeyboardInterrupt, typer.Abort) as interruption:
        return _complain(": ".join(["interrupted", *map(str, interruption.args)]), INTERRUPTED, as_json)
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        return _complain(f"{file}{os_reason(error)}{_what_is_kept(error)}", 1, as_json)
    except Exception as error:
        # typer's parsing errors; its releases bring click under two different names
        if not hasattr(error, "format_message"):
            if not as_json:
                raise
            traceback.print_exc()
            return _complain(f"{type(error).__name__}: {error}", 1, as_json)
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "bakeoff"
        return _complain(f"{in_plain_words(error.format_message())} ({command} --help)", USAGE_ERROR, as_json)


def _what_is_kept(error: OSError) -> str:
    """Say what to do after the system has refused something in a run, which the file of the error names."""
    from bakeoff.records.store import Store, what_is_kept_in

    around = next((folder for folder in Path(str(error.filename or "")).parents if Store.is_run(folder)), None)
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    if error.filename and not (around or is_full):
        return ""  # it is not of a run
    return f"; {'make room first; ' if is_full else ''}{what_is_kept_in(around or 'RUN')}"


def _complain(text: str, exit_status: int, as_json: bool) -> int:
    """Say why a command ended, in one line and as its JSON, and return its exit status."""
    error = " ".join(text.splitlines())
    with signals_ignored():
        say(f"error: {error}", stderr)
        if as_json:
            from bakeoff.reports.command_answers import ErrorAnswer

            print_json(ErrorAnswer(error=error), exit_status)
    return exit_status


if __name__ == "__main__":
    sys.exit(main())
