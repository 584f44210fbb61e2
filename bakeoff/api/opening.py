"""Opens the result of any run again."""

from pathlib import Path

from bakeoff.api.result import PARTS, RESULTS, Result, result_at


def open_run(run: str | Path) -> Result:
    """Return the result of any run: of `bakeoff.compare`, or of the command line.

    Args:
        run: The folder of the run, its `report.json`, or the name of a folder in `results/`.

    Returns:
        The result. It is a `PipelineResult` for a run of `parts`.

    Raises:
        bakeoff.UsageError: Where there is no run.
    """
    path = Path(run)
    if not path.exists() and (RESULTS / path).is_dir():
        path = RESULTS / path
    result = result_at(path)
    parts = result.folder / PARTS
    if not parts.is_dir():
        return result
    from bakeoff.api.pipelines import PipelineResult, results_of_parts

    return PipelineResult(result.report, result.folder, results_of_parts(result_at(parts)))
