"""Formulas over knobs: parameters, memory by part, traffic and time, on paper. Imports no torch."""

from trainbook.plan.answer import plan
from trainbook.plan.gpus import GPUS, Gpu, find_gpu, gpu
from trainbook.plan.machines import FIGURES, H100, H200, Cluster, DeviceLayout, Figure, layout
from trainbook.plan.memory import MemoryForecast, memory
from trainbook.plan.network import Network, Weight, network
from trainbook.plan.states import held_states
from trainbook.plan.subject import PlanSubject
from trainbook.plan.suggest import Suggestion, suggestions
from trainbook.plan.time import Time, time_of
from trainbook.plan.traffic import Collective, Operations, Traffic, operations, traffic

__all__ = [
    "FIGURES",
    "GPUS",
    "H100",
    "H200",
    "Cluster",
    "Collective",
    "DeviceLayout",
    "Figure",
    "Gpu",
    "MemoryForecast",
    "Network",
    "Operations",
    "PlanSubject",
    "Suggestion",
    "Time",
    "Traffic",
    "Weight",
    "find_gpu",
    "gpu",
    "held_states",
    "layout",
    "memory",
    "network",
    "operations",
    "plan",
    "suggestions",
    "time_of",
    "traffic",
]
