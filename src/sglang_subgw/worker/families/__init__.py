"""What differs between the requests that a worker sends: those for text, and those for vectors."""
