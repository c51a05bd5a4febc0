"""Imported once, for all processes that runs are made in."""

import faults
import torch

import trainbook.api
import trainbook.loop.build
import trainbook.loop.session

assert faults and torch and trainbook.api and trainbook.loop.build and trainbook.loop.session
