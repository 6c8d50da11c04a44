"""Demonstrations: each runs one of the examples, kills a process, and shows that nothing is lost."""
