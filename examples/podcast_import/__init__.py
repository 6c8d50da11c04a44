"""Podcasts imported by a worker that lives in the web server (seed 000)."""
