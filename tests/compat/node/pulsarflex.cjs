// pulsar-flex, told by test_pulsar_flex.py what to do: a command on the command line, its arguments as JSON on standard input, the
// result as JSON on standard output.
'use strict'
const { readFileSync } = require('node:fs')
const { Consumer, Producer, logLevel } = require('pulsar-flex')

const common = ({ address, topic }) => ({ topic, discoveryServers: [address], logLevel: logLevel.NOTHING })

const commands = {
  async produce (arguments_) {
    const producer = new Producer({ ...common(arguments_), producerAccessMode: Producer.ACCESS_MODES[arguments_.mode] })
    await producer.create()
    const messages = arguments_.values.map(payload => ({ payload, properties: { from: 'flex' } }))
    if (arguments_.batched) {
      await producer.sendBatch({ messages })
    } else {
      for (const message of messages) await producer.sendMessage(message)
    }
    await producer.close()
    return messages.length
  },

  // Reads until so many messages have come, each acknowledged; every one is first refused `refusals` times.
  async consume (arguments_) {
    const consumer = new Consumer({
      ...common(arguments_),
      subscription: arguments_.subscription,
      subType: Consumer.SUB_TYPES[arguments_.type],
      consumerName: 'flex',
      receiveQueueSize: arguments_.queue
    })
    await consumer.subscribe()
    const found = []
    await new Promise((resolve, reject) => {
      consumer.run({
        autoAck: false,
        onMessage: async ({ message, properties, redeliveryCount, ack }) => {
          found.push({ value: message.toString(), properties, redeliveryCount })
          if (redeliveryCount < arguments_.refusals) {
            await ack({ type: Consumer.ACK_TYPES.NEGATIVE })
          } else {
            await ack()
          }
          if (found.filter(one => one.redeliveryCount >= arguments_.refusals).length === arguments_.count) resolve()
        }
      }).catch(reject)
    })
    return found
  }
}

async function main () {
  const arguments_ = JSON.parse(readFileSync(0, 'utf8'))
  process.stdout.write(JSON.stringify(await commands[process.argv[2]](arguments_)), () => process.exit(0))
}

main().catch(error => {
  console.error(error)
  process.exit(1)
})
