"""The adapter of SGLang servers."""
