from bench.command import bench

bench(prog_name="./script/bench")
