"""What every output shows on its first screen: the answer, whether to ship it, what to run now, what was not tried.

A terminal shows it last, where the reader looks. Nothing here is escaped.
"""

import itertools
import shlex
from collections.abc import Sequence

from bakeoff.judging.answer import Certainty
from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.decision import FEWEST_PROCESSES
from bakeoff.judging.doubts_of_winner import CANNOT_RUN, MachineBusy
from bakeoff.judging.judgement import Judgement
from bakeoff.judging.ranking import BASELINE
from bakeoff.records.doubts import Accepted, Effect
from bakeoff.records.failure import LATER
from bakeoff.records.grouping import grouped
from bakeoff.records.schema import LIVE, WITH_WINNERS, Accuracy, Record, Report, Status
from bakeoff.records.text import IN_PYTHON, again, first, listed, one_line, values_of, variables_before, with_option
from bakeoff.reports import machine, number_format, sentences

AGAIN = "all of it again"

MAX_ACCEPTED_RMSE = 1e-2
"""No command is offered that accepts a larger relative RMSE, which is an error of the build's and no rounding."""


def unfinished(judgement: Judgement) -> list[str]:
    missing = machine.what_is_missing(judgement.report, sentences.not_reached(judgement))
    return [text for text in (missing, sentences.what_more_time_would_settle(judgement)) if text]


def whether_to_ship(contests: Sequence[ContestJudgement]) -> str:
    best = [(contest, cell) for contest in contests if (cell := _best(contest)) and cell.record.accuracy]
    parts = [
        f"{'Some' if accuracy.others_compared else 'The'} outputs of {cell.label} could not be checked"
        f"{_in(contest, contests)}: {one_line(accuracy.unchecked)}.{_of_others(accuracy)}"
        for contest, cell in best
        if (accuracy := cell.record.accuracy) and accuracy.unchecked
    ]
    parts += [
        f"The outputs of {cell.label} are off by more than the check allows{_in(contest, contests)} (relative RMSE "
        f"{number_format.error(doubt.relative_rmse)}), but {doubt.why}."
        for contest, cell in best
        for doubt in cell.record.doubts
        if isinstance(doubt, Accepted)
    ]
    checked = [
        (cell.label, accuracy)
        for _, cell in best
        if (accuracy := cell.record.accuracy) and accuracy.passed and not accuracy.unchecked
    ]
    if checked:
        who = checked[0][0] if len(contests) == 1 else f"the best in {len(checked)} of {len(contests)} contests"
        worst = max((check for _, check in checked), key=lambda check: check.relative_rmse)
        upto = "" if len(checked) == 1 else "up to "
        overall = number_format.error_over_all(worst)
        error = upto + number_format.error_of(worst, " in the worst part" if overall else "")
        error += f", {overall}" if overall else ""
        passed = f"The outputs of {who} passed the check against the reference (relative RMSE {error})"
        parts.insert(0, f"{passed}{_what_may_change([contest for contest, _ in best], contests)}.")
    parts += [
        f"{cell.label} cannot be exported{_in(contest, contests)}: {cell.record.no_export}."
        for contest, cell in best
        if cell.record.no_export and contest.answer.certainty is not Certainty.OPEN
    ]
    if len(best) == len(contests) == 1 and best[0][1].cell.configuration == BASELINE and contests[0].answer.winner:
        parts.append(f"{best[0][1].label} is your model as it is: there is nothing to export.")
    return " ".join(parts)


def _of_others(accuracy: Accuracy) -> str:
    passed = f" The others passed the check (relative RMSE {number_format.error(accuracy.relative_rmse)})."
    return passed if accuracy.others_compared else ""


def _what_may_change(best: Sequence[ContestJudgement], contests: Sequence[ContestJudgement]) -> str:
    answers = [contest.answer for contest in best]
    if {answer.certainty for answer in answers} == {Certainty.ALONE}:  # there is no other one
        return ""
    unsure = [
        (contest, answer)
        for contest, answer in zip(best, answers, strict=True)
        if answer.doubts or answer.certainty is Certainty.OPEN
    ]
    if not unsure:
        return f", and nothing was found that could change {'the' if len(contests) == 1 else 'a'} winner"
    if len(contests) > 1:
        names = dict(zip(map(id, contests), sentences.names(contests), strict=True))
        return f"; findings could change the winner of {listed(first([names[id(contest)] for contest, _ in unsure]))}"
    ((contest, answer),) = unsure
    count = len(answer.doubts if contest.load else contest.doubts_of_answer[Effect.WINNER])
    further = "the rest of the run" if contest.is_so_far else "more processes"
    what = further if not count else "one finding" if count == 1 else f"{count} findings"
    return f"; {what} could change the winner"


