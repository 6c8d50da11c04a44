// BullMQ on Redis.
import { Queue, Worker } from "bullmq";
import { main, stamp } from "./program.mjs";

const SLOTS = 100;
const defaultJobOptions = { removeOnComplete: true };

let queue, worker;
const connection = (url) => ({ url, maxRetriesPerRequest: null });

await main({
  name: "bullmq",
  settings: `concurrency=${SLOTS}, removeOnComplete`,
  async prepare(url) {
    queue = new Queue("noop", { connection: connection(url), defaultJobOptions });
    await queue.waitUntilReady();
  },
  enqueue: (n) => queue.add("noop", { n }),
  enqueueMany: (numbers) => queue.addBulk(numbers.map((n) => ({ name: "noop", data: { n } }))),
  async work(url) {
    worker = new Worker("noop", async () => stamp(), { connection: connection(url), concurrency: SLOTS });
    await worker.waitUntilReady();
  },
  stop: () => worker.close(),
});
