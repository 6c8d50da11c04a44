"""A hello, and five small programs that you can copy: see README.md."""
