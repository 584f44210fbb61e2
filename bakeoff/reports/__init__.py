"""From records to a report: schema, statistics, verdict, and the forms a report is read in. Never imports torch."""