def _in(contest: ContestJudgement, contests: Sequence[ContestJudgement]) -> str:
    return f" ({contest.title})" if len(contests) > 1 else ""


def _best(contest: ContestJudgement) -> CellJudgement | None:
    return contest.cell_of(next(iter(contest.answer.candidates), None))


def commands(judgement: Judgement, folder: str, is_kept: bool = True) -> dict[str, list[str]]:
    contests, is_alone = judgement.contests, len(judgement.contests) == 1
    exports = [text for contest in contests if (text := export_command(contest, folder, contests, is_kept))]
    are_best = all(exported(contest) in (None, _best(contest)) for contest in contests)
    what = f"the {'winner' if is_alone else 'winners'}" if are_best else "the fastest that can be exported,"
    as_before = again(judgement.report.command)
    undecided = [other for other in contests if other.answer.certainty is Certainty.OPEN]
    busy = [contest for contest in undecided if any(isinstance(doubt, MachineBusy) for doubt in contest.doubts)]
    may_be_decided = [contest for contest in undecided if contest not in busy] if judgement.report.complete else []
    most = max((len(record.processes) for record in judgement.report.records), default=0)
    models = judgement.report.request.get("models")
    wrong = [
        cell
        for contest in contests
        for cell in contest.cells
        if cell.record.status is Status.INCORRECT and (check := cell.record.accuracy) and check.is_only_inexact
    ]
    near = [cell for cell in wrong if _may_be_accepted(cell.record)]
    rules = {rule: value for rule in ("calls", "require") if (value := judgement.report.request.get(rule))}
    asked = " --keep" if is_kept else "".join(f" --{rule} {shlex.quote(str(value))}" for rule, value in rules.items())
    has_kept_models = not isinstance(models, list) or not any(str(model).startswith(LIVE) for model in models)
    by_purpose = {
        f"{what} as {'a folder that runs' if is_alone else 'folders that run'} without Bakeoff": exports,
        "the winners in place of the parts, in Python": [
            f"bakeoff.load_parts({f'{folder}/winners'!r}, pipeline)"
            for contest in contests
            if contest.fastest.winner == WITH_WINNERS
        ],
        "the rest of it": [f"{variables_before(judgement.report.command)}bakeoff resume {shlex.quote(folder)}"]
        if has_kept_models
        and (not judgement.report.complete or any(record.is_left_to_resume for record in judgement.report.records))
        else [],
        "more processes, to decide it": [
            command for contest in may_be_decided if (command := _to_decide(contest, judgement.report))
        ],
        "the same once other programs rest": [
            # waiting would take the time of a budget
            with_option(with_option(line, "--budget", ""), "--wait-for-quiet", "10m")
            for line in as_before
            if not (line.startswith(IN_PYTHON) or values_of(line, "--wait-for-quiet"))
        ]
        if busy
        else [],
        "what works on this machine, and what to do about the rest": ["bakeoff doctor"]
        if any(record.status in CANNOT_RUN for record in judgement.report.records) and not most
        else [],
        "where precision is lost": [
            f"bakeoff blame {shlex.quote(folder)} {shlex.quote(cell.label if is_alone else cell.cell.id)}"
            for cell in wrong
            if has_kept_models and not cell.cell.why_no_modules
        ],
        "to accept errors of this size after all": [accept_command(near, folder) + asked] if near else [],
        **{
            f"the same without --{rule} {shlex.quote(value)}, which is in force": [
                f"bakeoff report {shlex.quote(folder)} --{rule} ''"
            ]
            for rule in (("require", "accept") if is_kept else ())
            if (value := str(judgement.report.request.get(rule) or ""))
        },
        AGAIN: as_before,
    }
    return {purpose: lines for purpose, lines in by_purpose.items() if lines}


def _to_decide(contest: ContestJudgement, report: Report) -> str:
    """Return the command for the candidates of a contest alone, in twice the processes, beside a folder that was named.
    A live model has none."""
    cells = [cell for label in contest.answer.candidates if (cell := contest.cell_of(label))]
    if contest.cell.is_live:
        return ""
    command = cells[0].record.command
    precisions = (precision for cell in cells for precision in values_of(cell.record.command, "--precision"))
    changes = {
        "--backends": ",".join(dict.fromkeys(cell.cell.configuration for cell in cells)),
        "--precision": ",".join(dict.fromkeys(precisions)),
        **{f"--{rule}": str(report.request.get(rule) or "") for rule in ("calls", "require", "accept")},
        "--out": "".join(f"{folder.rstrip('/')}-again" for folder in values_of(report.command, "--out")[:1]),
        "--processes": str(max(FEWEST_PROCESSES, 2 * max(len(cell.record.processes) for cell in cells))),
    }
    for option, value in changes.items():
        command = with_option(command, option, value)
    return command


