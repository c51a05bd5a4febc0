"""Healthy programs written after the guard's rules, by somebody who had not read them."""
