"""The full benchmark: what treadle does on this machine, compared with the most that its disk and database can do.

Run it with `./script/bench`. `treadle bench` in the package is the short version that users have.
"""
