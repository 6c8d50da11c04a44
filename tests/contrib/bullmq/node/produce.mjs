// node produce.mjs REDIS_URL QUEUE < a JSON list of [name, data, options]
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { Queue } = createRequire(`${process.cwd()}/`)("bullmq");
const [url, name] = process.argv.slice(2);
const jobs = JSON.parse(readFileSync(0, "utf-8")).map(([name, data, opts]) => ({ name, data, opts }));
const queue = new Queue(name, { connection: { url } });
const added = await queue.addBulk(jobs);
console.log(JSON.stringify(added.map((job) => job.id)));
await queue.close();
