// A generated client over TLS that signs in with a token.
// Usage: node sign_in.js DIRECTORY_OF_GENERATED_CODE HOST PORT CA_FILE TOKEN_FILE NAMESPACE
'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const Int64 = require('node-int64');
const thrift = require('thrift');

const [generated, host, port, caFile, tokenFile, namespace] = process.argv.slice(2);
const Foqs = require(path.join(generated, 'Foqs'));
const t = require(path.join(generated, 'foqs_types'));

const token = fs.readFileSync(tokenFile, 'utf8').trim();
const connections = [];

function connect(servername, ca = fs.readFileSync(caFile)) {
  const connection = thrift.createSSLConnection(host, Number(port), {
    transport: thrift.TFramedTransport,
    protocol: thrift.TBinaryProtocol,
    ca,
    servername,
    max_attempts: 1,
  });
  connections.push(connection);
  const opened = new Promise((resolve, reject) => {
    connection.on('connect', resolve);
    connection.on('error', reject);
    connection.on('close', () => reject(new Error('the connection was closed')));
  });
  return { client: thrift.createClient(Foqs, connection), opened };
}

const enqueue = (client) => {
  const item = new t.NewItem({ topic: 'js', payload: Buffer.from('hello') });
  return client.enqueue(new t.EnqueueRequest({ namespace_name: namespace, items: [item] }));
};
const denied = (call) => assert.rejects(call, (error) => error.code === t.ErrorCode.PERMISSION_DENIED);

const steps = {
  'a certificate of another name is refused before anything is sent': async () => {
    await assert.rejects(connect('other.example').opened);
  },
  'a certificate that the trusted ones did not sign is refused': async () => {
    await assert.rejects(connect('localhost', []).opened);
  },
  'a caller without a token is refused': async () => {
    const { client, opened } = connect('localhost');
    await opened;
    await denied(enqueue(client));
  },
  'a wrong token is refused': async () => {
    const { client, opened } = connect('localhost');
    await opened;
    await denied(client.authenticate(new t.AuthenticateRequest({ token: `foqs_${token.slice(5).split('').reverse().join('')}` })));
  },
  'a caller with a token is known, and does what its permissions say': async () => {
    const { client, opened } = connect('localhost');
    await opened;
    const me = await client.authenticate(new t.AuthenticateRequest({ token }));
    assert.equal(me.principal, 'mailer');
    assert.equal((await client.whoAmI(new t.WhoAmIRequest({}))).principal, 'mailer');
    assert.deepEqual((await enqueue(client)).errors, {});
    const topics = [new t.TopicDemand({ topic: 'js', count: 1 })];
    const request = { namespace_name: namespace, topics, wait_ms: new Int64(5_000) };
    const { items } = await client.dequeue(new t.DequeueRequest(request));
    assert.equal(items[0].payload.toString(), 'hello');
    await client.ack(new t.AckRequest({ namespace_name: namespace, receipts: [items[0].receipt] }));
    const ofGroup = [new t.TopicDemand({ topic: 'js', count: 1, group: 'archive' })];
    const copies = (await client.dequeue(new t.DequeueRequest({ ...request, topics: ofGroup }))).items;
    assert.deepEqual(copies.map((copy) => [copy.payload.toString(), copy.group]), [['hello', 'archive']]);
    await client.ack(new t.AckRequest({ namespace_name: namespace, receipts: [copies[0].receipt] }));
    await denied(client.dequeue(new t.DequeueRequest({ ...request, namespace_name: 'other' })));
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
}, 40_000).unref();
main().catch((error) => {
  console.error(error);
  process.exit(1);
});
