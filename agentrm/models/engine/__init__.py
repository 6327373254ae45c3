"""Generation for many programs at once: KV memory in blocks, one forward for all, turns by the kernel's classes.

Bottom up: `slots` and `arena` are the memory, `attention` reads and writes it inside the model's forward, `linear` are
the layers between, `store` keeps the accounts of it, `swap` is where it goes when it runs short, `forward` runs the
model, `works` are generations as state machines, `seats` asks the kernel whose turn it is, `loop` brings these
together, token by token.
"""
