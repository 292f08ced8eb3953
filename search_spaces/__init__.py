"""WHICH trials are allowed, and which of them is best."""
