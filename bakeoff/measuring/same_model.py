"""Whether a model that is loaded again is the one that a run has measured, as far as its files and variables show."""

import os
from collections.abc import Mapping

from bakeoff.measuring.variables import own_digests
from bakeoff.records.errors import UsageError
from bakeoff.records.store import Store


def require_same_model(store: Store, reference_id: str | None = None) -> None:
    """Raise UsageError if a file that the run's models come from, or a variable that they read, has changed. With
    `reference_id` it is asked of this model alone."""
    # A report without its run has no such facts, and the nodes of a cluster check their variables themselves.
    if not Store.is_run(store.root) or store.request().get("cluster"):
        return
    require_own_variables(store.own_variables(reference_id), os.environ)
    if changed := store.changed_files(reference_id):
        files = ", ".join(changed)
        raise UsageError(f"{files} is not as it was when the run began: put it back, or begin a new run")


def require_own_variables(recorded: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Raise UsageError if a variable of the user's own is not as it was recorded: the model may be another one."""
    for name, digest in own_digests(recorded, given).items():
        if digest == recorded[name]:
            continue
        remedy = f"set {name} as it was" if recorded[name] else f"unset {name}"
        now = ("has another value than" if recorded[name] else "is set and was not") if digest else "is not set and was"
        raise UsageError(
            f"the model's files read the environment variable {name}, which {now} when the run began: "
            f"{remedy}, or begin a new run"
        )
