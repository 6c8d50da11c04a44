"""A weather model's run becomes map tiles in three steps: scan, ingest, build."""
