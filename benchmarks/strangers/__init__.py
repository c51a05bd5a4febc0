"""Runs like those of strangers, faulty and healthy, to measure the doctor on. See bench.py."""
