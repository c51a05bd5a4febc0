"""Formulas over knobs: parameters, memory by part, traffic and time, on paper. Imports no torch."""

from trainbook.plan.layout import Layout, layout
from trainbook.plan.machines import FIGURES, H100, H200, Cluster, Figure, gpu
from trainbook.plan.memory import Memory, held_states, memory
from trainbook.plan.network import Network, Weight, network
from trainbook.plan.speed import Efficiency, Operations, efficiency, operations
from trainbook.plan.traffic import Collective, Traffic, traffic

__all__ = [
    "FIGURES",
    "H100",
    "H200",
    "Cluster",
    "Collective",
    "Efficiency",
    "Figure",
    "Layout",
    "Memory",
    "Network",
    "Operations",
    "Traffic",
    "Weight",
    "efficiency",
    "gpu",
    "held_states",
    "layout",
    "memory",
    "network",
    "operations",
    "traffic",
]
