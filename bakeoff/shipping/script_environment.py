"""The smallest environment that runs a script: its distributions with all that they need, and their sizes on disk."""

import contextlib
import pickletools
import sysconfig
import venv
import zipfile
from collections.abc import Collection, Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def sizes_of(requirements: Iterable[str]) -> dict[str, int]:
    """Return the bytes of each distribution that these requirements bring, as they are installed here, with shared
    files counted once. Raise PackageNotFoundError if one of them is not installed."""
    sizes: dict[str, int] = {}
    counted: set[str] = set()
    waiting = [Requirement(line) for line in requirements if line.strip() and not line.startswith("#")]
    done: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        distribution = metadata.distribution(wanted.name)
        if name not in sizes:
            sizes[name] = _size(distribution, counted)
        for extra in ("", *sorted(wanted.extras)):
            if (name, extra) not in done:
                done.add((name, extra))
                waiting += [
                    needed
                    for needed in map(Requirement, distribution.requires or [])
                    if needed.marker is None or needed.marker.evaluate({"extra": extra})
                ]
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def make_environment(distributions: Collection[str], folder: Path) -> Path:
    """Make a virtual environment that has these distributions and no others, as links. Return its interpreter. Raise
    OSError where links are not allowed."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    base = {"base": str(folder), "platbase": str(folder)}
    libraries = Path(sysconfig.get_path("purelib", "venv", base))
    for name in distributions:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
            with contextlib.suppress(FileExistsError):  # several distributions share a namespace
                (libraries / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    return Path(sysconfig.get_path("scripts", "venv", base)) / "python"


def distributions_in(pickled: Path, others: Collection[str]) -> list[str]:
    """Return the distributions whose modules a file of torch.save names, without `others`."""
    owners = metadata.packages_distributions()
    with zipfile.ZipFile(pickled) as archive:
        (program,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        texts = {text for _, text, _ in pickletools.genops(archive.read(program)) if isinstance(text, str)}
    tops = {text.partition(".")[0] for text in texts if "." in text}
    return sorted({owners[top][0] for top in tops if top in owners} - {*others, "bakeoff"})


def _size(distribution: metadata.Distribution, counted: set[str]) -> int:
    total = 0
    for file in distribution.files or []:
        path = Path(str(file.locate()))
        if str(path) not in counted and path.is_file():
            counted.add(str(path))
            total += path.stat().st_size
    return total
