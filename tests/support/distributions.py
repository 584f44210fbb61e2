"""Installs what a test has written, as a package of somebody else's would be."""

from pathlib import Path

from bakeoff import backends


def distribute(name: str, entry_point: str, folder: Path, distribution: str = "bakeoff-fakes") -> None:
    """Put a distribution with a backend into `folder`, which is to be on Python's path."""
    information = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{backends.ENTRY_POINTS}]\n{name} = {entry_point}\n")
