"""Subtitles for the videos of channels, with the queue in the same SQLite file (seed 004)."""
