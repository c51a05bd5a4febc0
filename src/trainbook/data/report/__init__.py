"""What a data set is like before a model is trained on it: lengths, padding, copies, shift, labels, oddities."""
