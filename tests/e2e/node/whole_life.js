// The whole life of items by a client that Apache Thrift generated: framed binary over TCP.
// Usage: node whole_life.js DIRECTORY_OF_GENERATED_CODE PORT NAMESPACE
'use strict';

const assert = require('node:assert/strict');
const path = require('node:path');
const Int64 = require('node-int64');
const thrift = require('thrift');

const [generated, port, namespace] = process.argv.slice(2);
const Foqs = require(path.join(generated, 'Foqs'));
const FoqsAdmin = require(path.join(generated, 'FoqsAdmin'));
const t = require(path.join(generated, 'foqs_types'));

const PATIENCE_MS = 20_000;
const EVERY_BYTE = Buffer.from(Array.from({ length: 256 }, (_, value) => value));
const connections = [];

function connect(service) {
  const connection = thrift.createConnection('127.0.0.1', Number(port), {
    transport: thrift.TFramedTransport,
    protocol: thrift.TBinaryProtocol,
  });
  connection.on('error', (error) => {
    throw error;
  });
  connections.push(connection);
  return thrift.createClient(service, connection);
}

const queue = connect(Foqs);

function crc32(text) {
  let value = -1;
  for (const byte of Buffer.from(text)) {
    value ^= byte;
    for (let bit = 0; bit < 8; bit += 1) value = (value >>> 1) ^ (0xedb88320 & -(value & 1));
  }
  return ~value >>> 0;
}

const milliseconds = (value) => new Int64(value);
const tomorrow = Date.now() + 86_400_000;

function enqueue(...items) {
  return queue.enqueue(new t.EnqueueRequest({ namespace_name: namespace, items: items.map((i) => new t.NewItem(i)) }));
}

async function dequeue(topic, count, options = {}, client = queue) {
  const topics = [new t.TopicDemand({ topic, count })];
  const request = new t.DequeueRequest({ namespace_name: namespace, topics, ...options });
  return (await client.dequeue(request)).items;
}

async function one(topic, waitMs = 5_000) {
  const items = await dequeue(topic, 1, { wait_ms: milliseconds(waitMs) });
  assert.equal(items.length, 1, `an item of ${topic}`);
  return items[0];
}

const ack = (...receipts) => queue.ack(new t.AckRequest({ namespace_name: namespace, receipts }));
const nack = (...nacks) =>
  queue.nack(new t.NackRequest({ namespace_name: namespace, nacks: nacks.map((n) => new t.Nack(n)) }));
const extend = (leaseMs, ...receipts) =>
  queue.extendLease(new t.ExtendRequest({ namespace_name: namespace, receipts, lease_ms: milliseconds(leaseMs) }));

async function topics(prefix, limit = 1_000, pageToken = '') {
  const request = { namespace_name: namespace, prefix, limit, page_token: pageToken };
  return queue.getActiveTopics(new t.ActiveTopicsRequest(request));
}

function hasNoErrors(response) {
  assert.deepEqual(Object.keys(response.errors), []);
}

function hasError(response, position, code) {
  assert.equal(response.errors[position].code, code);
  assert.ok(response.errors[position].message.length > 10, 'a sentence for people');
}

async function rejects(call, code) {
  await assert.rejects(call, (error) => {
    assert.ok(error instanceof t.FoqsError, `${error}`);
    assert.equal(error.code, code);
    assert.ok(error.message.length > 10, 'a sentence for people');
    return true;
  });
}

