"""Pictures, made from plain values: no model, no tensors, no run needed."""
