"""The benchmark laboratory: what treadle does on this machine, beside what its disk and its database can do at most.

Run it with `./script/bench`. `treadle bench` in the package is the short version that users have.
"""
