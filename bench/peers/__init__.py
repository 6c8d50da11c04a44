"""treadle beside the queues that a user would otherwise pick: the same work, interleaved, on this machine.

Run it with `./script/bench --peers`. Each queue is used by a program of its own (programs/), as its documentation says.
"""
