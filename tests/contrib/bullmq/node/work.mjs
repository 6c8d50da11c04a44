// node work.mjs REDIS_URL QUEUE COUNT: prints each run as a line of JSON, and ends after COUNT ended jobs.
// The first run of a job whose data has `fail` fails; all runs of one that has `never` do.
import { createRequire } from "node:module";

const { Worker } = createRequire(`${process.cwd()}/`)("bullmq");
const [url, name, count] = process.argv.slice(2);
let ended = 0;

const worker = new Worker(
  name,
  async (job) => {
    const { tenant } = job.opts.treadle;
    console.log(JSON.stringify({ id: job.id, name: job.name, data: job.data, made: job.attemptsMade, tenant, at: Date.now() }));
    if (job.data.never || (job.data.fail && job.attemptsMade === 0)) throw new Error("as asked");
    return { got: job.data.n };
  },
  { connection: { url, maxRetriesPerRequest: null }, concurrency: 1, autorun: false },
);
const end = async () => {
  ended += 1;
  if (ended === Number(count)) await worker.close();
};
worker.on("error", (error) => { console.error(error); process.exit(1); });
worker.on("completed", end);
worker.on("failed", (job) => job.attemptsMade >= job.opts.attempts && end());
await worker.run();
