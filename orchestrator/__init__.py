"""WHERE trials run and what is remembered: the only package with side effects."""
