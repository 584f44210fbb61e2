"""Loads a model by its name, as a worker does."""

from bakeoff import models
from bakeoff.models.base import LoadedModel


def load(name: str, seed: int = 0, **given: int | str) -> LoadedModel:
    family = models.find(name)
    return family.load(family.resolve(given), seed)
