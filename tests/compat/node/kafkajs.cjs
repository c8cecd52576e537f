// kafkajs, told by test_*.py what to do: a command on the command line, its arguments as JSON on standard input, the result as
// JSON on standard output. Bytes are base64.
'use strict'
const { readFileSync } = require('node:fs')
const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require('kafkajs')

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')

const encode = bytes => (bytes === null || bytes === undefined ? null : bytes.toString('base64'))
const decode = text => (text === null ? null : Buffer.from(text, 'base64'))

function headersOf (pairs) {
  const headers = {}
  for (const [name, value] of pairs) (headers[name] ??= []).push(decode(value))
  return headers
}

function pairsOf (headers) {
  return Object.entries(headers).flatMap(([name, values]) => [values].flat().map(value => [name, encode(value)]))
}

const commands = {
  async produce (kafka, { topic, partition, records, codec, acks, idempotent }) {
    const producer = kafka.producer({ idempotent, allowAutoTopicCreation: true })
    await producer.connect()
    try {
      const compression = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy }[codec]
      const messages = records.map(({ key, value, headers, timestamp }) => ({
        key: decode(key), value: decode(value), headers: headersOf(headers), timestamp: String(timestamp), partition
      }))
      return await producer.send({ topic, acks, compression, messages })
    } finally {
      await producer.disconnect()
    }
  },

  // Reads with a group from what it has committed or the beginning; what was read is committed.
  async consume (kafka, { topic, count, group }) {
    const consumer = kafka.consumer({ groupId: group, sessionTimeout: 6000, heartbeatInterval: 500, maxWaitTimeInMs: 100 })
    await consumer.connect()
    try {
      await consumer.subscribe({ topics: [topic], fromBeginning: true })
      const found = []
      await new Promise((resolve, reject) => {
        consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
        consumer.run({
          autoCommit: false,
          eachMessage: async ({ partition, message }) => {
            found.push({
              partition,
              offset: Number(message.offset),
              key: encode(message.key),
              value: encode(message.value),
              headers: pairsOf(message.headers),
              timestamp: Number(message.timestamp)
            })
            if (found.length === count) resolve()
          }
        }).catch(reject)
      })
      const next = {}
      for (const { partition, offset } of found) next[partition] = Math.max(next[partition] ?? 0, offset + 1)
      await consumer.commitOffsets(
        Object.entries(next).map(([partition, offset]) => ({ topic, partition: Number(partition), offset: String(offset) }))
      )
      return found
    } finally {
      await consumer.disconnect()
    }
  },

  async create (kafka, { topic }) {
    const admin = kafka.admin()
    await admin.connect()
    try {
      return await admin.createTopics({ topics: [{ topic }] })
    } finally {
      await admin.disconnect()
    }
  },

  // A test in JavaScript as in docs/TESTING.md: the broker is told over HTTP which requests are to fail.
  async faults (kafka, { url, topic }) {
    const call = async (method, path = '', fault = undefined) => {
      const answer = await fetch(`${url}/api/v1/faults${path}`, { method, body: JSON.stringify(fault) })
      const text = await answer.text()
      if (!answer.ok) throw new Error(`${answer.status}: ${text}`)
      return text === '' ? null : JSON.parse(text)
    }
    const refused = await call('POST', '', { kind: 'no such kind' }).catch(error => error.message)
    const moved = await call('POST', '', { kind: 'error', api: 'PRODUCE', topic, error: 'NOT_LEADER_OR_FOLLOWER', count: 2 })
    const denied = await call('POST', '', { kind: 'error', api: 'PRODUCE', topic, error: 'TOPIC_AUTHORIZATION_FAILED' })
    const producer = kafka.producer({ retry: { initialRetryTime: 50, retries: 5 } })
    await producer.connect()
    try {
      const send = () => producer.send({ topic, messages: [{ value: 'one book' }] })
      const error = await send().then(() => null, failure => failure.type ?? failure.message)
      const [{ baseOffset }] = await send()
      const ended = await call('GET', `/${moved.number}?wait=2&timeout_ms=30000`)
      const seen = (await call('GET', `/${denied.number}`)).passed.map(passing => passing.client_id)
      await call('DELETE')
      const left = (await call('GET')).faults
      return { refused, error, baseOffset, hits: ended.hits, seen, left }
    } finally {
      await producer.disconnect()
    }
  },

  // Two members of a group share the partitions; one leaves, and the other has them all.
  async rebalance (kafka, { topic, partitions, group }) {
    const owned = new Map()
    let changed = () => {}
    const until = condition => new Promise(resolve => {
      changed = () => { if (condition()) resolve() }
      changed()
    })
    async function member (name) {
      const consumer = kafka.consumer({ groupId: group, sessionTimeout: 6000, heartbeatInterval: 200, rebalanceTimeout: 6000, maxWaitTimeInMs: 100 })
      consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
        owned.set(name, payload.memberAssignment[topic] ?? [])
        changed()
      })
      await consumer.connect()
      await consumer.subscribe({ topics: [topic] })
      await consumer.run({ eachMessage: async () => {} })
      return consumer
    }
    const total = () => [...owned.values()].reduce((sum, some) => sum + some.length, 0)
    const first = await member('first')
    await until(() => total() === partitions)
    const alone = owned.get('first').length
    const second = await member('second')
    await until(() => owned.size === 2 && total() === partitions && [...owned.values()].every(some => some.length > 0))
    const shared = [...owned.values()].map(some => some.length)
    await first.disconnect()
    owned.delete('first')
    await until(() => total() === partitions)
    const left = owned.get('second').length
    await second.disconnect()
    return { alone, shared, left }
  },

  async admin (kafka, { topic, group }) {
    const admin = kafka.admin()
    await admin.connect()
    try {
      const created = await admin.createTopics({
        topics: [{ topic, numPartitions: 2, configEntries: [{ name: 'retention.ms', value: '60000' }] }]
      })
      const twice = await admin.createTopics({ topics: [{ topic }] })
      await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
      const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
      await admin.alterConfigs({
        resources: [{ type: 2, name: topic, configEntries: [{ name: 'cleanup.policy', value: 'compact' }] }]
      })
      const configs = await admin.describeConfigs({ resources: [{ type: 2, name: topic, configNames: ['cleanup.policy', 'retention.ms'] }] })
      const cluster = await admin.describeCluster()
      const offsets = await admin.fetchTopicOffsets(topic)
      const committed = await admin.fetchOffsets({ groupId: group })
      const groups = (await admin.listGroups()).groups.filter(({ groupId }) => groupId === group).length
      const described = (await admin.describeGroups([group])).groups[0].state
      await admin.deleteGroups([group])
      await admin.deleteTopics({ topics: [topic] })
      const gone = !(await admin.listTopics()).includes(topic)
      return {
        created,
        twice,
        partitions: topics[0].partitions.length,
        configs: Object.fromEntries(configs.resources[0].configEntries.map(({ configName, configValue }) => [configName, configValue])),
        brokers: cluster.brokers.length,
        offsets: offsets.map(({ high }) => high),
        committed: committed[0].partitions.map(({ offset }) => offset),
        groups,
        described,
        gone
      }
    } finally {
      await admin.disconnect()
    }
  }
}

const options = JSON.parse(readFileSync(0, 'utf8'))
// { tls: options of node's TLS, sasl: { mechanism, username, password, token } }, each if it is to be used.
const { tls, sasl } = options.security ?? {}
const security = {
  ssl: tls,
  sasl: sasl && {
    mechanism: sasl.mechanism.toLowerCase(),
    ...(sasl.token ? { oauthBearerProvider: async () => ({ value: sasl.token }) } : { username: sasl.username, password: sasl.password })
  }
}
const kafka = new Kafka({ brokers: [options.servers], ...security, logLevel: logLevel.NOTHING, retry: { retries: 3, initialRetryTime: 50 } })
commands[process.argv[2]](kafka, options).then(
  result => process.stdout.write(JSON.stringify(result ?? null)),
  error => {
    process.stderr.write(`${error.type ?? error.name}: ${error.stack}`)
    process.exitCode = 1
  }
)
