"""Weather maps from model runs: scan, ingest, build (seed 003)."""
