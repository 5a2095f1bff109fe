"""What the operating system tells of processes, and the bench's own."""
