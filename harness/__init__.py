"""Measuring: from a request to records. The controller directs a run, and workers measure cells for it."""
