"""Print a diagnosis on a terminal."""

from collections.abc import Iterable

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bakeoff.backends.traps import Facts, Finding, Weight
from bakeoff.doctor.diagnosis import BackendTrial, Diagnosis, OtherEnvironment, Outcome
from bakeoff.records.text import one_line
from bakeoff.reports.terminal import print_whole

STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.ABSENT: "dim",
    Weight.PROBLEM: "bold red",
    Weight.WARNING: "yellow",
    Weight.NOTE: "dim",
}


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    print_whole(_machine(diagnosis.facts), console)
    print_whole(_trials(diagnosis), console)
    for part in (*map(_finding, diagnosis.findings), *map(_environment, diagnosis.environments)):
        print_whole(part, console)
    console.print(Text(_conclusion(diagnosis)), soft_wrap=True, highlight=False)


def _machine(facts: Facts) -> Text:
    cuda = f"CUDA {facts.torch_cuda}" if facts.torch_cuda else "no CUDA"
    gpus = ", ".join(gpu.name for gpu in facts.gpus) or "no GPU"
    driver = f", driver for CUDA {facts.driver_cuda}" if facts.driver_cuda else ""
    where = f", in a container ({facts.container})" if facts.container else ""
    return Text(f"Python {facts.python}, torch {facts.torch} ({cuda}), {gpus}{driver}{where}")


def _trials(diagnosis: Diagnosis) -> Table:
    table = Table("", "backend", "device", "s", "versions (and what is needed)", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[3].justify = "right"
    for trial in diagnosis.trials:
        table.add_row(
            Text(trial.outcome.upper(), STYLES[trial.outcome]),
            Text(trial.label),
            Text(trial.device),
            Text(f"{trial.seconds:.1f}"),
            Group(*_told(trial, diagnosis.facts)),
        )
    return table


def _told(trial: BackendTrial, facts: Facts) -> Iterable[RenderableType]:
    yield Text(", ".join(_versions(trial, facts)))
    if trial.reason:
        yield Text(one_line(trial.reason), STYLES[trial.outcome])
    if trial.remedy:
        yield Text(f"do: {one_line(trial.remedy)}")


def _versions(trial: BackendTrial, facts: Facts) -> Iterable[str]:
    """Return texts such as `torch 2.13.0 (>=2.8.0a0)`. A missing library is named if the trial did not pass."""
    for library in (library for library in facts.libraries.values() if trial.backend in library.backends):
        needed = [library.needed] if library.needed else []
        wants = "; ".join([*needed, *(f"wants {text}" for text in library.requires)])
        if library.version:
            yield f"{library.name} {library.version}{f' ({wants})' if wants else ''}"
        elif trial.outcome is not Outcome.PASS:
            yield f"{library.name} not installed{f' ({wants})' if wants else ''}"


def _finding(finding: Finding) -> RenderableType:
    heading = Text.assemble((finding.weight.upper(), STYLES[finding.weight]), f" {one_line(finding.text)}")
    more = Text(f"do: {one_line(finding.remedy)}\nmore: docs/troubleshooting.md#{finding.trap}")
    return Group(heading, Padding(more, (0, 0, 0, 2)))


def _environment(other_environment: OtherEnvironment) -> RenderableType:
    differs = [
        f"{package} {there} (here {here or 'none'})" for package, (there, here) in other_environment.differs.items()
    ]
    importing = [f"{library.name} {library.version}" for library in other_environment.libraries if library.imports]
    more = [Text(other_environment.python), Text(f"{', '.join(importing) or 'nothing'} can be imported")]
    for library in other_environment.libraries:
        if not library.imports:
            reason = f"{library.name} {library.version} cannot be imported: {one_line(library.import_error)}"
            more.append(Text(reason, STYLES[Outcome.FAIL]))
    heading = Text(f"ENVIRONMENT {other_environment.name}: {', '.join(differs) or 'no package differs'}")
    return Group(heading, Padding(Group(*more), (0, 0, 0, 2)))


def _conclusion(diagnosis: Diagnosis) -> str:
    passed = sum(trial.outcome is Outcome.PASS for trial in diagnosis.trials)
    failed = sum(trial.outcome is Outcome.FAIL for trial in diagnosis.trials)
    absent = len(diagnosis.trials) - passed - failed
    counted = f"{passed} passed, {failed} failed, {absent} absent"
    if diagnosis.broken:
        return f"{counted}. You asked for these, and they do not work: {', '.join(diagnosis.broken)}"
    return counted
