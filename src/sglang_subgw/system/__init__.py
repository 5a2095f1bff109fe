"""What this package needs of the operating system: files, processes, sockets, memory; and of the log."""
