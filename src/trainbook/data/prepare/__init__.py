"""From documents to a corpus: filtered, split, tokenized in parts by all processes together, and kept in a cache."""
