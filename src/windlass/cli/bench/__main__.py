from windlass.cli.bench.command import bench

bench(prog_name="windlass bench")
