"""Makes reports for tests: three contests with every status, from seeded samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bakeoff.judging.estimate import process_medians_ms
from bakeoff.judging.fit import summarise
from bakeoff.judging.judgement import Judgement, judge
from bakeoff.measuring.controller.cell_record import facts_of_backend
from bakeoff.records.doubts import Caveat
from bakeoff.records.failure import Failure
from bakeoff.records.metrics import Metric, Metrics
from bakeoff.records.schema import (
    Accuracy,
    Burst,
    Cell,
    Conditions,
    DeviceTime,
    Environment,
    Extent,
    Gpu,
    Memory,
    Phase,
    Placement,
    Process,
    Record,
    Report,
    Roofline,
    Status,
    Throughput,
    WarmUp,
)
from bakeoff.records.start_samples import Start

MIB = 2**20
LAYOUTS = (1.0, 1.004, 0.997, 1.002, 0.999)
"""How many times as slow five equal processes are."""
HOSTILE = "a|b `c` <b>bold</b> *d* [e](http://f) $g$ \x1b[31mred\x1b[0m\n# heading\n</details> ``` {x} [bold]y[/bold]"

Scores = list[float] | float
"""Of each sample, or a plain number."""


def cell(
    backend: str = "eager", mode: str = "default", model: str = "conv", device: str = "cpu", **more: object
) -> Cell:
    return Cell.model_validate({"backend": backend, "mode": mode, "model": model, "device": device, **more})


def bursts(median_ms: float, rounds: int = 12, calls: int = 80, seed: int = 0, spread: float = 0.02) -> list[Burst]:
    """Return log-normal calls around a median that moves a little from burst to burst, the same for all seeds."""
    random = np.random.default_rng([seed, int(median_ms * 1e6)])
    made = []
    for number in range(rounds):
        level = median_ms * (1 + 0.03 * np.sin(number)) * np.exp(random.normal(0, 0.004))
        samples = level * np.exp(np.abs(random.normal(0, spread, calls)))
        samples_ns = (samples * 1e6).astype(int).tolist()
        made.append(Burst(group=0, round=number, started_s=0.8 * number, samples_ns=samples_ns))
    return made


def over_processes(
    median_ms: float, biases: Sequence[float] = (1.0, 1.004, 0.997), rounds: int = 12, seed: int = 0, **more: Any
) -> list[Burst]:
    """Return `bursts` in one process for each of `biases`, which say how many times as slow as `median_ms` it is."""
    made = []
    for process, bias in enumerate(biases):
        taken = bursts(median_ms * bias, rounds, seed=1000 * process + seed, **more)
        made += [each.but(group=process, process=process, started_s=each.started_s + 60.0 * process) for each in taken]
    return made


def constant(milliseconds: Sequence[float], group: int = 0, first_round: int = 0, process: int = 0) -> list[Burst]:
    """Return a burst for each value; all of its calls take exactly that."""
    return [
        Burst(
            group=group,
            round=first_round + number,
            started_s=number,
            samples_ns=[round(value * 1e6)] * 3,
            process=process,
        )
        for number, value in enumerate(milliseconds)
    ]


def steady(levels_ms: Sequence[float], rounds: int = 6, group: int = 0) -> list[Burst]:
    """Return a process for each level; all of its calls take exactly that. Groups are counted from `group`."""
    return [
        burst
        for process, level_ms in enumerate(levels_ms)
        for burst in constant([level_ms] * rounds, group=group + process, process=process)
    ]


def once(level_ms: float, backend: str, build_s: float = 0.0, first_round: int = 0, **more: object) -> Record:
    """Return the record of a cell that was measured in one process."""
    values = [level_ms * value for value in (1.0, 1.001, 0.999, 1.0, 1.002, 0.998)]
    return ok(cell(backend), constant(values, first_round=first_round), build_s=build_s, **more)


def lived(level_ms: float, backend: str, layouts: Sequence[float] = LAYOUTS, **more: object) -> Record:
    """Return the record of a cell that was measured in a process for each of `layouts`."""
    return ok(cell(backend), steady([level_ms * layout for layout in layouts]), **more)


def under(bursts: Sequence[Burst], **conditions: Any) -> list[Burst]:
    """Return the same bursts, taken under these conditions."""
    return [burst.but(conditions=Conditions(**conditions)) for burst in bursts]


def scored(record: Record, scores: Scores | None, reference: Scores, **more: Any) -> Record:
    """Return the record with `top1` of these scores, or with why it has none, beside that of the reference."""

    def metrics(given: Scores | None) -> Metrics:
        if given is None:
            return Metrics(failure=Failure(kind="UsageError", text="evaluate returned nan as top1"))
        top1 = Metric.of_scores(given) if isinstance(given, list) else Metric(value=given)
        return Metrics(values={"top1": top1}, **more)

    return record.but(metrics=metrics(scores), reference_metrics=metrics(reference))


def caveat(text: str) -> Caveat:
    return Caveat(text=text)


def ok(measured: Cell, made: list[Burst], build_s: float = 0.0, first_call_s: float = 0.01, **more: object) -> Record:
    """Return a record with numbers, summarised as the harness does it."""
    phases = [Phase(name="export", seconds=build_s * 0.2), Phase(name="compile", seconds=build_s * 0.7)]
    phases += [Phase(name="load", seconds=build_s * 0.1)]
    phases = [*(phases if build_s else []), Phase(name="first_call", seconds=first_call_s)]
    peak = Memory(
        peak_resident_bytes=900 * MIB,
        peak_device_bytes=412 * MIB if measured.device != "cpu" else None,
        artifact_bytes=3 * MIB if build_s else None,
    )
    latency = summarise(made)
    calls_per_s = min(900.0, 1400 / latency.median_ms) if latency else 900.0  # hardly more than single calls allow
    fields: dict[str, object] = {
        "cell": measured,
        "status": Status.OK,
        "phases": phases,
        "processes": processes_of(made, phases),
        "warm_up": WarmUp(calls=120, seconds=0.6, steady=True),
        "bursts": made,
        "latency": latency,
        "throughput": Throughput(calls_per_s=calls_per_s, blocks=5, block_s=0.1),
        "device_time": DeviceTime(median_ms=0.5, calls=200) if measured.device != "cpu" else None,
        "accuracy": accuracy(),
        "memory": peak,
        "placement": Placement(extent=Extent.FULL, engines={measured.backend: 12}),
        "command": f"python runner.py --model {measured.model} --backends {measured.label}",
        "colour": facts_of_backend(measured).get("colour", ""),
        "started_at": "2026-05-01T10:00:00Z",
        "elapsed_s": 4.0 + build_s,
    }
    return Record.model_validate(fields | more)


def processes_of(made: list[Burst], phases: list[Phase]) -> list[Process]:
    """Return the processes of the bursts. The first one took `phases`; the others started warm in a tenth of them."""
    warm = [phase.but(seconds=phase.seconds / 10) for phase in phases if phase.name != "export"]
    return [
        Process(
            index=index,
            warm=place > 0,
            phases=warm if place else phases,
            calls=sum(len(burst.samples_ns) for burst in made if burst.process == index),
            median_ms=median_ms,
        )
        for place, (index, median_ms) in enumerate(process_medians_ms(made).items())
    ]


def failed(measured: Cell, status: Status, reason: str, **more: object) -> Record:
    fields = {
        "cell": measured,
        "status": status,
        "reason": reason,
        "colour": facts_of_backend(measured).get("colour", ""),
    }
    return Record.model_validate({**fields, "elapsed_s": 1.5, **more})


def accuracy(relative_rmse: float = 1.3e-7, passed: bool = True, rule: str = "allclose") -> Accuracy:
    return Accuracy(
        rmse=relative_rmse * 2,
        relative_rmse=relative_rmse,
        max_abs_error=relative_rmse * 9,
        eager_rmse=2.4e-7,
        allclose=passed,
        rtol=1e-4,
        atol=1e-5,
        passed=passed,
        rule=rule,
    )


def roofline(median_ms: float) -> Roofline:
    """Return the roofline of a model with a floor of 0.151 ms."""
    return Roofline(
        flops=872_415_232,
        bytes_moved=6_844_416,
        ceiling_flops_per_s=1.99e13,
        ceiling_bytes_per_s=4.52e10,
        floor_ms=6_844_416 / 4.52e7,
        bound="memory",
        share=6_844_416 / 4.52e7 / median_ms,
    )


def product_on_cuda(bound: str = "compute", clock_mhz: int | None = 1980) -> list[Record]:
    """Return a large product on an H200. The rate of its tensor cores is not known without `clock_mhz`."""
    nominal = {"flops_per_s": 132 * 4096 * clock_mhz * 1e6, "sm_clock_mhz": clock_mhz} if clock_mhz else None
    measured = {name: cell(name, model="matmul_fp16", device="cuda", precision="fp16") for name in ("eager", "triton")}
    flops, ceiling = 1_099_511_627_776, 7.32e14

    def against(median_ms: float) -> Roofline:
        floor_ms = 1e3 * flops / ceiling
        return Roofline.model_validate(
            {
                "flops": flops,
                "bytes_moved": 402_653_184,
                "ceiling_flops_per_s": ceiling,
                "ceiling_bytes_per_s": 4.2e12,
                "floor_ms": floor_ms,
                "bound": bound,
                "share": floor_ms / median_ms,
                "tensor_cores": nominal,
            }
        )

    return [
        ok(measured["eager"], constant([1.7] * 12), roofline=against(1.7)),
        ok(measured["triton"], constant([1.55] * 12), roofline=against(1.55)),
    ]


def strictly_on_cpu() -> list[Record]:
    """Return a run with --strict: one cell ran where it should, one did not, one does not tell, one failed."""
    partly = Placement(
        extent=Extent.PARTIAL,
        engines={"TensorRT|v10": 10, "torch": 3},
        fallbacks=["aten.gelu", "sort|x", "topk"],
        time_share={"torch": 0.034, "TensorRT|v10": 0.966},
        evidence=["a profile of one call", "<b>its</b> log"],
    )
    in_force = {"cudnn_allow_tf32": False, "layers": {"i8": 3, "f32": 1}, "note": "*as* asked"}
    why = "placement is partial, and --strict asks for full: aten.gelu, sort|x and 1 more"
    return [
        ok(cell("eager"), bursts(1.7), roofline=roofline(1.7), precision_in_force=in_force),
        ok(cell("onnx"), bursts(0.9, seed=1), build_s=0.3, roofline=roofline(0.1), status=Status.FALLBACK,
           reason=why, placement=partly),
        ok(cell("openvino"), bursts(0.8, seed=2), build_s=0.3, roofline=roofline(0.8), status=Status.FALLBACK,
           reason="openvino does not report where it ran, and --strict asks for full", placement=None),
        failed(cell("inductor"), Status.ERROR, "no compiler"),
    ]  # fmt: skip


def conv_on_cpu() -> list[Record]:
    """Return a clear winner, an incorrect cell that is even faster, a crash and a missing library."""
    share: dict[str, object] = {"dimensions": {"batch": 4, "size": 128}}
    cells = {
        name: cell(*name.split("/"), **share)
        for name in ("eager", "inductor", "inductor/max-autotune", "onnx", "openvino", "torchscript", "tensorrt")
    }
    wrong = accuracy(0.31, passed=False, rule="rmse is 1.2e+06x eager's, over 2x")
    return [
        ok(cells["eager"], bursts(1.74)),
        ok(
            cells["inductor"],
            bursts(1.21, seed=1, spread=0.05),
            build_s=11.2,
            doubts=[caveat("warm-up never became steady")],
        ),
        ok(cells["inductor/max-autotune"], bursts(1.13, seed=2), build_s=48.0),
        ok(cells["onnx"], bursts(0.94, seed=3), build_s=0.9),
        ok(cells["openvino"], bursts(0.55, seed=4), build_s=2.1, status=Status.INCORRECT, accuracy=wrong,
           reason="error against the reference is 0.31 of its size"),
        failed(cells["torchscript"], Status.CRASH, "died in load, signal 11", died_in="load", signal=11,
               phases=[Phase(name="export", seconds=0.8), Phase(name="compile", seconds=3.1)],
               log_tail="loading module\nSegmentation fault (core dumped)",
               command="python runner.py --backends torchscript"),
        failed(cells["tensorrt"], Status.UNAVAILABLE, "no CUDA device on this machine", asked_by_name=True),

    ]  # fmt: skip


def mlp_on_cuda() -> list[Record]:
    """Return two cells that tie, one that ran elsewhere in part, one out of memory and one over its time limit."""
    share: dict[str, object] = {"model": "mlp", "device": "cuda", "precision": "fp16"}
    partly = Placement(extent=Extent.PARTIAL, engines={"TensorRT": 10, "torch": 2}, fallbacks=["gelu", "sort"])
    return [
        ok(cell("eager", **share), bursts(0.0990, spread=0.05)),
        ok(cell("inductor", **share), bursts(0.1270, seed=1), build_s=9.7),
        ok(cell("onnx", **share), bursts(0.0741, seed=2), build_s=1.4),
        ok(cell("tensorrt", **share), bursts(0.0740, seed=3), build_s=31.0),
        ok(cell("torch-tensorrt", **share), bursts(0.0861, seed=4), build_s=36.0, placement=partly),
        failed(cell("inductor", "max-autotune", **share), Status.OOM, "CUDA out of memory", died_in="compile"),
        failed(cell("aotinductor", **share), Status.TIMEOUT, "still in compile after 600 s", died_in="compile",
               phases=[Phase(name="export", seconds=2.5)]),
    ]  # fmt: skip


def hostile_on_cpu() -> list[Record]:
    """Return cells with markup in their names and messages, and no baseline."""
    share: dict[str, object] = {"model": "./my|models/<net>_v2$x$.py:Net"}
    return [
        ok(cell("third_party*", **share), bursts(12.5, rounds=6, calls=20)),
        ok(cell("null", "slow[bold]", **share), bursts(480.0, rounds=6, calls=20, seed=1), build_s=0.3),
        failed(cell("onnx", **share), Status.ERROR, HOSTILE, died_in="export", log_tail=HOSTILE, asked_by_name=True,
               command="python runner.py --model '<net>' \\\n  --backends onnx"),
        failed(cell("openvino", **share), Status.UNSUPPORTED, "has no such thing"),
    ]  # fmt: skip


def environment() -> Environment:
    return Environment(
        hostname="bench|1",
        os="Linux 6.8",
        cpu="AMD EPYC 9654",
        physical_cores=96,
        logical_cores=192,
        usable_cores=16,
        governor=None,
        memory_bytes=128 * 1024 * MIB,
        torch_threads=16,
        gpus=[Gpu(index=0, name="NVIDIA H200", memory_bytes=143771 * MIB, driver="570.1", sm_clock_mhz=1980)],
        python="3.12.4",
        versions={"torch": "2.9.0", "onnxruntime": "1.23.0"},
        cuda="12.8",
        git_commit="abc1234",
        git_dirty=True,
        variables={"OMP_NUM_THREADS": "16"},
    )


def report(records: list[Record] | None = None, **more: object) -> Report:
    """Return a report of these records, or of the three contests."""
    records = [*conv_on_cpu(), *mlp_on_cuda(), *hostile_on_cpu()] if records is None else records
    fields: dict[str, object] = {
        "run_id": "20260501-100000-conv",
        "created_at": "2026-05-01T10:00:00Z",
        "complete": True,
        "planned": len(records),
        "command": "python runner.py --model conv --backends all",
        "request": {"models": ["conv"], "rounds": 12, "ratio": 0.5},
        "environment": environment(),
        "records": records,
        "notes": ["children were forked from a server that had torch imported"],
        "elapsed_s": 312.0,
    }
    return Report.model_validate(fields | more)


def judged(records: list[Record] | None = None, **more: object) -> Judgement:
    """Return what the report of these records means."""
    return judge(report(records, **more))


def sweep(contests: int = 12, backends: int = 7) -> Report:
    """Return a report of one model over many sizes."""
    names = ["eager", "inductor", "inductor/max-autotune", "onnx", "openvino", "torch-tensorrt/dynamic", "tensorrt"]
    records = []
    for number in range(contests):
        share: dict[str, object] = {"model": "transformer", "dimensions": {"batch": 2**number, "sequence": 128}}
        for place, name in enumerate(names[:backends]):
            member = cell(*name.split("/"), **share)
            if place == 4 and number > 6:
                records.append(failed(member, Status.OOM, "out of memory", died_in="first_call"))
            else:
                made = bursts(0.4 * 1.7**number / (1 + 0.17 * place), rounds=8, calls=20, seed=place)
                records.append(ok(member, made, build_s=place * 3.0 + number * 0.5))
    return report(records)


def suite(models: int = 6, **more: Any) -> list[Record]:
    """Return the records of a suite: onnx fails on one model, openvino on two alike, and tensorrt cannot run here.

    onnx is twice as fast as eager, openvino 1.6 times, and inductor as fast as eager.
    """
    found = []
    for number in range(models):
        share: dict[str, object] = {"model": f"hf:presets/zoo/net{number}", "dimensions": {"batch": 1}, **more}
        level_ms = 4.0 * 1.5**number

        def made(name: str, times: float, build_s: float, share: Any = share, level_ms: float = level_ms) -> Record:
            levels_ms = [level_ms / times * layout for layout in LAYOUTS]
            return ok(cell(name, **share), steady(levels_ms), build_s=build_s)

        shape = f"RuntimeError: expected a tensor of {3 + number} dimensions, got '{number}'"
        ending = {"died_in": "compile", "failure": Failure(kind="RuntimeError", text=shape)}
        found += [
            made("eager", 1.0, 0.0),
            made("inductor", 1.0, 20.0),
            failed(cell("onnx", **share), Status.ERROR, "no operator aten::nms", died_in="export")
            if number == 1
            else made("onnx", 2.0, 5.0 + number),
            failed(cell("openvino", **share), Status.CRASH, shape, **ending)
            if number in (2, 3)
            else made("openvino", 1.6, 4.0),
            failed(cell("tensorrt", **share), Status.UNAVAILABLE, "no CUDA device on this machine"),
        ]
    return found


def start(imports_s: float, **more: float | None) -> Start:
    """Return a start whose other stages take a tenth of a second each."""
    times = dict.fromkeys(("interpreter_s", "load_s", "first_answer_s", "later_answers_s"), 0.1)
    memory = {"peak_bytes": 10**8, "steady_bytes": 10**8, "device_bytes": None}
    return Start.model_validate({"imports_s": imports_s, **times, **memory, **more})
