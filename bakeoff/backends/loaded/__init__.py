"""Artefacts that are loaded in the user's own process and called with flat tensors: a file for each kind of library."""
