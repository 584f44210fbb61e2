"""Wheels of a single module, in versions that nobody has released."""

import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str, code: str = "") -> Path:
    """Write a wheel of a package whose one module holds `code`."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    files = {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}.py": code,
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        archive.writestr(f"{about}/RECORD", "".join(f"{file},,\n" for file in files) + f"{about}/RECORD,,\n")
    return path
