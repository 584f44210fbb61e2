"""What the cells of one contest have in common."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from bakeoff.judging.acceptance import ACCEPTS_NOTHING, Acceptance
from bakeoff.measuring.controller.build_folder import BuildFolder
from bakeoff.measuring.controller.environment import Machine
from bakeoff.measuring.controller.progress import Progress
from bakeoff.measuring.messages import Evaluation
from bakeoff.planning.load_plan import LoadPlan
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.records.metrics import Metrics
from bakeoff.records.store import Store


@dataclass(frozen=True)
class MetricsSetup:
    """The user's `evaluate`, and what it says of the reference."""

    evaluation: Evaluation
    reference: Metrics
    limit_s: float


@dataclass(frozen=True, kw_only=True)
class ContestSetup:
    """What the cells of a contest have in common."""

    store: Store
    progress: Progress
    sampling: SamplingPlan
    time_limit_s: float
    folders: Mapping[str, BuildFolder] = field(default_factory=dict)  # of builds that are kept or shared, by cell's id
    machine: Machine = field(default_factory=Machine)
    metrics: MetricsSetup | None = None  # None: nothing is evaluated
    load: LoadPlan | None = None
    acceptance: Acceptance = ACCEPTS_NOTHING
    interleaved: bool = True  # all cells are alive together, and stopped while another one is measured
    budget_ends_s: float = math.inf  # the run's time budget
    is_machine_busy: bool = False
