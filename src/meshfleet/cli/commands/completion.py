"""`meshfleet completion`: print shell completion scripts."""

from __future__ import annotations

from typing import Final

import click

from meshfleet.cli.output import print_json
from meshfleet.cli.shell_completion import SHELL_COMPLETERS

_INSTALL_HINTS: Final = {
    "bash": 'eval "$(meshfleet completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(meshfleet completion zsh)"   in ~/.zshrc, after compinit',
    "fish": "meshfleet completion fish > ~/.config/fish/completions/meshfleet.fish",
}


@click.command(epilog="\b\n" + "\n".join(_INSTALL_HINTS.values()))
@click.argument("shell", type=click.Choice(list(SHELL_COMPLETERS)))
@click.option("--json", "as_json", is_flag=True, help="Print the script inside a JSON object.")
def completion(shell: str, *, as_json: bool) -> None:
    """Print a script that enables command-line completion in SHELL.

    The script completes commands, options and identifiers; while you are logged in, also devices, gateways,
    labels, firmware and jobs.
    """
    root = click.get_current_context().find_root()
    name = "meshfleet"
    # Not `source()`, which runs bash to check its version: the script may be for another machine.
    completer = SHELL_COMPLETERS[shell](root.command, {}, name, f"_{name.upper()}_COMPLETE")
    script = completer.source_template % completer.source_vars()
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        click.echo(script)
