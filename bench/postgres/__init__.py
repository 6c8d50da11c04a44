"""How the benchmark works on PostgreSQL, and what only matters there."""
