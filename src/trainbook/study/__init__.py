"""Short trainings that answer a question: what a configuration takes here, and which batches are worth having."""

from trainbook.study.batch import Search, Trial, flattens_at
from trainbook.study.measure import measure
from trainbook.study.noise import NoiseScale, noise_scale

__all__ = ["NoiseScale", "Search", "Trial", "flattens_at", "measure", "noise_scale"]
