"""One program per queue. Each knows two roles: to enqueue and to work. See program.py and program.mjs."""
