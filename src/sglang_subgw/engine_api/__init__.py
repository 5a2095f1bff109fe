"""What an application in a shard can call: SGLang's Engine, one family of its methods per file.

Each has two forms: `async_x` for the shard's event loop, and `x`, which blocks, for every other thread.
"""
