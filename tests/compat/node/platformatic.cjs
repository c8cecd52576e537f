// @platformatic/kafka, which speaks newer versions only; told by test_*.py what to do in the same way as kafkajs.cjs.
'use strict'
const { readFileSync } = require('node:fs')
const { pathToFileURL } = require('node:url')

const encode = bytes => (bytes === null || bytes === undefined ? null : bytes.toString('base64'))
const decode = text => (text === null ? undefined : Buffer.from(text, 'base64'))

const commands = {
  async produce ({ Producer }, base, { topic, partition, records, codec, acks, idempotent }) {
    const producer = new Producer({ ...base, idempotent, autocreateTopics: true })
    try {
      const messages = records.map(({ key, value, headers, timestamp }) => ({
        topic,
        partition,
        key: decode(key),
        value: decode(value),
        headers: new Map(headers.map(([name, header]) => [Buffer.from(name), decode(header)])),
        timestamp: BigInt(timestamp)
      }))
      const { offsets } = await producer.send({ messages, acks, compression: codec })
      return (offsets ?? []).map(({ offset }) => Number(offset))
    } finally {
      await producer.close()
    }
  },

  async consume ({ Consumer }, base, { topic, count, group }) {
    const consumer = new Consumer({ ...base, groupId: group })
    try {
      const stream = await consumer.consume({
        topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: false, sessionTimeout: 6000, heartbeatInterval: 500, maxWaitTime: 100
      })
      const found = []
      const next = new Map()
      for await (const { partition, offset, key, value, headers, timestamp } of stream) {
        found.push({
          partition,
          offset: Number(offset),
          key: encode(key),
          value: encode(value),
          headers: [...headers].map(([name, header]) => [name.toString(), encode(header)]),
          timestamp: Number(timestamp)
        })
        next.set(partition, offset + 1n)
        if (found.length === count) break
      }
      await consumer.commit({
        offsets: [...next].map(([partition, offset]) => ({ topic, partition, offset, leaderEpoch: -1 }))
      })
      await stream.close()
      return found
    } finally {
      await consumer.close(true)
    }
  },

  async create ({ Admin }, base, { topic }) {
    const admin = new Admin(base)
    try {
      await admin.createTopics({ topics: [topic], partitions: 1, replicas: 1 })
    } finally {
      await admin.close()
    }
  },

  async rebalance ({ Consumer }, base, { topic, partitions, group }) {
    const owned = new Map()
    let changed = () => {}
    const until = condition => new Promise(resolve => {
      changed = () => { if (condition()) resolve() }
      changed()
    })
    async function member (name) {
      const consumer = new Consumer({ ...base, groupId: group, sessionTimeout: 6000, heartbeatInterval: 200, rebalanceTimeout: 6000 })
      consumer.on('consumer:group:join', ({ assignments }) => {
        owned.set(name, (assignments ?? []).flatMap(({ partitions }) => partitions))
        changed()
      })
      const stream = await consumer.consume({ topics: [topic], mode: 'latest', autocommit: false, maxWaitTime: 100 })
      stream.on('data', () => {})
      return { consumer, stream }
    }
    const total = () => [...owned.values()].reduce((sum, some) => sum + some.length, 0)
    const leave = async ({ consumer, stream }) => { await stream.close(); await consumer.close(true) }
    const first = await member('first')
    await until(() => total() === partitions)
    const alone = owned.get('first').length
    const second = await member('second')
    await until(() => owned.size === 2 && total() === partitions && [...owned.values()].every(some => some.length > 0))
    const shared = [...owned.values()].map(some => some.length)
    await leave(first)
    owned.delete('first')
    await until(() => total() === partitions)
    const left = owned.get('second').length
    await leave(second)
    return { alone, shared, left }
  },

  async admin ({ Admin, ConfigResourceTypes, IncrementalAlterConfigOperationTypes }, base, { topic }) {
    const admin = new Admin(base)
    const codeOf = async promise => {
      try { await promise } catch (error) {
        for (let cause = error; cause; cause = cause.cause ?? cause.errors?.[0]) if (cause.apiId) return cause.apiId
        return error.stack
      }
      return null
    }
    try {
      await admin.createTopics({ topics: [topic], partitions: 2, replicas: 1, configs: [{ name: 'retention.ms', value: '60000' }] })
      const twice = await codeOf(admin.createTopics({ topics: [topic], partitions: 2, replicas: 1 }))
      await admin.createPartitions({ topics: [{ name: topic, count: 3, assignments: null }], validateOnly: false })
      const metadata = await admin.metadata({ topics: [topic] })
      await admin.incrementalAlterConfigs({
        resources: [{
          resourceType: ConfigResourceTypes.TOPIC,
          resourceName: topic,
          configs: [{ name: 'cleanup.policy', configOperation: IncrementalAlterConfigOperationTypes.SET, value: 'compact' }]
        }]
      })
      const [described] = await admin.describeConfigs({
        resources: [{ resourceType: ConfigResourceTypes.TOPIC, resourceName: topic, configurationKeys: ['cleanup.policy', 'retention.ms'] }]
      })
      await admin.deleteTopics({ topics: [topic] })
      const gone = !(await admin.listTopics()).includes(topic)
      const unknown = await codeOf(admin.deleteTopics({ topics: [topic] }))
      return {
        twice,
        partitions: metadata.topics.get(topic).partitionsCount,
        configs: Object.fromEntries(described.configs.map(({ name, value }) => [name, value])),
        brokers: metadata.brokers.size,
        gone,
        unknown
      }
    } finally {
      await admin.close()
    }
  }
}

const options = JSON.parse(readFileSync(0, 'utf8'))
// { tls: options of node's TLS, sasl: { mechanism, username, password, token } }, each if it is to be used.
const { tls, sasl } = options.security ?? {}
const { mechanism, username, password, token } = sasl ?? {}
const security = {
  ...(tls && { tls }),
  ...(sasl && { sasl: token ? { mechanism, token } : { mechanism, username, password } })
}
const base = { clientId: 'compat', bootstrapBrokers: [options.servers], retries: 3, retryDelay: 100, ...security }
import(pathToFileURL(require.resolve('@platformatic/kafka')).href)
  .then(library => commands[process.argv[2]](library, base, options))
  .then(
    result => process.stdout.write(JSON.stringify(result ?? null)),
    error => {
      process.stderr.write(require('node:util').inspect(error, { depth: 10 }))
      process.exitCode = 1
    }
  )
