"""A report as a table of cells, one row each, for a spreadsheet or a data frame."""

from __future__ import annotations

import csv
import io

from judging.judgement import Judgement
from reports.columns import columns_of


def to_csv(judgement: Judgement) -> str:
    """Return one row for each cell, contest by contest in the order of reading. What is not known is empty."""
    columns = columns_of(judgement.contests)
    names = [name for column in columns for name in (column.csv, *(column.csv_interval or ())) if name]
    text = io.StringIO()
    writer = csv.DictWriter(text, names if judgement.contests else ["model"], lineterminator="\n")
    writer.writeheader()
    for row in (row for contest in judgement.contests for row in contest.cells):
        writer.writerow({name: value for column in columns for name, value in column.csv_of(row).items()})
    return text.getvalue()
