"""Shells that complete our commands.

What they are offered may be somebody else's words, such as labels. On a command line these must stay words,
whatever a shell would make of `$(…)`, a space or a `*` in them. A bash takes what is offered as it is, so it
gets it quoted; zsh and fish get plain words alone.
"""

from __future__ import annotations

import os
import re
from typing import ClassVar, Final

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

_BASH_SCRIPT: Final = """\
%(complete_func)s() {
    local IFS=$'\\n' line
    COMPREPLY=()
    while read -r line; do
        case $line in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            plain,*) COMPREPLY+=("${line#plain,}") ;;
        esac
    done < <(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD %(complete_var)s=bash_complete "$1")
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_PLAIN_WORD: Final = re.compile(r"[\w.:@+-]+")
"""Words that no shell takes for more than that."""

_BASH_SPECIAL: Final = re.compile(r"[^\w./,+%-]")
"""What gets a backslash in front outside quotes: more than needs one."""

_IN_DOUBLE_QUOTES: Final = re.compile(r'[$`"\\]')


@add_completion_class
class BashCompleter(BashComplete):
    """Words as bash reads them behind what is typed already, inside quotes or outside."""

    source_template: ClassVar[str] = _BASH_SCRIPT

    def complete(self) -> str:
        """One line for each word that can be written there."""
        typed = self._current_word()
        items = self.get_completions(*self.get_completion_args())
        return "\n".join(
            f"{item.type},{word}" for item in items if (word := quote_for_bash(item.value, typed)) is not None
        )

    @staticmethod
    def _current_word() -> str:
        """The word that is begun, with its quotes."""
        words, number = os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"])
        return words[number] if number < len(words) else ""


def quote_for_bash(word: str, typed: str) -> str | None:
    """A word as it continues what is typed; None: there is no way to."""
    match typed[:1]:
        case "'":
            return None if "'" in word + typed[1:] else word
        case '"':
            # A `!` means history there, and a backslash that takes this away stays itself.
            return None if "!" in word or '"' in typed[1:] else _IN_DOUBLE_QUOTES.sub(r"\\\g<0>", word)
    # Bash would replace only what is behind a quote in the middle.
    return None if re.search(r"(?<!\\)['\"]", typed) else _BASH_SPECIAL.sub(r"\\\g<0>", word)


@add_completion_class
class ZshCompleter(ZshComplete):
    """Plain words alone."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Leave out what zsh might take for more."""
        return _filter_plain_words(super().get_completions(args, incomplete))


@add_completion_class
class FishCompleter(FishComplete):
    """Plain words alone."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Leave out what fish might take for more."""
        return _filter_plain_words(super().get_completions(args, incomplete))


def _filter_plain_words(items: list[CompletionItem[str]]) -> list[CompletionItem[str]]:
    return [item for item in items if item.type != "plain" or _PLAIN_WORD.fullmatch(item.value)]


SHELL_COMPLETERS: Final[dict[str, type[ShellComplete]]] = {
    each.name: each for each in (BashCompleter, ZshCompleter, FishCompleter)
}
