"""Healthy programs that only final figures come from: no rule and no constant may be chosen on them."""
