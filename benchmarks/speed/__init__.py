"""What benchmarks/gpu.py measures: the jobs, one measurement in a process of its own, the results and their page."""