const steps = {
  'an item keeps every field from enqueue to dequeue': async () => {
    const before = Date.now();
    const stored = await enqueue({
      topic: 'field ä€😀', payload: EVERY_BYTE, priority: -2147483648, deliver_after_ms: milliseconds(before - 5_000),
      ttl_ms: milliseconds(60_000), lease_ms: milliseconds(45_000), metadata: EVERY_BYTE,
      delivery: t.DeliveryPolicy.AT_LEAST_ONCE,
    });
    hasNoErrors(stored);
    assert.deepEqual(stored.duplicates, []);
    const item = await one('field ä€😀');
    assert.equal(item.id, stored.ids[0]);
    assert.equal(item.topic, 'field ä€😀');
    assert.equal(item.priority, -2147483648);
    assert.deepEqual(item.payload, EVERY_BYTE);
    assert.deepEqual(item.metadata, EVERY_BYTE);
    assert.equal(item.attempt, 1);
    assert.ok(Number(item.enqueued_at_ms) >= before - 1_000);
    assert.equal(Number(item.deliver_after_ms), Number(item.enqueued_at_ms), 'ready at once');
    const lease = Number(item.lease_expires_at_ms) - before;
    assert.ok(lease > 40_000 && lease < 60_000, `its own lease of 45 s, not ${lease} ms`);
    hasNoErrors(await ack(item.receipt));
  },

  'the most urgent item comes first': async () => {
    hasNoErrors(await enqueue(...[3, -1, 2].map((priority) => ({ topic: 'order', payload: Buffer.from('x'), priority }))));
    const items = await dequeue('order', 3, { wait_ms: milliseconds(5_000), lease_ms: milliseconds(10_000) });
    assert.deepEqual(items.map((item) => item.priority), [-1, 2, 3]);
    hasNoErrors(await ack(...items.map((item) => item.receipt)));
  },

  'items of one key come one at a time, in order': async () => {
    const of = (key, text) => ({ topic: 'keys', payload: Buffer.from(text), ordering_key: key });
    hasNoErrors(await enqueue(of('a', 'a0'), of('a', 'a1'), of('b', 'b0')));
    const seen = { a: [], b: [] };
    while (seen.a.length + seen.b.length < 3) {
      const items = await dequeue('keys', 3, { wait_ms: milliseconds(5_000), lease_ms: milliseconds(10_000) });
      assert.equal(new Set(items.map((item) => item.ordering_key)).size, items.length);
      for (const item of items) seen[item.ordering_key].push(item.payload.toString());
      hasNoErrors(await ack(...items.map((item) => item.receipt)));
    }
    assert.deepEqual(seen, { a: ['a0', 'a1'], b: ['b0'] });
  },

  'one bad item of a batch fails alone': async () => {
    const good = { topic: 'batch', payload: Buffer.from('x') };
    const stored = await enqueue(good, { ...good, topic: '' }, { ...good, dedup_id: 'd'.repeat(256) }, { ...good, ordering_key: '' },
      { ...good, payload: Buffer.alloc(20_000) });
    assert.deepEqual(stored.ids.map((id) => id !== ''), [true, false, false, false, false]);
    for (const position of [1, 2, 3]) hasError(stored, position, t.ErrorCode.INVALID_ARGUMENT);
    hasError(stored, 4, t.ErrorCode.TOO_LARGE);
    hasNoErrors(await ack((await one('batch')).receipt));
  },

  'of items with one dedup id the first is made, and the others get its id': async () => {
    const good = { topic: 'once', payload: Buffer.from('x'), dedup_id: 'order-7' };
    const stored = await enqueue(good, { ...good, dedup_id: 'order-8' }, good);
    assert.equal(stored.ids[2], stored.ids[0]);
    assert.deepEqual(stored.duplicates, [2]);
    hasNoErrors(await ack((await one('once')).receipt, (await one('once')).receipt));
    const again = await enqueue({ ...good, payload: Buffer.from('y') });
    assert.deepEqual([again.ids, again.duplicates], [[stored.ids[0]], [0]]);
  },

  'items with dedup ids are stored where the shard map says': async () => {
    const name = `${namespace}-wide-js`;
    const settings = new t.NamespaceSettings({ key_spread: 4 });
    await connect(FoqsAdmin).createNamespace(new t.CreateNamespaceRequest({ name, settings }));
    const told = await queue.getShardMap(new t.ShardMapRequest({ namespace_name: name }));
    assert.deepEqual([told.shard_by_slot.length, told.key_spread, told.addresses.length], [1024, 4, 4]);
    const items = Array.from({ length: 40 }, (_, number) => ({ topic: 'wide', payload: Buffer.from('x'), dedup_id: `ä-${number}` }));
    const stored = await queue.enqueue(
      new t.EnqueueRequest({ namespace_name: name, items: items.map((item) => new t.NewItem(item)) }));
    hasNoErrors(stored);
    const shards = items.map((item) => told.shard_by_slot[(crc32(name) + (crc32(item.dedup_id) % 4)) % 1024]);
    assert.deepEqual(stored.ids.map((id) => parseInt(id, 16)), shards);
    assert.equal(new Set(shards).size, 4);
  },

  'a delayed item is counted, and delivered when it is due': async () => {
    const before = Date.now();
    hasNoErrors(await enqueue({ topic: 'delay', payload: Buffer.from('x'), delay_ms: milliseconds(400) }));
    hasNoErrors(await enqueue({ topic: 'delay', payload: Buffer.from('x'), deliver_after_ms: milliseconds(tomorrow) }));
    const [stats] = (await topics('delay')).topics;
    assert.equal(Number(stats.delayed), 2);
    const item = await one('delay');
    assert.ok(Date.now() - before >= 399, 'not before its time');
    hasNoErrors(await ack(item.receipt));
  },

  'a dequeue waits for nothing as long as it was told': async () => {
    const before = Date.now();
    assert.deepEqual(await dequeue('nothing', 1, { wait_ms: milliseconds(300) }), []);
    assert.ok(Date.now() - before >= 299);
  },

  'a waiting dequeue gets the item that comes meanwhile': async () => {
    const waiting = dequeue('poll', 1, { wait_ms: milliseconds(PATIENCE_MS) }, connect(Foqs));
    hasNoErrors(await enqueue({ topic: 'poll', payload: Buffer.from('late') }));
    const [item] = await waiting;
    assert.equal(item.payload.toString(), 'late');
    hasNoErrors(await ack(item.receipt));
  },

  'a nack brings an item back with new metadata and a count': async () => {
    hasNoErrors(await enqueue({ topic: 'nack', payload: Buffer.from('x'), metadata: Buffer.from('old') }));
    const first = await one('nack');
    hasNoErrors(await nack({ receipt: first.receipt, delay_ms: milliseconds(100), metadata: EVERY_BYTE }));
    const second = await one('nack');
    assert.equal(second.id, first.id);
    assert.equal(second.attempt, 2);
    assert.deepEqual(second.metadata, EVERY_BYTE);
    hasNoErrors(await nack({ receipt: second.receipt, release: true }));
    const third = await one('nack');
    assert.equal(third.attempt, 2, 'a release is no failed attempt');
    hasError(await ack(first.receipt, third.receipt), 0, t.ErrorCode.STALE_LEASE);
  },

  'an extended lease ends later': async () => {
    hasNoErrors(await enqueue({ topic: 'extend', payload: Buffer.from('x') }));
    const [item] = await dequeue('extend', 1, { wait_ms: milliseconds(5_000), lease_ms: milliseconds(1_000) });
    hasNoErrors(await extend(60_000, item.receipt));
    assert.deepEqual(await dequeue('extend', 1, { wait_ms: milliseconds(2_500) }), []);
    hasNoErrors(await ack(item.receipt));
  },

  'a dead letter is kept for the operator': async () => {
    hasNoErrors(await enqueue({ topic: 'dead', payload: Buffer.from('x'), delivery: t.DeliveryPolicy.AT_MOST_ONCE }));
    const item = await one('dead');
    hasNoErrors(await nack({ receipt: item.receipt, dead_letter: true }));
    const [stats] = (await topics('dead')).topics;
    assert.equal(Number(stats.dead), 1);
    const admin = connect(FoqsAdmin);
    const asked = { namespace_name: namespace, topic: 'dead', limit: 10 };
    const { items } = await admin.listDeadLetters(new t.ListDeadLettersRequest(asked));
    assert.deepEqual(items.map((dead) => [dead.id, dead.state]), [[item.id, t.ItemState.DEAD]]);
    const purged = await admin.purgeDeadLetters(new t.PurgeDeadLettersRequest({ ...asked, ids: [item.id] }));
    assert.equal(Number(purged.count), 1);
    assert.equal((await admin.getHostStatus(new t.HostStatusRequest({}))).shards.length, 4);
  },

  'topics come page by page': async () => {
    const names = ['page/a', 'page/b', 'page/c'];
    hasNoErrors(await enqueue(...names.map((topic) => ({ topic, payload: Buffer.from('x') }))));
    const seen = [];
    let token = '';
    do {
      const page = await topics('page/', 2, token);
      seen.push(...page.topics.map((stats) => [stats.topic, Number(stats.ready)]));
      token = page.next_page_token;
    } while (token !== '');
    assert.deepEqual(seen.sort(), names.map((name) => [name, 1]));
  },

  'a bad call gets a FoqsError with its code, and the connection serves on': async () => {
    const items = [new t.NewItem({ topic: 'x', payload: Buffer.from('x') })];
    await rejects(queue.enqueue(new t.EnqueueRequest({ namespace_name: 'no such', items })), t.ErrorCode.UNKNOWN_NAMESPACE);
    await rejects(dequeue('x', 0), t.ErrorCode.INVALID_ARGUMENT);
    await rejects(dequeue('x', 1, { lease_ms: milliseconds(1) }), t.ErrorCode.INVALID_ARGUMENT);
    hasError(await ack('not a receipt'), 0, t.ErrorCode.INVALID_ARGUMENT);
    hasError(await extend(1_000, '0-1:1'), 0, t.ErrorCode.STALE_LEASE);
    assert.deepEqual(await dequeue('nothing', 1), []);
  },
};

async function main() {
  for (const [name, step] of Object.entries(steps)) {
    await step();
    console.log(`ok: ${name}`);
  }
  connections.forEach((connection) => connection.end());
}

setTimeout(() => {
  console.error('out of time');
  process.exit(2);
}, 2 * PATIENCE_MS).unref();
main().catch((error) => {
  console.error(error);
  process.exit(1);
});
