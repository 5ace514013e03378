"""One file for each change; a change that was released is never edited."""