def _may_be_accepted(record: Record) -> bool:
    is_later = record.failure is not None and record.failure.kind.endswith(LATER)
    return bool(record.accuracy and record.accuracy.relative_rmse <= MAX_ACCEPTED_RMSE and not is_later)


def accept_command(wrong: Sequence[CellJudgement], folder: str) -> str:
    """Return the command that judges a run again and accepts the errors of these cells, rounded up to two digits."""
    largest = max(cell.record.accuracy.relative_rmse for cell in wrong if cell.record.accuracy)
    limit = f"relative_rmse<={float(f'{largest:.1e}') * (1 if float(f'{largest:.1e}') >= largest else 1.1):.1e}"
    return f"bakeoff report {shlex.quote(folder)} --accept {shlex.quote(limit)}"


def export_command(
    contest: ContestJudgement, folder: str, contests: Sequence[ContestJudgement], is_kept: bool = True
) -> str:
    """Return the command that makes a folder of the best cell that can be exported, or nothing if there is none. It
    names the cell by as little as tells it apart, and each contest has a folder of its own."""
    best = exported(contest)
    if best is None or not best.record.artifact or (best.cell.dynamic and not best.record.open_axes):
        return ""
    if not is_kept and any(isinstance(doubt, Accepted) for doubt in best.record.doubts):
        return ""  # on disk it is incorrect
    name = best.label
    if len(contests) > 1:
        named_so = [other for other in contests if other.cell.model == contest.cell.model]
        of_contest = contest.cell.model if named_so == [contest] else contest.contest_id
        name = of_contest if is_kept and best.label == contest.answer.winner else best.cell.id
    out = f" --out export-{contests.index(contest) + 1}" if len(contests) > 1 else ""
    return f"bakeoff export {shlex.quote(folder)} {shlex.quote(name)}{out}"


def exported(contest: ContestJudgement) -> CellJudgement | None:
    """Return the best cell, or where nothing loads what it builds, the best of the others that ranks before the
    baseline. There is none in an undecided contest."""
    best = _best(contest)
    if best is None or contest.answer.certainty is Certainty.OPEN or not best.record.no_export:
        return None if contest.answer.certainty is Certainty.OPEN else best
    others = itertools.takewhile(lambda cell: not cell.is_baseline, contest.ranked)
    return next((cell for cell in others if cell.record.artifact and not cell.record.no_export), None)


def not_tried(judgement: Judgement) -> str:
    """Say how many backends, and which, cannot run here, and what `best` left out and why, or nothing. A backend that
    was named keeps its row, with its reason, and is not counted."""
    shown = {cell.label for contest in judgement.contests for cell in contest.shown}
    absent = dict.fromkeys(cell.label for cell in _left_out(judgement, CANNOT_RUN))
    by_place = {
        "here": [label for label in absent if label not in shown],
        "some of the contests": [label for label in absent if label in shown],
    }
    absences = [f"{not_tried_at(place, labels)}." for place, labels in by_place.items() if labels]
    spared = "; ".join(f"{labels} ({reason})" for reason, labels in _reasons(_left_out(judgement, (Status.LEFT_OUT,))))
    return " ".join([*absences, *([f"Left out: {spared}."] if spared else [])])


def not_tried_at(place: str, labels: Sequence[str]) -> str:
    subject, were = ("1 backend", "was") if len(labels) == 1 else (f"{len(labels)} backends", "were")
    return f"{subject} that cannot run {place} {were} not tried: {', '.join(labels)}"


def why_not(judgement: Judgement) -> list[str]:
    return [f"{labels}: {reason}" for reason, labels in _reasons(_left_out(judgement, CANNOT_RUN))]


def _left_out(judgement: Judgement, statuses: Sequence[Status]) -> list[CellJudgement]:
    cells = [cell for contest in judgement.contests for cell in contest.left_out]
    return [cell for cell in cells if cell.record.status in statuses]


def _reasons(cells: Sequence[CellJudgement]) -> list[tuple[str, str]]:
    alike = grouped(cells, lambda cell: one_line(cell.record.reason) or cell.record.status.value)
    return [(reason, ", ".join(dict.fromkeys(cell.label for cell in ones))) for reason, ones in alike.items()]
