"""How the benchmark works on SQLite: its files, its bare loops, and its clock for statements."""
