// pg-boss on PostgreSQL.
import { PgBoss } from "pg-boss";
import { main, stamp } from "./program.mjs";

const BATCH = 1000;

let boss;

async function start(url, options) {
  boss = new PgBoss({ connectionString: url, ...options });
  boss.on("error", (error) => console.error(error));
  await boss.start();
}

await main({
  name: "pg-boss",
  settings: `batchSize=${BATCH}, burstWhenBatchFull, useListenNotify and notify; a batch is completed as a whole`,
  async prepare(url) {
    await start(url, { supervise: false, schedule: false });
    await boss.createQueue("noop", { notify: true });
  },
  enqueue: (n) => boss.send("noop", { n }),
  enqueueMany: (numbers) => boss.insert("noop", numbers.map((n) => ({ data: { n } }))),
  async work(url) {
    await start(url, { useListenNotify: true });
    const options = { batchSize: BATCH, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
    await boss.work("noop", options, async (jobs) => jobs.forEach(stamp));
  },
  stop: () => boss.stop({ graceful: true, timeout: 5000 }),
});
