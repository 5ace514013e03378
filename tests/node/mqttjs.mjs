// One client of mqtt.js. It does what it is told in JSON lines, and tells in JSON lines what happens; tests/mqttjs/lines.py
// has both kinds of lines. Bytes travel as base64. Without its driver it ends, as if it had crashed.

import { createInterface } from 'node:readline'
import mqtt from 'mqtt'

let client

const bytes = (text) => Buffer.from(text, 'base64')

function tell(event, facts = {}) {
  process.stdout.write(JSON.stringify({ event, ...facts }) + '\n')
}

// Makes the callback that tells how a command with an id went.
function told(id) {
  return (error) => tell('done', { id, error: error ? error.message : null })
}

const deeds = {
  connect({ url, options }) {
    const { will } = options
    client = mqtt.connect(url, { ...options, will: will && { ...will, payload: bytes(will.payload) } })
    client.on('connect', ({ sessionPresent }) => tell('connect', { sessionPresent }))
    client.on('message', (topic, payload, { qos, retain, dup }) =>
      tell('message', { topic, payload: payload.toString('base64'), qos, retain, dup }))
    client.on('close', () => tell('close'))
    client.on('error', ({ message, code }) => tell('error', { message, code: code ?? null }))
  },

  // A filter that the broker refuses is an error to mqtt.js, which comes with the broker's answer all the same.
  subscribe({ id, filters, qos }) {
    client.subscribe(filters, { qos }, (error, _, suback) => {
      if (suback) tell('suback', { id, granted: suback.granted })
      else told(id)(error ?? new Error('there was nothing to subscribe to'))
    })
  },

  unsubscribe({ id, filters }) {
    client.unsubscribe(filters, told(id))
  },

  publish({ id, topic, payload, qos, retain }) {
    client.publish(topic, bytes(payload), { qos, retain }, told(id))
  },

  end({ id, force }) {
    client.end(force, told(id))
  },
}

const lines = createInterface({ input: process.stdin })
lines.on('line', (line) => {
  const command = JSON.parse(line)
  deeds[command.do](command)
})
lines.on('close', () => process.exit())
