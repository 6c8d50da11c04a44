"""Five small programs, each a page: see README.md."""
