"""How the benchmark works on a libSQL server, where every request is a round trip."""
