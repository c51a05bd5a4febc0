"""The rules, one subject a file. Each registers itself when its file is imported."""
