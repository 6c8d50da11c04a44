"""Recorded calls, from upload to analysis in four stages, each org apart from the others (seed 001)."""
