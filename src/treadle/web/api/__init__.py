"""The JSON API: one file per thing."""
