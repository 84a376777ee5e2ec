"""The command line: `shardwright COMMAND`. One file per command; heavy imports wait until a command runs."""
