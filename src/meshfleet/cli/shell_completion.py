"""Shell completion for bash, zsh and fish.

Offered words may come from other users, such as labels. They must stay single words on the command line, even
with `$(…)`, a space or a `*` in them. Bash inserts a completion as it is, so it gets quoted words; zsh and
fish get only words without special characters.
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
"""Words without characters that are special in any shell."""

_BASH_SPECIAL: Final = re.compile(r"[^\w./,+%-]")
"""Characters that are escaped by a backslash outside quotes; more than necessary."""

_IN_DOUBLE_QUOTES: Final = re.compile(r'[$`"\\]')


@add_completion_class
class BashCompleter(BashComplete):
    """Completer that quotes words for bash, depending on the quotes typed already."""

    source_template: ClassVar[str] = _BASH_SCRIPT

    def complete(self) -> str:
        """Return one line for each completion that can be quoted."""
        typed = self._current_word()
        items = self.get_completions(*self.get_completion_args())
        return "\n".join(
            f"{item.type},{word}" for item in items if (word := quote_for_bash(item.value, typed)) is not None
        )

    @staticmethod
    def _current_word() -> str:
        """Return the word being typed, with its quotes."""
        words, number = os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"])
        return words[number] if number < len(words) else ""


def quote_for_bash(word: str, typed: str) -> str | None:
    """Quote a word so that it continues the typed text; None if that is not possible."""
    match typed[:1]:
        case "'":
            return None if "'" in word + typed[1:] else word
        case '"':
            # Here `!` is history expansion, and a backslash that prevents it would stay in the word.
            return None if "!" in word or '"' in typed[1:] else _IN_DOUBLE_QUOTES.sub(r"\\\g<0>", word)
    # After a quote in the middle of a word, bash would replace only the part behind it.
    return None if re.search(r"(?<!\\)['\"]", typed) else _BASH_SPECIAL.sub(r"\\\g<0>", word)


@add_completion_class
class ZshCompleter(ZshComplete):
    """Completer that offers only words without special characters."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return the completions without special characters."""
        return _filter_plain_words(super().get_completions(args, incomplete))


@add_completion_class
class FishCompleter(FishComplete):
    """Completer that offers only words without special characters."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return the completions without special characters."""
        return _filter_plain_words(super().get_completions(args, incomplete))


def _filter_plain_words(items: list[CompletionItem[str]]) -> list[CompletionItem[str]]:
    return [item for item in items if item.type != "plain" or _PLAIN_WORD.fullmatch(item.value)]


SHELL_COMPLETERS: Final[dict[str, type[ShellComplete]]] = {
    each.name: each for each in (BashCompleter, ZshCompleter, FishCompleter)
}
