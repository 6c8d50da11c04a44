// graphile-worker on PostgreSQL.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { main, stamp } from "./program.mjs";

const SLOTS = 24; // more are not faster: the handler ends at once
const AHEAD = 500;

let utils, runner;

await main({
  name: "graphile-worker",
  settings: `concurrentJobs=${SLOTS}, localQueue.size=${AHEAD}, completeJobBatchDelay=0`,
  async prepare(url) {
    utils = await makeWorkerUtils({ connectionString: url });
    await utils.migrate();
  },
  enqueue: (n) => utils.addJob("noop", { n }),
  enqueueMany: (numbers) => utils.addJobs(numbers.map((n) => ({ identifier: "noop", payload: { n } }))),
  async work(url) {
    runner = await run({
      preset: {
        worker: {
          connectionString: url,
          concurrentJobs: SLOTS,
          localQueue: { size: AHEAD },
          completeJobBatchDelay: 0,
        },
      },
      noHandleSignals: true,
      logger: new Logger(() => () => {}),
      taskList: { noop: async () => stamp() },
    });
    await runner.promise;
  },
  stop: () => runner.stop(),
});
