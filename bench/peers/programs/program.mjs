// What the programs of all Node queues share. See program.py: the roles, the commands and their answers are the same.
import fs from "node:fs";
import readline from "node:readline";
import { setTimeout as pause } from "node:timers/promises";

const CHUNK = 1000; // jobs in one call of a bulk enqueue
const GAPS = [20, 200]; // milliseconds between two jobs of a pickup

const [role, url, stamps] = process.argv.slice(2);
const file = fs.openSync(stamps, "a");
const microseconds = () => Math.round((performance.timeOrigin + performance.now()) * 1000);
const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");

const versionOf = (name) =>
  JSON.parse(fs.readFileSync(new URL(`../node_modules/${name}/package.json`, import.meta.url))).version;

// What every handler does.
export const stamp = () => fs.writeSync(file, String(microseconds()).padStart(16, "0"));

const commands = (queue) => ({
  async singly(seconds) {
    const began = performance.now();
    let count = 0;
    while (performance.now() - began < 1000 * seconds) await queue.enqueue(count++);
    return count / ((performance.now() - began) / 1000);
  },
  async bulk(n) {
    const began = performance.now();
    for (let start = 0; start < n; start += CHUNK) {
      await queue.enqueueMany(Array.from({ length: Math.min(CHUNK, n - start) }, (_, i) => start + i));
    }
    return n / ((performance.now() - began) / 1000);
  },
  async pickup(n) {
    const returned = [];
    for (let i = 0; i < n; i++) {
      await pause(GAPS[0] + Math.random() * (GAPS[1] - GAPS[0]));
      await queue.enqueue(i);
      returned.push(microseconds());
    }
    return returned;
  },
});

// A queue has a name, settings, prepare(url), enqueue(n), enqueueMany(numbers), work(url) and stop().
export async function main(queue) {
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  if (role === "produce") {
    await queue.prepare(url);
    say({ version: versionOf(queue.name), settings: queue.settings });
    for await (const line of lines) {
      const [name, amount] = JSON.parse(line);
      say(await commands(queue)[name](amount));
    }
  } else {
    say("ready");
    if ((await lines.next()).done) process.exit();
    process.once("SIGTERM", () => queue.stop().then(() => process.exit()));
    await queue.work(url);
  }
}
