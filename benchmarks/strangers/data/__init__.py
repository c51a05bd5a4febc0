"""Tables of samples: numbers, pictures, tokens and texts, made up or from what Python and scikit-learn bring along."""
