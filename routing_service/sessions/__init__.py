"""Sessions at run time: one handler decides and stores, the rest reads, watches and cleans up."""
