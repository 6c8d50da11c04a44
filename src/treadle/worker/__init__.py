"""Claim → run → settle."""
