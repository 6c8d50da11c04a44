from bench.peers.command import peers

peers(prog_name="./script/bench --peers")
