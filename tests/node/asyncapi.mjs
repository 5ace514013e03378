// Reads a list of AsyncAPI documents and tells in JSON what is wrong with each, by the parser of those who make the
// standard. It takes much longer to load the parser than to parse.

import { json } from 'node:stream/consumers'
import { Parser } from '@asyncapi/parser'

const verdicts = []
for (const given of await json(process.stdin)) {
  const { document, diagnostics } = await new Parser().parse(JSON.stringify(given))
  const faults = diagnostics.map(({ severity, code, path, message }) => ({ severity, code, path, message }))
  verdicts.push({ isRead: document !== undefined, faults })
}
process.stdout.write(JSON.stringify(verdicts))
