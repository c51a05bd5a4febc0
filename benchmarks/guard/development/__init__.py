"""Healthy programs that a guard's rules may be developed on."""
