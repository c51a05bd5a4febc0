"""From a corpus to samples: windows of a token stream, or one document each."""
