"""From a request to contests, cells and time: pure functions that import no compiler and touch no device."""
