"""Measuring: from a request to records. Import order: run → contest → launcher → (in the child) worker."""
