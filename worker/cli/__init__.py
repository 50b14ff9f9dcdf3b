"""The `locseal` command: translates arguments, prints results, returns exit codes."""
