// rate-limiter-flexible on ioredis: `node flexible.cjs URL CALLERS HITS` prints one sample as JSON.
// Its Redis limiter is a fixed window. ioredis sends on one connection without waiting for replies; its automatic
// pipelining on top of that was no faster.
const Redis = require("ioredis");
const { RateLimiterRedis } = require("rate-limiter-flexible");

async function main() {
  const [url, callers, hits] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
  const client = new Redis(url);
  const limiter = new RateLimiterRedis({ storeClient: client, points: 10000, duration: 86400 });
  const latencies = [];
  let admitted = 0;

  async function call(key, count) {
    for (let i = 0; i < count; i++) {
      const started = process.hrtime.bigint();
      await limiter.consume(key); // rejects when denied, which ends this process with an error
      latencies.push(Number(process.hrtime.bigint() - started) / 1e6);
      admitted++;
    }
  }

  const all = (count) => Promise.all(Array.from({ length: callers }, (_, i) => call(`user:${i}`, count)));
  await all(hits); // lets the compiler optimise the hot code
  latencies.length = admitted = 0;
  const started = process.hrtime.bigint();
  await all(hits);
  const seconds = Number(process.hrtime.bigint() - started) / 1e9;
  latencies.sort((one, other) => one - other);
  const at = (share) => latencies[Math.floor(latencies.length * share)];
  console.log(JSON.stringify({ per_second: admitted / seconds, p50_ms: at(0.5), p99_ms: at(0.99) }));
  client.disconnect();
}

main();
