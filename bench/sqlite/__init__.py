"""How the benchmark works on SQLite: its files, its raw SQL, and its timing of statements."""
