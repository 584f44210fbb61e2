"""A report as a table of cells, one row each, for a spreadsheet or a data frame."""

from __future__ import annotations

import csv
import io

from judging.judgement import contests_of
from records.schema import Report
from reports.columns import columns_of


def to_csv(report: Report) -> str:
    """Return one row for each cell, contest by contest in the order of reading. What is not known is empty."""
    contests = contests_of(report)
    columns = columns_of(contests)
    names = [name for column in columns for name in (column.csv, *(column.csv_interval or ())) if name]
    text = io.StringIO()
    writer = csv.DictWriter(text, names if contests else ["model"], lineterminator="\n")
    writer.writeheader()
    for row in (row for contest in contests for row in contest.cells):
        writer.writerow({name: value for column in columns for name, value in column.csv_of(row).items()})
    return text.getvalue()
