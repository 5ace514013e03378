// Reads an AsyncAPI document and tells in JSON what is wrong with it, by the parser of those who make the standard.

import { text } from 'node:stream/consumers'
import { Parser } from '@asyncapi/parser'

const { document, diagnostics } = await new Parser().parse(await text(process.stdin))
const faults = diagnostics.map(({ severity, code, path, message }) => ({ severity, code, path, message }))
process.stdout.write(JSON.stringify({ isRead: document !== undefined, faults }))
