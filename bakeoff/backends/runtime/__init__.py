"""Artefacts, loaded: runs measure through these files, `bakeoff.load` calls through them, and exports hold copies.

They import one another by relative imports, and nothing else of Bakeoff.
"""
