"""Tells of the machine and the method of a report, in plain text that Markdown and the page lay out."""

from collections import Counter
from collections.abc import Iterable, Sequence

from bakeoff.judging.judgement import ContestJudgement
from bakeoff.records.schema import Environment, Gpu, Record, Report, Status
from bakeoff.records.text import counted, first, listed, one_line
from bakeoff.reports import number_format, start_report
from bakeoff.reports.number_format import MEBIBYTE


def environment_facts(environment: Environment) -> dict[str, str]:
    cores = (environment.physical_cores, environment.logical_cores, environment.usable_cores)
    commit = environment.git_commit
    facts = {
        "host": environment.hostname,
        "system": environment.os,
        "container": environment.container,
        "CPU": environment.cpu,
        "cores (physical / logical / usable)": " / ".join("?" if core is None else str(core) for core in cores),
        "governor": environment.governor,
        "memory (MiB)": number_format.mebibytes(environment.memory_bytes) if environment.memory_bytes else None,
        "torch threads": environment.torch_threads,
        **{f"GPU {gpu.index}": _gpu(gpu) for gpu in environment.gpus},
        "CUDA": environment.cuda,
        "Python": environment.python,
        **dict(sorted(environment.versions.items())),
        "commit": f"{commit}{' with uncommitted changes' if environment.git_dirty else ''}" if commit else None,
        **dict(sorted(environment.variables.items())),
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def what_is_missing(report: Report, not_reached: Sequence[str] = ()) -> str:
    """Say what is missing from a run that was interrupted, or nothing if it was not. Cells have these names."""
    if report.complete:
        return ""
    if report.reached < report.planned:
        ahead = f" Not reached yet: {listed(first(not_reached))}." if not_reached else ""
        have, were = ("has", "was") if report.planned == 1 else ("have", "were")
        of_all = f"{report.reached} of {counted(report.planned, 'cell')}"
        return f"Incomplete: {of_all} {have} ended or {were} measured in part.{ahead}"
    if report.lacks_only_starts:
        return "Interrupted: all cells are measured, and the starts that were asked for are missing."
    if report.request.get("load"):
        loads = [record.load for record in report.records if record.status is Status.OK]
        if unloaded := sum(load is None or not (load.turns or load.reason) for load in loads):
            which = f"{unloaded} of {counted(report.planned, 'cell')} {'has' if unloaded == 1 else 'have'}"
            return f"Interrupted: {which} no number under load yet, and the answers are those so far."
    which = "its cell has" if report.planned == 1 else f"all {report.planned} cells have"
    return f"Interrupted: {which} numbers, and the answers are those so far."


def variables_to_set(environment: Environment) -> str:
    names = environment.own_variables_set
    if not names:
        return ""
    were, them = ("was", "it") if len(names) == 1 else ("were", "them")
    return f"The model's files read {listed(names)}, which {were} set: set {them} for these commands, too."


def name(environment: Environment) -> str:
    """Return `4 x NVIDIA H200`, or the CPU of a machine without GPUs."""
    counts = Counter(gpu.name for gpu in environment.gpus)
    gpus = ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())
    return gpus or environment.cpu


def origin(environment: Environment, records: Iterable[Record], day: str) -> str:
    """Return `NVIDIA H200, torch 2.11.0, onnxruntime 1.31.1, 2026-11-21`: where, with what and when it was measured."""
    kept = list(records)
    on_gpu = any(record.cell.device.is_cuda for record in kept)
    versions = {f"{name} {version}": None for record in kept for name, version in record.versions.items()}
    machine = name(environment) if on_gpu else f"{environment.cpu} ({environment.usable_cores or '?'} cores)"
    return ", ".join([machine, *versions, day])


def summary(report: Report) -> list[str]:
    environment = report.environment
    torch = f"torch {environment.versions['torch']}" if "torch" in environment.versions else ""
    return [part for part in (report.run_id, torch, f"Python {environment.python}", report.created_at) if part]


def devices(report: Report) -> str:
    on_cuda = {record.cell.device.is_cuda for record in report.records}
    environment = report.environment
    gpus = ", ".join(dict.fromkeys(gpu.name for gpu in environment.gpus)) if True in on_cuda else ""
    return (
        " and ".join(one_line(each) for each in (gpus, environment.cpu if False in on_cuda else "") if each)
        or "this machine"
    )


def tensor_core_rates(contest: ContestJudgement) -> str:
    """Compare the nominal rate of the tensor cores with what a large product and the best cell reach. Return nothing if
    the rate is not known, or if the contest is bound by memory."""
    roofline, best = contest.roofline, contest.best
    if roofline is None or roofline.tensor_cores is None or roofline.bound != "compute":
        return ""
    nominal = roofline.tensor_cores
    of_product = roofline.ceiling_flops_per_s / nominal.flops_per_s
    text = (
        f"{number_format.quantity(nominal.flops_per_s, 'FLOP/s')} nominally, at the highest clock of "
        f"{nominal.sm_clock_mhz / 1e3:.2f} GHz; a large product reaches {number_format.percent(of_product)} % of that"
    )
    if best is None or best.record.roofline is None or best.record.roofline.share is None:
        return text
    # the contest is bound by compute, so that a share of the floor is one of the product's rate
    share = number_format.percent(best.record.roofline.share * of_product)
    reached = f"{share} % ({number_format.achieved_rate(best.record)})"
    return f"{text}, {one_line(best.label)} {reached}"


def method_notes(report: Report) -> list[str]:
    lines = [
        f"Made {report.created_at} in {number_format.seconds(report.elapsed_s)} s; schema {report.schema_version}.",
        "All latencies and ratios of a contest come from one fit of the rounds that its cells shared. Intervals are "
        "over processes.",
        "A percentile that the sample is too small to hold is n/a; no sample is deleted as an outlier.",
    ]
    if any(record.roofline for record in report.records):
        lines.append(
            "The floor is the least time that the machine's ceilings leave for a call: the operations that it needs at "
            "least, at the rate of a large matrix product in that precision, or its weights, inputs and outputs at the "
            "rate of the level of memory that holds them, whichever takes longer."
        )
    if started := [cell for record in report.records for cell in record.starts]:
        lines += start_report.notes_of(started)
    return lines


def _gpu(gpu: Gpu) -> str:
    facts = [
        gpu.name,
        gpu.memory_bytes and f"{gpu.memory_bytes / MEBIBYTE:,.0f} MiB",
        gpu.driver and f"driver {gpu.driver}",
        gpu.sm_clock_mhz and f"SM {gpu.sm_clock_mhz} of {gpu.max_sm_clock_mhz or '?'} MHz",
        gpu.memory_clock_mhz and f"memory {gpu.memory_clock_mhz} MHz",
        gpu.power_limit_w and f"limit {gpu.power_limit_w:.0f} W",
        gpu.temperature_c is not None and f"{gpu.temperature_c} °C",
        gpu.persistence_mode is False and "persistence mode off",
        gpu.other_processes and f"{counted(gpu.other_processes, 'other process')}",
    ]
    return ", ".join(str(fact) for fact in facts if fact)
