"""Recorded calls of several organizations go through four stages, from upload to analysis."""
