"""Does a change help? Arms that differ in one thing, each with its own best learning rate, over seeds and data sets."""
