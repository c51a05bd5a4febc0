"""Published bugs of training, re-made small, each beside a healthy twin; see bench.py."""
