"""Podcasts are imported by a worker that runs inside the web server."""
