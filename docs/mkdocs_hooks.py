"""Hooks of the documentation's site. `make docs` names this file in mkdocs.yml."""

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn the comments of the API reference, which GitHub hides, into the docstrings that they name."""
    return re.sub(r"^<!-- (::: [\w.]+) -->$", r"\1", markdown, flags=re.MULTILINE)
