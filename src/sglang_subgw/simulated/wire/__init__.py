"""The engine's side of the wire: stand-ins for SGLang's messages, and their frames."""
