from treadle.cli.bench.command import bench

bench(prog_name="treadle bench")
