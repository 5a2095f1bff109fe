"""SGLang's engine in this process: its arguments, its start, its processes, its end."""
