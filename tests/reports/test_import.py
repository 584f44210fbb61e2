import subprocess
import sys
from pathlib import Path

from bakeoff.reports.writer import write
from tests.reports.samples import conv_on_cpu, report

ROOT = Path(__file__).parents[2]

RENDER = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, NoTorch())
from io import StringIO
from pathlib import Path
from rich.console import Console
from bakeoff.records.report_file import read
from bakeoff.reports.writer import write
from bakeoff.judging.judgement import judge
from bakeoff.reports.live_table import LiveTable
from bakeoff.reports.run_report import print_report
source, target = map(Path, sys.argv[1:])
report = read(source)
write(report, target)
print_report(judge(report), Console(file=StringIO()))
assert "matplotlib.pyplot" not in sys.modules
"""


def test_a_report_renders_where_there_is_no_torch(tmp_path: Path) -> None:
    write(report(conv_on_cpu()), tmp_path / "measured", figures=False)
    done = subprocess.run(
        [sys.executable, "-c", RENDER, tmp_path / "measured", tmp_path / "rendered"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for name in ("report.json", "cells.csv"):
        assert (tmp_path / "rendered" / name).read_bytes() == (tmp_path / "measured" / name).read_bytes()
    assert "](figures/samples.svg)" in (tmp_path / "rendered" / "details.md").read_text(encoding="utf-8")


def test_the_harness_can_import_the_writer_without_matplotlib() -> None:
    code = "import sys, bakeoff.reports.writer; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}).returncode == 0
