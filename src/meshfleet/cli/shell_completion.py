"""Shell completion for bash, zsh and fish.

Completions may contain text of other users, such as labels. The shell must not interpret this text, even if
it contains `$(…)`, a space or a `*`. Bash inserts completions unchanged, so they are quoted for bash. For zsh
and fish, only words without special characters are offered.
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
"""Pattern of words without characters that are special in a shell."""

_BASH_SPECIAL: Final = re.compile(r"[^\w./,+%-]")
"""Pattern of characters that are escaped by a backslash for bash; includes more than bash requires."""

_IN_DOUBLE_QUOTES: Final = re.compile(r'[$`"\\]')


@add_completion_class
class BashCompleter(BashComplete):
    """Completer that quotes words for bash, depending on the quote that the user has typed."""

    source_template: ClassVar[str] = _BASH_SCRIPT

    def complete(self) -> str:
        """Return one line for each completion, except completions that cannot be quoted."""
        typed = self._current_word()
        items = self.get_completions(*self.get_completion_args())
        return "\n".join(
            f"{item.type},{word}" for item in items if (word := quote_for_bash(item.value, typed)) is not None
        )

    @staticmethod
    def _current_word() -> str:
        """Return the word that the user is typing, including quotes."""
        words, number = os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"])
        return words[number] if number < len(words) else ""


def quote_for_bash(word: str, typed: str) -> str | None:
    """Quote a completion for bash so that it continues the typed text. Return None if that is impossible."""
    match typed[:1]:
        case "'":
            return None if "'" in word + typed[1:] else word
        case '"':
            # In double quotes `!` is history expansion, and a backslash before it would remain in the word.
            return None if "!" in word or '"' in typed[1:] else _IN_DOUBLE_QUOTES.sub(r"\\\g<0>", word)
    # If there is a quote in the middle of a word, bash replaces only the part after the quote.
    return None if re.search(r"(?<!\\)['\"]", typed) else _BASH_SPECIAL.sub(r"\\\g<0>", word)


@add_completion_class
class ZshCompleter(ZshComplete):
    """Completer that offers only words without shell metacharacters."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return the completions that contain no shell metacharacters."""
        return _filter_plain_words(super().get_completions(args, incomplete))


@add_completion_class
class FishCompleter(FishComplete):
    """Completer that offers only words without shell metacharacters."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return the completions that contain no shell metacharacters."""
        return _filter_plain_words(super().get_completions(args, incomplete))


def _filter_plain_words(items: list[CompletionItem[str]]) -> list[CompletionItem[str]]:
    return [item for item in items if item.type != "plain" or _PLAIN_WORD.fullmatch(item.value)]


SHELL_COMPLETERS: Final[dict[str, type[ShellComplete]]] = {
    each.name: each for each in (BashCompleter, ZshCompleter, FishCompleter)
}
